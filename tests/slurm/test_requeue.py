"""A job goes back into the queue without its bad nodes, as often as it may and as long as there are others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvrun.errors import UsageError
from nvrun.requeue import Job, Tries, decide, exclude_option, read_job, read_usable
from tests.lab import faults
from tests.lab.lab import Lab
from tests.slurm.batch import NVRUN, submitted

JOB = Job(job_id="7", nodes=2, partition="gpu")
POOL = ("a", "b", "c", "d")


def test_nodes_as_sbatch_takes_them() -> None:
    assert exclude_option(["gpu02", "gpu01", "login"]) == "--exclude=gpu[01-02],login"


def test_the_first_requeue() -> None:
    decision = decide(limit=2, bad=["b"], earlier=Tries(), job=JOB, usable=POOL)
    assert (decision.exclude, decision.tries, decision.why_not) == (("b",), Tries(count=1, bad=("b",)), "")


def test_earlier_nodes_and_the_users_own_stay_excluded() -> None:
    job = Job(job_id="7", nodes=1, partition="gpu", excluded=("a", "b"))
    decision = decide(limit=2, bad=["c"], earlier=Tries(count=1, bad=("b",)), job=job, usable=POOL)
    assert (decision.exclude, decision.tries) == (("a", "b", "c"), Tries(count=2, bad=("b", "c")))


@pytest.mark.parametrize(
    ("bad", "earlier", "job", "why"),
    [
        ((), Tries(), JOB, "no node is at fault"),
        (("a",), Tries(count=2, bad=("b",)), JOB, "it was requeued 2 times already, and 2 are allowed"),
        (("a", "b"), Tries(count=1, bad=("c",)), JOB, "partition gpu has 1 usable nodes left of the 2 the job wants"),
        (("a",), Tries(), Job(job_id="7", nodes=2, partition="gpu", required=("a", "b")), "asks for a by name"),
    ],
)
def test_when_it_ends(bad: tuple[str, ...], earlier: Tries, job: Job, why: str) -> None:
    decision = decide(limit=2, bad=bad, earlier=earlier, job=job, usable=POOL)
    assert why in decision.why_not
    assert decision.exclude == ()


def test_what_slurm_says() -> None:
    line = "JobId=7 JobName=x Partition=gpu ReqNodeList=(null) ExcNodeList=n[1-2],m NumNodes=2-4 Comment=NumNodes=9"
    assert read_job(line) == Job(job_id="7", nodes=2, partition="gpu", excluded=("n1", "n2", "m"))
    with pytest.raises(UsageError, match="expected JobId"):
        read_job("slurm_load_jobs error: Invalid job id specified")
    assert read_usable("a idle\nb down*\nc drng\nd mix\nd mix\ne alloc\nf maint\n\n") == ("a", "d", "e")


@pytest.mark.lab
def test_requeued_without_the_bad_node_until_the_pool_is_exhausted(slurm_lab: Lab, place: Path) -> None:
    """First b is bad: the second try has a and c. Then c is bad too, and the two nodes wanted are not left."""
    script = f"{NVRUN} --hook none --run-dir {place}/runs --requeue-on-bad-node 3 --nproc-per-node 1 none.py"
    (place / "none.py").write_text("raise SystemExit('a rank ran')\n")
    asked = ("--nodes=2", "--cpus-per-task=4", "--mem=100", "--requeue")
    with (
        faults.name_to_loopback(slurm_lab, "b"),
        faults.name_to_loopback(slurm_lab, "c"),
        submitted(slurm_lab, place, script, *asked) as job,
    ):
        job.until(lambda: "Restarts=1" in job.show(), "requeue")
        job.until(lambda: "ExcNodeList=b " in job.show(), "exclusion")
        assert "requeue 1 of 3, --exclude=b\n" in job.output
        job.start_now()
        job.until(lambda: "the job is not requeued" in job.output, "second try")
        output = job.wait()
    assert job.code == 78
    assert "the job is not requeued: partition lab has 1 usable nodes left of the 2 the job wants" in output
    assert "a rank ran" not in output
    (memory,) = (place / "runs").glob(".requeue-*.json")
    assert json.loads(memory.read_text()) == {"count": 1, "bad": ["b"]}
