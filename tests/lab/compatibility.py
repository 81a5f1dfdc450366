"""What nvrun was seen to work with, by hand: a job over two hosts for each interpreter that is named.

python -m tests.lab.compatibility ~/venv-a/bin/python ~/venv-b/bin/python

Each is that of a virtual environment with torch and what nvrun needs. Prints lines of the table in README.md.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab.lab import REPOSITORY, Lab, why_not

_VERSIONS = """
import importlib.metadata as m, platform
print(platform.python_version(), *(m.version(name) for name in ("torch", "paramiko", "msgspec")))
"""
_RANK = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4) * dist.get_rank()
dist.all_reduce(x)
assert x[0].item() == sum(range(dist.get_world_size())), x
print("sum", int(x[0].item()), flush=True)
dist.destroy_process_group()
"""
WAYS = {
    "paramiko": [],
    "ssh": ["--ssh", "openssh"],
    "restarts (c10d)": ["--max-restarts", "1"],
    "full check": ["--check", "full"],
}
EXPECTED = 4 * 3 // 2
"""What four ranks add up to."""


def main() -> int:
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr.split(",")[0].strip()
    print(f"{datetime.datetime.now(tz=datetime.timezone.utc).date()}, {ssh}\n")
    print(f"| Python | torch | paramiko | msgspec | {' | '.join(WAYS)} |\n|{'---|' * (4 + len(WAYS))}")
    failed = False
    with Lab(["a", "b"]) as lab, tempfile.TemporaryDirectory(prefix="nvrun-compat-", dir="/tmp") as name:
        script = Path(name) / "sum.py"
        script.write_text(_RANK)
        for python in sys.argv[1:]:
            told = lab.run([python, "-c", _VERSIONS], timeout=120, check=True).stdout.split()
            seen = []
            for flags in WAYS.values():
                line = ["--hosts", "a,b", "--nproc-per-node", "2", "--run-dir", f"{name}/runs", *flags, str(script)]
                done = lab.run([python, "-m", "nvrun", *line], timeout=300, env={"PYTHONPATH": str(REPOSITORY)})
                well = done.returncode == 0 and done.stdout.count(f"sum {EXPECTED}") == 4
                seen.append("works" if well else f"exit {done.returncode}")
                failed |= not well
                if not well:
                    print(done.stderr[-1500:], file=sys.stderr)
            print(f"| {' | '.join([*told, *seen])} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
