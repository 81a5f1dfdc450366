"""The job scripts of examples/slurm as a user submits them, with the lab's numbers in place of a cluster's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import faults
from tests.lab.lab import Lab, wait_for
from tests.slurm.batch import REPOSITORY, Batch

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SMALL = ("--gres=gpu:2", "--cpus-per-task=4", "--mem=100", "--time=10", "--oversubscribe")


@contextmanager
def example(lab: Lab, place: Path, name: str, *arguments: str, nodes: int) -> Iterator[Batch]:
    """Submitted from a project that has the examples and a virtual environment."""
    if not Path(sys.prefix, "bin/activate").exists():
        pytest.skip("the examples activate a virtual environment, and this Python has none")
    (place / ".venv").symlink_to(sys.prefix)
    (place / "examples").symlink_to(REPOSITORY / "examples")
    argv = ["sbatch", "--parsable", f"--nodes={nodes}", *SMALL, f"--output={place}/out", "--open-mode=append"]
    done = lab.run([*argv, f"examples/slurm/{name}.sbatch", *arguments], cwd=place, check=True)
    job = Batch(lab, place, done.stdout.strip())
    try:
        yield job
    finally:
        if job.state:
            job.cancel()
            wait_for(lambda: not job.state, f"end of job {job.id}", 60)


@pytest.mark.parametrize(("name", "nodes"), [("one_node", 1), ("under_srun", 2)])
def test_it_trains(slurm_lab: Lab, place: Path, name: str, nodes: int) -> None:
    with example(slurm_lab, place, name, "--steps", "5", nodes=nodes) as job:
        output = job.wait()
    assert job.code == 0, output
    # Two ranks a node under srun, one for each GPU that Slurm says it gave; in a script nvrun looks for real ones.
    assert re.search(r"a:0: \d ranks, gloo, loss=", output), output


def test_many_nodes_take_the_spare(slurm_lab: Lab, place: Path) -> None:
    with (
        faults.name_to_loopback(slurm_lab, "a"),
        example(slurm_lab, place, "many_nodes", "--steps", "2", "--dim", "16", nodes=3) as job,
    ):
        output = job.wait()
    assert job.code == 0, output
    assert "without a: starting again on b, c" in output
    assert "loss=" in output


def test_preemptible_goes_on_where_it_was(slurm_lab: Lab, place: Path) -> None:
    tiny = ("--dim", "16", "--samples", "64", "--pause", "0.05")
    with example(slurm_lab, place, "preemptible", *tiny, nodes=2) as job:
        job.until(lambda: "from the start" in job.output, "first try")
        job.cancel("--signal=USR1", "--batch")
        job.until(lambda: "Restarts=1" in job.show(), "requeue")
        assert "saved at step" in job.output
        job.start_now()
        job.until(lambda: re.search(r"ranks, from .*step", job.output) is not None, "second try")
