"""Everything that can end a run, and how long what lives on: the cases of test_ends.py, and a table of them.

python -m tests.spine.ends        # prints the table of tests/lab/README.md, as measured here and now
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import faults, slurm
from tests.lab.lab import Lab, why_not
from tests.spine.jobs import NVRUN, Job, Watched, Way, job, result, signal_group


class End(NamedTuple):
    """One way to end a run of 2 x 2 quiet ranks, each with a daemon left behind unless `actions` says otherwise."""

    what: str
    happens: Callable[[Job], Any]
    code: int | None
    """nvrun's exit code; None where it was killed itself (salloc then says 0), or nobody is told."""
    ended_by: str | None
    """In result.json; None where nobody was left to write it."""
    within: float
    """Seconds in which everything of the run must be gone from every host."""
    words: tuple[str, ...] = ()
    """What nvrun says at the end, on stderr."""
    way: Way = "ssh"
    actions: Sequence[str] = ("daemon", "sleep")
    flags: Sequence[str] = ()
    not_before: float = 0.0
    """Seconds that the ranks of host b must live on."""
    also: Callable[[Job], object] | None = None
    """Looks at what only this end leaves; raises AssertionError."""
    looked_back: str = ""
    """How what `nvrun diagnose` says begins, as a pattern, for a run that did not fail: it has no cause then."""


class Outcome(NamedTuple):
    """What was seen."""

    watched: Watched
    code: int
    stderr: str
    result: dict[str, Any] | None
    looked_back: str


def kill(host: str, name: str, number: int = signal.SIGKILL) -> Callable[[Job], None]:
    """A signal to the one process of that kind on that host."""
    return lambda job: os.kill(job.one(host, name).pid, number)


def kill_nvrun(job: Job) -> None:
    os.kill(job.nvrun().pid, signal.SIGKILL)


def kill_a_rank(job: Job) -> None:
    os.kill(job.processes("b")["rank"][0].pid, signal.SIGKILL)


def kill_sshd(job: Job) -> None:
    """The process that holds the connection's channel, and with it the agent's standard input."""
    os.kill(job.one("b", "keeper").parent, signal.SIGKILL)


def kill_srun(job: Job) -> None:
    """The one that nvrun started; its shepherd is a child of it."""
    nvrun = job.nvrun()
    (srun,) = (process for process in job.lab.processes("launcher") if process.parent == nvrun.pid)
    assert Path(srun.argv[0]).name == "srun"
    os.kill(srun.pid, signal.SIGKILL)


def ctrl_c(job: Job) -> None:
    signal_group(job.nvrun(), signal.SIGINT)


def ctrl_c_twice(job: Job) -> None:
    ctrl_c(job)
    time.sleep(1.0)
    assert len(job.processes("b")["rank"]) == 2, "deaf ranks have --grace seconds after the first Ctrl-C"
    ctrl_c(job)


def terminate(job: Job) -> None:
    os.kill(job.nvrun().pid, signal.SIGTERM)


def saved(job: Job) -> None:
    """Every rank came to the end of its checkpoint."""
    assert all((job.place / f"ready.{rank}.saved").exists() for rank in range(4))


def cancel(job: Job) -> None:
    job.lab.run(["sh", "-c", "scancel $(squeue --noheader --format=%i)"], check=True)


def cut_for_good(job: Job) -> None:
    """First for six seconds, which the job survives."""
    with faults.cut(job.lab, "b"):
        time.sleep(6.0)
        assert len(job.processes("b")["rank"]) == 2
    time.sleep(3.0)
    assert len(job.processes("b")["rank"]) == 2
    cable = faults.cut(job.lab, "b")
    cable.__enter__()
    job.mend = lambda: cable.__exit__(None, None, None)


