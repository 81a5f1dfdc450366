"""What Slurm sends: every rank gets it once, with time to save, and nothing is left."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.lab import Lab, wait_for
from tests.slurm.batch import RANK, STEP, Batch, listening, submitted
from tests.spine.jobs import lives

pytestmark = pytest.mark.lab

NODES = ("--nodes=2", "--cpus-per-task=4", "--mem=100")


def told(place: Path, rank: int) -> list[str]:
    """The signals that a rank got, and how it ended."""
    path = place / str(rank)
    return path.read_text().split("\n")[1:-1] if path.exists() else []


@pytest.fixture(scope="module", autouse=True)
def limited(slurm_lab: Lab) -> Iterator[Batch]:
    """A job on half of host c with Slurm's shortest time limit, a minute, and USR1 before it: the others are tested
    meanwhile."""
    with tempfile.TemporaryDirectory(prefix="nvrun-slurm-", dir="/tmp") as name:
        flags = ("--nodelist=c", "--cpus-per-task=2", "--mem=100", "--time=1", "--signal=USR1@40")
        with (
            suppress(TimeoutError),  # one that is slow to go is no matter: the lab's end is its end
            submitted(slurm_lab, Path(name), listening(Path(name), "--nproc-per-node 2"), *flags) as job,
        ):
            yield job


def running(job: Batch, ranks: int) -> None:
    job.until(lambda: all((job.place / str(rank)).exists() for rank in range(ranks)), "all ranks up")


@pytest.mark.parametrize("step", ["exec", "exec " + STEP], ids=["script", "srun"])
def test_usr1_and_scancel_reach_each_rank_once(slurm_lab: Lab, place: Path, step: str) -> None:
    with submitted(slurm_lab, place, listening(place, "--nproc-per-node 2", step), *NODES) as job:
        running(job, 4)
        job.cancel("--signal=USR1")
        job.until(lambda: all("SIGUSR1" in told(place, rank) for rank in range(4)), "USR1 in every rank")
        processes = [process.pid for host in "ab" for process in slurm_lab.processes(host, str(place))]
        assert len(processes) >= 8, "ranks and torchruns at least"
        job.cancel()
        job.wait()
        assert [told(place, rank) for rank in range(4)] == [["SIGUSR1", "SIGTERM", "saved"]] * 4
        wait_for(lambda: not any(lives(pid) for pid in processes), "end of every process", 5)


def test_a_signal_for_nvrun_alone_is_handed_on(slurm_lab: Lab, place: Path) -> None:
    """`--signal=B:USR1` reaches the script, which passes it to nvrun: the ranks do not get it from Slurm."""
    with submitted(slurm_lab, place, listening(place, "--nproc-per-node 1"), *NODES) as job:
        running(job, 2)
        job.cancel("--signal=USR2", "--batch")
        job.until(lambda: all("SIGUSR2" in told(place, rank) for rank in range(2)), "USR2 in every rank")
        job.cancel("--signal=TERM", "--batch")
        job.wait()
    assert [told(place, rank) for rank in range(2)] == [["SIGUSR2", "SIGTERM", "saved"]] * 2
    assert job.code == 128 + signal.SIGTERM


def test_silence_ends_the_ranks_when_srun_and_its_shepherd_are_killed(slurm_lab: Lab, place: Path) -> None:
    """The tasks' input stays open then: only the missing heartbeat tells them."""
    flags = "--nproc-per-node 1 --lost-after 4"
    with submitted(slurm_lab, place, listening(place, flags), *NODES) as job:
        running(job, 2)
        sruns = [process for process in slurm_lab.processes("a") if Path(process.argv[0]).name == "srun"]
        assert len(sruns) == 2, "srun and its shepherd"
        ranks = [process.pid for host in "ab" for process in slurm_lab.processes(host, str(RANK))]
        for process in sorted(sruns, key=lambda process: -process.pid):  # the shepherd first: it would end the step
            os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not any(lives(pid) for pid in ranks), "end of the ranks", 20)
        output = job.wait()
    assert job.code == 69
    assert "srun's step on all 2 nodes ended while its ranks ran" in output


@pytest.mark.slow
def test_the_time_limit_leaves_time_for_a_checkpoint(limited: Batch) -> None:
    """Slurm 22.05 itself sends TERM twice within 5 ms; nvrun adds none."""
    limited.wait(150)
    for rank in range(2):
        first, *terms, last = told(limited.place, rank)
        assert (first, last) == ("SIGUSR1", "saved"), limited.output
        assert 1 <= len(terms) <= 2
        assert set(terms) == {"SIGTERM"}
    assert "TIME LIMIT" in limited.output
