"""Restarts and elastic jobs over two hosts, under nvrun and under bare torchrun, side by side.

python -m tests.flags.recovery      # prints the table of tests/lab/README.md, as measured here and now; about 5 minutes

Bare torchrun is typed on both hosts, as its manual says: c10d, the endpoint on a, and otherwise the flags that nvrun
gets. What has not ended within `BOUND` is given up and killed.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from tests.flags.steps import losses
from tests.lab import faults
from tests.lab.lab import Lab, why_not
from tests.spine.jobs import NVRUN, lives

SCRIPT = Path(__file__).with_name("steps.py")
STEPS, AT = 12, 5
"""Steps of the training, and the one after which it happens."""
BOUND = 90.0
"""Seconds from what happened."""
SOON = "join_timeout=60,last_call_timeout=3"
"""--rdzv-conf of the elastic cases: how long a rendezvous waits for a host that may come back (30 s by default)."""


class Case(NamedTuple):
    """What happens to a running job, which is then to come to its end."""

    what: str
    events: Sequence[str]
    """As steps.py has them."""
    flags: Sequence[str]
    """The same for nvrun and for torchrun."""
    hosts: str = "ab"
    plug: str = ""
    """This host loses its network and all its processes at once, as a machine without power does."""


ELASTIC = ("--nnodes", "1:2", "--max-restarts", "3", "--nproc-per-node", "2", "--rdzv-conf", SOON)
CASES = (
    Case("a rank of b dies once", ["die:b"], ("--nnodes", "2", "--max-restarts", "1", "--nproc-per-node", "2")),
    Case("kill -9 of b's torchrun", ["kill-torchrun:b"], ELASTIC),
    Case("b loses power", ["wait:b"], ELASTIC, plug="b"),
)


class Step(NamedTuple):
    """A line of steps.log."""

    at: float
    step: int
    loss: str
    ranks: int
    attempt: int


class Outcome(NamedTuple):
    """What was seen."""

    steps: tuple[Step, ...]
    codes: tuple[int | None, ...]
    """Exit codes: nvrun's; or torchrun's on a and on b. None = did not end in time."""
    seconds: float
    """From what happened to the end."""
    recovered: float | None
    """Seconds from what happened to the next step that was done; None where none was."""
    behind: tuple[tuple[str, str], ...]
    """Host and command of what was alive on hosts a second after the end."""
    said: str

    @property
    def losses_begin_right(self) -> bool:
        """Each step was done once and in order, with the loss of an undisturbed training."""
        done = [(step.step, step.loss) for step in self.steps]
        return done == [*enumerate(losses(STEPS), 1)][: len(done)]

    @property
    def losses_right(self) -> bool:
        """And to the last."""
        return len(self.steps) == STEPS and self.losses_begin_right


def lines(case: Case, bare: bool, lab: Lab, folder: Path) -> dict[str, list[str]]:
    """Place -> what is typed there."""
    script = [str(SCRIPT), str(folder), str(STEPS), str(AT), *case.events]
    if not bare:
        return {"launcher": [*NVRUN, "--hosts", ",".join(case.hosts), "--run-dir", str(folder), *case.flags, *script]}
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.address('a')}:29400", "--rdzv-id", folder.name]
    typed = [sys.executable, "-m", "torch.distributed.run", *case.flags, *meet, *script]
    return dict.fromkeys(case.hosts, typed)


def suffer(lab: Lab, case: Case, folder: Path, *, bare: bool, bound: float = BOUND) -> Outcome:
    """Runs the case in a folder that both hosts share; nothing is left on the hosts afterwards."""
    event, typed = folder / "event", lines(case, bare, lab, folder)
    with ExitStack() as stack:
        said = stack.enter_context((folder / "output").open("w+"))
        stack.callback(end_all, lab, case.hosts)
        jobs = [stack.enter_context(lab.popen(line, place=at, stdout=said, stderr=said)) for at, line in typed.items()]
        for job in jobs:
            stack.callback(job.kill)

        def over() -> bool:
            return all(job.poll() is not None for job in jobs)

        until(lambda: event.exists() or over(), time.monotonic() + bound)
        if case.plug:
            stack.enter_context(faults.cut(lab, case.plug))
            end_all(lab, case.plug)
        until(over, time.monotonic() + bound)
        ended, codes = time.time(), tuple(job.poll() for job in jobs)
        time.sleep(1.0)
        behind = tuple((host, " ".join(p.argv)) for host in case.hosts for p in lab.processes(host) if lives(p.pid))
    steps = read(folder / "steps.log")
    happened = event.stat().st_mtime if event.exists() else ended
    after = [step.at for step in steps if step.step > AT]
    recovered = min(after) - happened if after else None
    return Outcome(steps, codes, ended - happened, recovered, behind, (folder / "output").read_text())


def until(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def end_all(lab: Lab, hosts: Sequence[str]) -> None:
    """kill -9 of everything that was started on these hosts."""
    for host in hosts:
        for pid in lab.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def read(log: Path) -> tuple[Step, ...]:
    rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return tuple(Step(float(at), int(step), loss, int(ranks), int(attempt)) for at, step, loss, ranks, attempt in rows)


def row(case: Case, program: str, outcome: Outcome) -> str:
    """A line of the table."""
    last = outcome.steps[-1] if outcome.steps else None
    behind = [f"{sum(1 for place, _ in outcome.behind if place == host)} on {host}" for host in case.hosts]
    cells = [
        case.what,
        program,
        f"{last.step if last else 0} of {STEPS}, {last.ranks if last else 0} ranks",
        "right" if outcome.losses_right else "not all there" if outcome.losses_begin_right else "WRONG",
        "never" if outcome.recovered is None else f"{outcome.recovered:.1f}",
        f"{outcome.seconds:.1f}" if None not in outcome.codes else f"not in {outcome.seconds:.0f}",
        ", ".join("none" if code is None else str(code) for code in outcome.codes),
        ", ".join(text for text in behind if not text.startswith("0 ")) or "nothing",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    print(f"{today}, {os.cpu_count()} cores, torch {torch.__version__}.\n")
    print("| what happens | under | steps | losses | next step after | ended after | exit codes | left behind |")
    print("|---|---|---|---|---|---|---|---|")
    with Lab(["a", "b"]) as lab:
        for case in CASES:
            for program in ("nvrun", "torchrun"):
                with tempfile.TemporaryDirectory(dir="/tmp") as name:
                    outcome = suffer(lab, case, Path(name), bare=program == "torchrun")
                    print(row(case, program, outcome), flush=True)
                    if "-v" in sys.argv[1:]:
                        print(outcome.said, *outcome.behind, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
