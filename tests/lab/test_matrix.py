"""Faults of the matrix that take a moment; the others are run by hand (README)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import faults
from tests.lab.faults import setting
from tests.lab.faults.matrix import MATRIX, Fault, suffer
from tests.lab.lab import Lab

pytestmark = pytest.mark.lab


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of all hosts and users."""
    with tempfile.TemporaryDirectory(prefix="nvrun-faults-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.parametrize("fault", [each for each in MATRIX if not each.by_hand], ids=lambda fault: fault.what)
def test_it_is_named_and_leaves_nothing(fault: Fault, lab: Lab, place: Path) -> None:
    if fault.stuck and (reason := faults.why_no_group("freezer")):
        pytest.skip(reason)
    if setting.other_python in fault.around and not setting.old_python():
        pytest.skip("no older Python here")
    suffer(lab, place, fault)
