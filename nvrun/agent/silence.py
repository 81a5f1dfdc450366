"""When no rank of this host has written anything for a while."""

from __future__ import annotations

import time
from typing import Callable

from .loop import Loop


class Silence:
    """Tells when the ranks have been silent for `after` seconds, and when one speaks again."""

    def __init__(self, loop: Loop, after: float, tell: Callable[[bool], None]) -> None:
        """`tell` is called with True when they fall silent, with False when that is over."""
        self._loop, self._after, self._tell = loop, after, tell
        self._silent = False
        self._heard = time.monotonic()
        loop.later(after, self._look)

    def heard(self) -> None:
        """A rank wrote something, began, or ended."""
        self._heard = time.monotonic()
        if self._silent:
            self._silent = False
            self._tell(False)
            self._loop.later(self._after, self._look)

    def _look(self) -> None:
        left = self._heard + self._after - time.monotonic()
        if left > 0:
            self._loop.later(left, self._look)
        else:
            self._silent = True
            self._tell(True)
