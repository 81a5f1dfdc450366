"""`python -m tests.lab.faults [WORDS]`: the whole matrix, nvrun and bare torchrun, as the table of the README. By hand.

WORDS: only faults whose name has them.
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
from pathlib import Path

from tests.lab import faults, slurm
from tests.lab.faults import setting
from tests.lab.faults.matrix import MATRIX, PATIENCE, Fault, Seen, suffer, suffer_bare
from tests.lab.lab import Lab, why_not

HEAD = "| what happens | nvrun says | exit | clean after s | torchrun: exit | clean after s |"


def main() -> int:
    if reason := why_not() or slurm.why_not():
        print(reason, file=sys.stderr)
        return 1
    wanted = " ".join(sys.argv[1:])
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    load = os.getloadavg()[0]
    print(f"{today}, {os.cpu_count()} cores, load {load:.0f} at the start, oldest Python {setting.old_python()}\n")
    print(f"{HEAD}\n|---|---|---|---|---|---|")
    failed = 0
    with Lab() as lab:
        slurm.start(lab)
        for fault in (each for each in MATRIX if wanted in each.what):
            try:
                print(row(lab, fault), flush=True)
            except (AssertionError, OSError) as error:
                failed += 1
                print(f"| {fault.what} | FAILED: {' '.join(str(error).split())[:300]} | | | | |", flush=True)
    return int(failed > 0)


def row(lab: Lab, fault: Fault) -> str:
    if fault.stuck and (reason := faults.why_no_group("freezer")):
        return f"| {fault.what} | not tried: {reason} | | | | |"
    with tempfile.TemporaryDirectory(prefix="nvrun-faults-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        seen = suffer(lab, Path(name), fault)
    cells = [fault.what, shown(seen.said), code(fault, seen), f"{seen.seconds:.1f}"]
    if not fault.bare:
        return f"| {' | '.join([*cells, '', ''])} |"
    with tempfile.TemporaryDirectory(prefix="nvrun-faults-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        bare = suffer_bare(lab, Path(name), fault)
    after = f"not in {PATIENCE:.0f}" if bare.seconds is None else f"{bare.seconds:.1f}"
    exits = "still there" if bare.seconds is None and bare.code == -9 else str(bare.code)
    return f"| {' | '.join([*cells, exits + (f', {bare.said}' if bare.said else ''), after])} |"


def code(fault: Fault, seen: Seen) -> str:
    return "" if fault.code is None else str(seen.code)


def shown(said: str) -> str:
    """The line without what differs from run to run."""
    words = [word if not word.startswith("/tmp/") else "..." for word in said.replace("|", "/").split()]
    text = " ".join(words)
    return text if len(text) <= 110 else text[:107] + "..."


if __name__ == "__main__":
    sys.exit(main())
