"""What is left of `--check-timeout`."""

from __future__ import annotations

import time


class Clock:
    """Starts when it is made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    @property
    def reason(self) -> str:
        """Why something was not tried any more."""
        return f"--check-timeout {self.seconds:g} s had passed"
