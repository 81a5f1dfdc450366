"""Signals that this process gets, on their way to the crew: those that ask for an end, and those that ranks hear of."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from nvrun.fleet.session import Event, Session

TOLD_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
"""These end nothing: the ranks hear of them."""


@contextmanager
def signals_to(session: Session, noted: list[int]) -> Iterator[None]:
    """Every signal is an event of the session's, those in `noted` too, which came before it; that list grows by those
    that ask for an end."""

    def tell(number: int, frame: object) -> None:
        if number not in TOLD_RANKS:
            noted.append(number)
        session.events.put(Event(-1, "signal", number))

    with _signals(tell):
        for number in tuple(noted):
            session.events.put(Event(-1, "signal", number))
        yield


@contextmanager
def signals_noted() -> Iterator[list[int]]:
    """The signals that ask for an end, whether a crew heard them or came too late or too early for that."""
    noted: list[int] = []
    with _signals(lambda number, frame: None if number in TOLD_RANKS else noted.append(number)):
        yield noted


@contextmanager
def _signals(tell: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    wanted = [signal.SIGINT, signal.SIGTERM, *TOLD_RANKS]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, tell) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
