"""`python -m tests.lab [--hosts N]`: a cluster by hand, with a shell on its launcher."""

from __future__ import annotations

import argparse
import string
import sys
import time
from pathlib import Path

from .lab import PATH, REPOSITORY, USER, Lab, why_not


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("--hosts", type=int, default=3, metavar="N", help="how many hosts (3)")
    parser.add_argument("--ipv6", action="store_true", help="IPv6 addresses only")
    parser.add_argument("--split", action="store_true", help="no shared file system, own pid namespaces")
    parser.add_argument("--user", default="root", choices=["root", USER], help="who you are in the shell (root)")
    options = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    started = time.monotonic()
    with Lab(names(options.hosts), ipv6=options.ipv6, split=options.split, own_pids=options.split) as lab:
        print(f"{len(lab.hosts)} hosts up in {time.monotonic() - started:.1f} s: {' '.join(lab.hosts)}")
        print(f"You are {options.user} on the launcher. Try: ssh {lab.hosts[-1]} hostname")
        print(f"Without ssh: {lab.rsh}. Leaving this shell ends the lab.")
        path = {"PATH": f"{Path(sys.executable).parent}:{PATH}"}  # nvrun beside this interpreter
        shell = lab.popen(
            ["bash", "-i"], user=options.user, env=path, cwd=REPOSITORY, stdin=None, stdout=None, stderr=None
        )
        return shell.wait()


def names(count: int) -> list[str]:
    """a, b, c, ... as long as the alphabet lasts, else gpu001, gpu002, ..."""
    return list(string.ascii_lowercase[:count]) if count <= 26 else [f"gpu{i:03}" for i in range(1, count + 1)]


if __name__ == "__main__":
    sys.exit(main())
