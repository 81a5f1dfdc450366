"""Where ranks really are, asked of their hosts once they run: what is not as planned is said once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from nvrun import readback
from nvrun.fleet.crew import Crew
from nvrun.fleet.session import Body
from nvrun.model import Finding
from nvrun.plan import HostPlan

_SETTLED_SECONDS = 1.5
"""After its shim let go, a rank has long become its program."""
_AGAIN_SECONDS = 10.0
_INSPECTIONS = 30
"""How often a host's ranks are looked at until each has touched its GPU: five minutes of imports and loading."""


class Inspection:
    """When which host is asked, and what was found."""

    def __init__(self, crew: Crew) -> None:
        self.found: dict[tuple[str, str], Finding] = {}
        """By code and subject, which names the rank."""
        self._crew = crew
        self._due: dict[int, float] = {}
        self._count: Counter[int] = Counter()

    def rank_began(self, host: int) -> None:
        self._due[host] = time.monotonic() + _SETTLED_SECONDS

    def turn(self) -> None:
        """Asks the hosts whose time has come."""
        now = time.monotonic()
        for host in [host for host, at in self._due.items() if at <= now]:
            del self._due[host]
            self._crew.send({"t": "inspect"}, to=[host])

    def read_back(self, host: HostPlan, seen: Mapping[str, Body]) -> None:
        """A host's answer; a rank without a GPU yet is looked at again."""
        for finding in readback.differences(host, seen):
            if (finding.code, finding.subject) not in self.found:
                self.found[finding.code, finding.subject] = finding
                self._crew.say(f"nvrun: {finding.message}")
        self._count[host.node] += 1
        if not readback.all_on_gpus(host, seen) and self._count[host.node] < _INSPECTIONS:
            self._due[host.node] = time.monotonic() + _AGAIN_SECONDS
