"""Where Slurm's tests put what jobs write, and one job that runs into its time limit while the others are tested."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.slurm.batch import Batch, listening, submitted


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user and every host may write to, under one name for all of them."""
    with tempfile.TemporaryDirectory(prefix="nvrun-slurm-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(scope="session")
def limited(slurm_lab: Lab) -> Iterator[Batch]:
    """A job on half of host c with Slurm's shortest time limit, a minute, and USR1 before it."""
    with tempfile.TemporaryDirectory(prefix="nvrun-slurm-", dir="/tmp") as name:
        flags = ("--nodelist=c", "--cpus-per-task=2", "--mem=100", "--time=1", "--signal=USR1@40")
        # At the end of the session the lab goes, and all of its Slurm with it: a job that is slow to go is no matter.
        with (
            suppress(TimeoutError),
            submitted(slurm_lab, Path(name), listening(Path(name), "--nproc-per-node 2"), *flags) as job,
        ):
            yield job


@pytest.fixture(autouse=True)
def _meanwhile(request: pytest.FixtureRequest) -> None:
    """The first test that needs Slurm starts the clock of `limited`."""
    if "slurm_lab" in request.fixturenames:
        request.getfixturevalue("limited")