FAILED = ("rank 3 on b (local rank 1)", "ValueError: this rank fails on purpose")
KILLED, CTRL_C = "Its launcher was killed", r"It was ended by Ctrl-C \(SIGINT to nvrun\)"
ENDS = (
    End("a rank exits with 37", Job.go, 37, "rank", 5.0, (*FAILED, "exited with 37"),
        actions=("daemon", "wait", "fail:3:37", "sleep")),
    End("same, all ranks ignore SIGTERM, --grace 3", Job.go, 37, "rank", 5.0, (*FAILED, "exited with 37"),
        actions=("deaf", "daemon", "wait", "fail:3:37", "sleep"), flags=("--grace", "3")),
    End("kill -9 of a rank", kill_a_rank, 137, "rank", 5.0, ("on b (local rank", "was killed by SIGKILL")),
    End("kill -9 of torchrun", kill("b", "torchrun"), 137, "torchrun", 5.0,
        ("torchrun on b was killed by SIGKILL", "Cause (almost certain, 90%): on b", "look who sent it")),
    End("kill -9 of the supervisor", kill("b", "supervisor"), 69, "lost", 5.0, ("lost b",)),
    End("kill -9 of the keeper", kill("b", "keeper"), 69, "lost", 5.0, ("lost b",)),
    End("kill -9 of the connection's sshd", kill_sshd, 69, "lost", 5.0, ("lost b",)),
    End("kill -9 of nvrun", kill_nvrun, None, None, 5.0, looked_back=KILLED),
    End("same, all ranks ignore SIGTERM", kill_nvrun, None, None, 5.0, actions=("deaf", "daemon", "sleep"),
        looked_back=KILLED),
    End("Ctrl-C", ctrl_c, 130, "signal", 5.0, ("ended by SIGINT",), looked_back=CTRL_C),
    End("Ctrl-C twice, all ranks ignore SIGTERM", ctrl_c_twice, 130, "signal", 5.0, ("SIGINT again: now",),
        actions=("deaf", "daemon", "sleep"), looked_back=CTRL_C),
    End("SIGTERM, the checkpoint takes 8 s", terminate, 143, "signal", 13.0, ("ended by SIGTERM",),
        actions=("checkpoint:8", "daemon", "sleep"), not_before=8.0, also=saved,
        looked_back="It was ended by SIGTERM to nvrun: a person"),
    End("b's cable is cut, --lost-after 10", cut_for_good, 69, "lost", 15.0,
        ("lost b: nothing heard for", "nvrun check --hosts b, and"),
        flags=("--lost-after", "10"), not_before=7.9),
    End("kill -9 of nvrun", kill_nvrun, None, None, 5.0, way="rsh", looked_back=KILLED),
    End("a rank exits with 37", Job.go, 37, "rank", 5.0, (*FAILED, "exited with 37"), way="srun",
        actions=("daemon", "wait", "fail:3:37", "sleep")),
    End("kill -9 of nvrun", kill_nvrun, None, None, 5.0, way="srun", looked_back=KILLED),
    End("kill -9 of srun", kill_srun, 69, "lost", 5.0, ("srun's step on all 2 nodes ended while its ranks ran",),
        way="srun"),
    End("scancel of the batch job", cancel, None, "signal", 5.0, way="sbatch",
        looked_back=r"It was ended by SIGTERM to nvrun.*: scancel of job \d+, a time limit"),
)  # fmt: skip


def suffer(lab: Lab, place: Path, end: End) -> Outcome:
    """Starts the run, lets it happen, watches. AssertionError where `end` does not hold."""
    with job(lab, place, end.actions, way=end.way, flags=end.flags) as running:
        before = {host: running.processes(host) for host in running.hosts}
        for host, kinds in before.items():
            assert {"rank", "torchrun", "supervisor", "keeper"} <= set(kinds), (host, kinds)
        try:
            end.happens(running)
            watched = running.watch(before, within=end.within)
        finally:
            running.mend()
        code, _, stderr = running.finish()
        if end.also:
            end.also(running)
    ranks = min(watched.gone["b"]["rank"], watched.gone["b"].get("daemon", float("inf")))
    assert ranks >= end.not_before, f"the ranks of b lived for {ranks:.1f} s only"
    assert end.code in (None, code), f"nvrun ended with {code}: {stderr}"
    told = result(place) if end.ended_by else None
    looked_back = lab.run([*NVRUN, "diagnose", place / "runs" / "latest"]) if end.looked_back else None
    assert looked_back is None or looked_back.returncode == 0, looked_back.stdout + looked_back.stderr
    return Outcome(watched, code, stderr, told, looked_back.stdout if looked_back else "")


def row(end: End, outcome: Outcome) -> str:
    """A line of the table."""
    cells = [end.what, end.way]
    for host in ("a", "b"):
        gone = outcome.watched.gone[host]
        ranks = max(seconds for name, seconds in gone.items() if name in ("rank", "daemon"))
        cells += [f"{ranks:.1f}", f"{max(gone.values()):.1f}"]
    return (
        "| "
        + " | ".join([*cells, f"{outcome.watched.nvrun:.1f}", "" if end.code is None else str(outcome.code)])
        + " |"
    )


def main() -> int:
    if reason := why_not() or slurm.why_not():
        print(reason, file=sys.stderr)
        return 1
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    print(f"{today}, {os.cpu_count()} cores. Seconds until nothing was left: ranks and their daemons / everything.\n")
    print("| what happens | way | a: ranks | a: all | b: ranks | b: all | nvrun ended | exit |")
    print("|---|---|---|---|---|---|---|---|")
    with Lab() as lab:
        slurm.start(lab)
        for end in ENDS:
            with tempfile.TemporaryDirectory(dir="/tmp") as name:
                print(row(end, suffer(lab, Path(name), end)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
