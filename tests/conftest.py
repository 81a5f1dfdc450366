"""Fixtures that several families of tests share: clusters made by tests/lab."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))  # `tests.lab` is found whichever way pytest was started

from tests.lab import slurm
from tests.lab.lab import Lab, why_not

settings.register_profile("suite", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a slow test come first: a long one that began last would find the other cores idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def own_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests stay out of the user's own list of runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def heard_interrupts() -> None:
    """What a shell starts in the background ignores Ctrl-C, and a program that is tested would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips, with the reason, where the lab cannot be made."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab(namespaces: None) -> Iterator[Lab]:
    """Three healthy hosts a, b, c. Shared: leave it as it was."""
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="session")
def slurm_lab(namespaces: None) -> Iterator[Lab]:
    """Three hosts a, b, c that are nodes of a Slurm of their own. Shared: leave it as it was, with no job in it."""
    if reason := slurm.why_not():
        pytest.skip(reason)
    with Lab() as lab:
        slurm.start(lab)
        yield lab


@pytest.fixture
def make_lab(namespaces: None) -> Iterator[Callable[..., Lab]]:
    """Special clusters: `make_lab(["a", "b"], ipv6=True)`; ended with the test."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Lab:
            return stack.enter_context(Lab(*arguments, **options))

        yield make
