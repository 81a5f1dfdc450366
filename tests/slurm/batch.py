"""Batch jobs of the lab's Slurm: submitted, watched, read."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.lab import Lab, out_of_patience, wait_for

NVRUN = shlex.join([sys.executable, "-m", "nvrun"])
RANK = Path(__file__).with_name("rank.py")
REPOSITORY = Path(__file__).parents[2]
HEAD = f"#!/bin/bash\nexport PYTHONPATH={REPOSITORY} PYTHONWARNINGS=ignore TERM=dumb\n"
STEP = "srun --ntasks-per-node=1 --cpus-per-task=4"
"""How a user starts one nvrun on each node."""

OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE")


@dataclass
class Batch:
    """A submitted job."""

    lab: Lab
    place: Path
    id: str

    @property
    def state(self) -> str:
        """As Slurm words it; empty once the job is over and its nodes are free."""
        shown = re.search(r"JobState=(\w+)", self.show())
        return "" if shown and shown[1] in OVER else shown[1] if shown else "unknown"

    @property
    def output(self) -> str:
        path = self.place / "out"
        return path.read_text() if path.exists() else ""

    def wait(self, timeout: float = 60) -> str:
        """Its output, once it is over and its nodes are free."""
        try:
            wait_for(lambda: not self.state, f"end of job {self.id}", timeout)
        except TimeoutError:
            raise AssertionError(f"job {self.id} is {self.state}:\n{self.output}") from None
        return self.output

    @property
    def code(self) -> int:
        """Exit code of the script, 128+n for signal n, once the job is over."""
        (word,) = [word for word in self.show().split() if word.startswith("ExitCode=")]
        code, number = word.removeprefix("ExitCode=").split(":")
        return 128 + int(number) if number != "0" else int(code)

    def show(self) -> str:
        return self.lab.run(["scontrol", "show", "job", "--oneliner", self.id]).stdout

    def cancel(self, *options: str) -> None:
        self.lab.run(["scancel", *options, self.id], check=True)

    def start_now(self) -> None:
        """Ends the two minutes that Slurm lets a requeued job wait: they are there so that the word of the last try's
        end, which this waits for, is not taken for the next one's."""
        mark = f"SLURM_JOB_ID={self.id}"
        wait_for(lambda: not any(self.lab.pids(host, mark) for host in self.lab.hosts), "end of the last try", 40)
        time.sleep(1)
        self.lab.run(["scontrol", "update", f"JobId={self.id}", "StartTime=now"], check=True)

    def until(self, condition: Callable[[], bool], what: str, timeout: float = 40) -> None:
        """Waits, but not for a job that has ended."""
        began = time.monotonic()
        while not condition():
            if out_of_patience(began, timeout) or not self.state:
                raise AssertionError(f"{what}: not within {timeout} s, job {self.state or 'ended'}:\n{self.output}")
            time.sleep(0.1)


@contextmanager
def submitted(lab: Lab, place: Path, script: str, *options: str) -> Iterator[Batch]:
    """The script as a batch job of its own; nothing of it is left afterwards."""
    (place / "job.sh").write_text(HEAD + script + "\n")
    own = ["--parsable", f"--output={place}/out", "--open-mode=append", f"--chdir={place}"]
    done = lab.run(["sbatch", *own, *options, str(place / "job.sh")], check=True)
    job = Batch(lab, place, done.stdout.strip())
    try:
        yield job
    finally:
        if job.state:
            lab.run(["scancel", "--signal=KILL", "--full", job.id])
            lab.run(["scancel", job.id])
            wait_for(lambda: not job.state, f"end of job {job.id}", 60)


def listening(place: Path, flags: str, before: str = "exec") -> str:
    """A line of a job script that starts rank.py, whose marks are in `place`."""
    return f"{before} {NVRUN} --hook none --run-dir {place}/runs --env PLACE={place} {flags} {RANK}"
