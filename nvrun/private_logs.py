"""Logs of hosts that do not share the run's folder, brought there once their ranks have ended."""

from __future__ import annotations

import time
from collections.abc import Collection

from nvrun.fleet.crew import Crew
from nvrun.rundir import RunFolder

_SILENT_SECONDS = 60.0
"""Without a byte for so long, fetching a host's logs is given up."""


class PrivateLogs:
    """Which hosts still have theirs, and the bytes on their way here."""

    def __init__(self, crew: Crew, folder: RunFolder) -> None:
        self.private: dict[int, str] = {}
        """Host -> the folder of its own that still holds its logs."""
        self._crew, self._folder = crew, folder
        self._heard_at: dict[int, float] = {}
        self._gone: dict[int, str] = {}
        """Host -> why it was heard no more, before its logs had been brought here."""
        self._brought = False
        self._asked: set[int] = set()
        self._unread: dict[int, list[str]] = {}
        """Host -> `FILE (reason)` of what could not be read there."""
        self._left: list[str] = []
        """`HOST:FOLDER/FILE (reason)` of hosts whose other files came."""

    def bring(self, hosts: Collection[int]) -> None:
        """Fetches those of `hosts`; what does not come stays where it is. Ctrl-C meanwhile ends it."""
        crew = self._crew
        waiting = (self.private.keys() & hosts) - crew.gone
        self._heard_at = dict.fromkeys(waiting, time.monotonic())
        crew.send({"t": "fetch"}, to=waiting)
        self._asked |= waiting
        asked = crew.signals
        while waiting and crew.signals == asked:
            crew.pump(time.monotonic() + 1.0)
            waiting -= self._folder.unfetched.keys()
            told = {host for host in waiting if crew.take(host, "fetched")}
            for host in told:
                self._folder.end_file(host)
                where = f"{crew.names[host]}:{self.private.pop(host)}"
                self._left += [f"{where}/{file}" for file in self._unread.get(host, ())]
            if whole := told - self._unread.keys():
                crew.send({"t": "remove"}, to=whole)
            now = time.monotonic()
            waiting -= told | crew.gone | {host for host in waiting if now - self._heard_at[host] > _SILENT_SECONDS}
        for host, why in self._folder.unfetched.items():
            crew.say(f"nvrun: logs of {crew.names[host]} could not be written here: {why}")
        self._brought = True

    def begin_file(self, host: int, path: str) -> None:
        """The next bytes of `host` are of this file."""
        self._folder.begin_file(host, self._crew.names[host], path)

    def unread(self, host: int, path: str, why: str) -> None:
        """The host cannot read this file, or not to its end: it stays there, and so does the folder."""
        self._folder.end_file(host)
        self._unread.setdefault(host, []).append(f"{path} ({why})")

    def lost(self, host: int, why: str) -> None:
        """The host is heard no more. Once all is brought its link ends as it should."""
        if not self._brought:
            self._gone[host] = why

    def append(self, host: int, data: bytes) -> None:
        self._heard_at[host] = time.monotonic()
        self._folder.append(host, data)

    def not_fetched(self, *, begun: bool) -> tuple[str, ...]:
        """`HOST:FOLDER (reason, if known)`, or `HOST:FOLDER/FILE (reason)`, of what still lies there. Where no rank had
        `begun`, hosts that were not asked keep nothing."""
        private = {host: path for host, path in sorted(self.private.items()) if begun or host in self._asked}
        return (*(f"{self._crew.names[host]}:{path}{self._why(host)}" for host, path in private.items()), *self._left)

    def _why(self, host: int) -> str:
        return f" ({self._gone[host]})" if host in self._gone else ""
