"""Where Slurm's tests put what jobs write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user and every host may write to, under one name for all of them."""
    with tempfile.TemporaryDirectory(prefix="nvrun-slurm-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)
