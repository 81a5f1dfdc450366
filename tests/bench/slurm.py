"""What nvrun costs inside a Slurm allocation: wall time of a two-node job by nvrun and by `srun torchrun`, in turns.

    python -m tests.bench.slurm               # in a lab with a Slurm of its own (as root)
    python -m tests.bench.slurm --inside      # in an allocation of two nodes that is there already

Two ranks a node that end at once, so that all of it is launching. nvrun is measured in both its forms: started once,
and by srun on each node. Figures of a machine that does something else at the same time say nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.launch import NVRUN, RANK, TORCHRUN, compare
from tests.lab import slurm
from tests.lab.lab import REPOSITORY, Lab, why_not

STEP = ("srun", "--ntasks-per-node=1", "--cpus-per-task=8", "--overlap")
JOB = ("--nproc-per-node=2", str(RANK), "ended")


def quietly(argv: tuple[str, ...]) -> Callable[[], object]:
    """Runs the command; CalledProcessError where it fails."""
    return lambda: subprocess.run(argv, check=True, capture_output=True, timeout=120)


def inside(runs: int, folder: str) -> None:
    """In an allocation: both forms against `srun torchrun`."""
    torchrun = shlex.join([*TORCHRUN, "--nnodes=2", "--master-port=29800"])
    endpoint = '--node-rank="$SLURM_NODEID" --master-addr="${SLURM_STEP_NODELIST_FIRST}"'
    first = 'SLURM_STEP_NODELIST_FIRST=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)'
    bare = (*STEP, "bash", "-c", f"{first}; exec {torchrun} {endpoint} {shlex.join(JOB)}")
    own = f"--run-dir={folder}"
    print("| job | srun torchrun (s) | nvrun (s) | more (s) | ratio |\n|---|---|---|---|---|", flush=True)
    compare("2 nodes x 2, nvrun in the script", quietly(bare), quietly((*NVRUN, own, *JOB)), runs)
    compare("2 nodes x 2, nvrun under srun", quietly(bare), quietly((*STEP, *NVRUN, own, *JOB)), runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="counted runs of each (7)")
    parser.add_argument("--inside", action="store_true", help="in an allocation that is there already")
    asked = parser.parse_args()
    # An installed nvrun is compiled; from a checkout the first run does it, where nothing forbids that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="nvrun-bench-", dir="/tmp") as folder:
        if asked.inside:
            inside(asked.runs, folder)
            return 0
        if reason := why_not() or slurm.why_not():
            print(reason, file=sys.stderr)
            return 1
        Path(folder).chmod(0o777)
        with Lab() as lab:
            slurm.start(lab)
            argv = [sys.executable, "-m", "tests.bench.slurm", "--inside", "--runs", str(asked.runs)]
            allocation = ["salloc", "--nodes=2", "--exclusive", "--quiet"]
            with lab.popen([*allocation, *argv], cwd=REPOSITORY, stdout=None, stderr=None) as running:
                return running.wait()


if __name__ == "__main__":
    sys.exit(main())
