"""Whether the kernel's OOM killer was at work while a rank ran: its counters then and now.

The kernel counts its victims for the whole host (/proc/vmstat) and in the cgroup that each was in: `oom_kill` of
memory.events in version 2, of memory.oom_control in version 1 (kernel, admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst). It does so before it sends the signal.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

_VERSIONS = (("", "/sys/fs/cgroup", "memory.events"), ("memory", "/sys/fs/cgroup/memory", "memory.oom_control"))


class Counted(NamedTuple):
    """One reading."""

    group: str
    """The cgroup's file of events; empty where it has none that can be read."""
    in_group: Optional[int]
    on_host: Optional[int]
    since_boot: float
    """Seconds, by the clock of the kernel's log."""


def read(pid: int) -> Counted:
    """What is counted where `pid` runs now."""
    group = _events(pid)
    return Counted(group, _count(group) if group else None, _count("/proc/vmstat"), time.monotonic())


def since(before: Counted, pid: int) -> Optional[Dict[str, Any]]:
    """`kills` since then, `where` they were counted, and the kernel's own `line` about it where this user may read
    that; None where no counter can be read."""
    where, now, then = "its cgroup", _count(before.group) if before.group else None, before.in_group
    if now is None or then is None:
        where, now, then = "its host", _count("/proc/vmstat"), before.on_host
    if now is None or then is None:
        return None
    kills = max(0, now - then)
    return {"kills": kills, "where": where, "line": _line(pid, before.since_boot) if kills else ""}


def _events(pid: int) -> str:
    """The file in which the kills of the memory cgroup of `pid` are counted. A container shows its own group as the
    root, and the path as the host has it: the longest end of the path that exists is taken."""
    try:
        with open("/proc/%d/cgroup" % pid) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return ""
    for controller, base, name in reversed(_VERSIONS):  # where both exist, version 1 has the memory controller
        for _, controllers, path in lines:
            if controller in controllers.split(","):
                parts = [part for part in path.split("/") if part not in ("", "..")]
                for start in range(len(parts) + 1):
                    events = os.path.join(base, *parts[start:], name)
                    if _count(events) is not None:
                        return events
    return ""


def _count(path: str) -> Optional[int]:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


def _line(pid: int, since_boot: float) -> str:
    """What the kernel's log says of it: the line that names the process, else the last one since then. A process in a
    pid namespace has another number there."""
    found = [text for at, text in _log() if at >= since_boot - 1.0]
    named = [text for text in found if "process %d " % pid in text]
    return (named or found or [""])[-1]


def _log() -> List[Tuple[float, str]]:
    """(seconds since boot, text) of kills in the kernel's log; nothing where this user may not read it."""
    from .probe.child import UnreadError
    from .probe.xid import records

    try:
        lines = records("/dev/kmsg", b"illed process")
    except UnreadError:
        return []
    return [(int(head.split(",")[2]) / 1e6, text) for head, _, text in (line.partition(";") for line in lines)
            if head.count(",") >= 2 and head.split(",")[2].isdigit()]  # fmt: skip
