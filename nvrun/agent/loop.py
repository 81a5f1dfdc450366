"""One thread, one loop: everything that can happen on a host arrives here.

A single thread, because torchrun must be started from the main thread (PDEATHSIG fires when the creating *thread*
ends) and because nothing here may block: the loop's turn is what keeps ranks, heartbeat and kill chain apart.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Tuple

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Loop:
    """File descriptors, timers and signals, each with the function to call."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: List[Tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._signals: Dict[int, Callable[[], None]] = {}
        self._running = True
        self._wake, wake_end = os.pipe()
        for end in (self._wake, wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        self.watch(self._wake, READ, self._on_wake)

    def watch(self, fd: int, events: int, call: Callable[[], None]) -> None:
        """Calls `call` whenever `fd` is ready; replaces an earlier call for the same fd."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, call)
        else:
            self._selector.register(fd, events, call)

    def unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls `call` once, `seconds` from now."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), call))

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self.later(seconds, again)

        self.later(seconds, again)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Calls `call` from the loop, never from inside another callback."""
        self._signals[number] = call
        signal.signal(number, _nothing)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        """Until `stop`."""
        while self._running:
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, _ in self._selector.select(wait):
                if key.fd in self._selector.get_map():  # an earlier callback of this turn may have closed it
                    key.data()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()

    def _on_wake(self) -> None:
        for number in set(os.read(self._wake, 4096)):
            call = self._signals.get(number)
            if call:
                call()


def _nothing(number: int, frame: Any) -> None:
    """The wake-up fd has told the loop already."""
