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

    def bring(self, hosts: Collection[int]) -> None:
        """Fetches those of `hosts`; what does not come stays where it is. Ctrl-C meanwhile ends it."""
        crew = self._crew
        waiting = (self.private.keys() & hosts) - crew.gone
        self._heard_at = dict.fromkeys(waiting, time.monotonic())
        crew.send({"t": "fetch"}, to=waiting)
        asked = crew.signals
        while waiting and crew.signals == asked:
            crew.pump(time.monotonic() + 1.0)
            waiting -= self._folder.unfetched.keys()
            whole = {host for host in waiting if crew.take(host, "fetched")}
            for host in whole:
                self._folder.end_file(host)
                del self.private[host]
            if whole:
                crew.send({"t": "remove"}, to=whole)
            now = time.monotonic()
            waiting -= whole | crew.gone | {host for host in waiting if now - self._heard_at[host] > _SILENT_SECONDS}
        for host, why in self._folder.unfetched.items():
            crew.say(f"nvrun: logs of {crew.names[host]} could not be written here: {why}")

    def begin_file(self, host: int, path: str) -> None:
        """The next bytes of `host` are of this file."""
        self._folder.begin_file(host, self._crew.names[host], path)

    def append(self, host: int, data: bytes) -> None:
        self._heard_at[host] = time.monotonic()
        self._folder.append(host, data)

    def not_fetched(self) -> tuple[str, ...]:
        """`HOST:FOLDER` of what still lies there."""
        return tuple(f"{self._crew.names[host]}:{path}" for host, path in sorted(self.private.items()))
