"""The processes that tests of this family share end with their module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.gather import close_servers


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    yield
    close_servers()
