"""The live preflight table: one row a host while hosts are reached and looked at, gone when that is done.

Only for a terminal. More hosts than fit are counted by stage instead.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.table import Table

ROWS = 24
"""Hosts that have a row of their own."""
LATE_SECONDS = 0.5
"""A preflight that is over sooner shows nothing: a table that flashes tells nobody anything."""

WORDS = {
    "connecting": "connecting",
    "step": "waiting for Slurm's step",
    "connected": "connected, its shell starts",
    "shell": "shell runs",
    "setup": "set-up runs",
    "in": "container starts",
    "python": "Python starts",
    "hello": "agent answers, facts are read",
    "facts": "facts read",
    "unreachable": "not reached",
}


class Watch(Protocol):
    """Is told how far each host is."""

    def __call__(self, host: int, stage: str) -> None: ...


def nobody(host: int, stage: str) -> None:
    """The watch where there is no terminal."""


def rows(names: Sequence[str], stages: Sequence[str], seconds: Sequence[float]) -> list[tuple[str, str, str]]:
    """(host, stage in words, seconds in it); for many hosts (number of hosts, stage, "")."""
    words = [WORDS.get(stage, stage) for stage in stages]
    if len(names) <= ROWS:
        return [(name, word, f"{took:.1f} s") for name, word, took in zip(names, words, seconds, strict=True)]
    counted = Counter(words)
    return [
        (f"{counted[word]} host{'s' * (counted[word] > 1)}", word, "")
        for word in dict.fromkeys(WORDS.values())
        if counted[word]
    ]


@contextmanager
def shown(names: Sequence[str]) -> Iterator[Watch]:
    """The table on standard error while the block runs, if that is a terminal."""
    if not sys.stderr.isatty():
        yield nobody
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    stages = ["connecting"] * len(names)
    since = [time.monotonic()] * len(names)
    begun = time.monotonic()

    def table() -> Table:
        grid = Table.grid(padding=(0, 2))
        if time.monotonic() - begun >= LATE_SECONDS:
            now = time.monotonic()
            for row in rows(names, stages, [now - each for each in since]):
                grid.add_row(*row)
        return grid

    def watch(host: int, stage: str) -> None:
        stages[host], since[host] = stage, time.monotonic()

    with Live(get_renderable=table, console=Console(stderr=True), refresh_per_second=8, transient=True):
        yield watch
