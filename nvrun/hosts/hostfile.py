"""Host files of Open MPI and DeepSpeed: one `HOST slots=N` a line, `#` starts a comment.

A host is written as in `--hosts`. Open MPI's `max_slots` (`max-slots`) must not be below `slots`; its older word for
slots, `count`, is taken too. Without slots the number of ranks is decided later, from the GPUs.
"""

from __future__ import annotations

from nvrun.errors import UsageError
from nvrun.hosts import listing, nodeset
from nvrun.model import Host


def parse(text: str, path: str) -> tuple[Host, ...]:
    """The hosts of a file, in its order. Raises UsageError naming file and line."""
    lines: dict[str, int] = {}
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        for host in _line_hosts(words, where):
            if host.name in lines:
                raise UsageError(f"{where}: {host.name} is already in line {lines[host.name]}")
            lines[host.name] = number
            hosts.append(host)
        if len(hosts) > nodeset.MAX_HOSTS:
            raise UsageError(f"{where}: more than {nodeset.MAX_HOSTS} hosts")
    if not hosts:
        raise UsageError(f"{path}: names no host")
    return tuple(hosts)


def _line_hosts(words: list[str], where: str) -> list[Host]:
    hosts = [host for entry in nodeset.split(words[0], where) for host in listing.entry_hosts(entry, where)]
    given: dict[str, int] = {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        key = {"count": "slots", "max-slots": "max_slots"}.get(key, key)
        if key not in ("slots", "max_slots"):
            raise UsageError(f"{where}: expected slots=N after the host, got {word!r}")
        if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= listing.MAX_SLOTS:
            raise UsageError(f"{where}: expected {key}=1 to {listing.MAX_SLOTS}, got {word!r}")
        if key in given:
            raise UsageError(f"{where}: {key} is given twice")
        given[key] = int(value[:9])
    slots = given.get("slots")
    if slots and slots > given.get("max_slots", slots):
        raise UsageError(f"{where}: slots={slots} is above max_slots={given['max_slots']}")
    if slots and any(host.slots for host in hosts):
        raise UsageError(f"{where}: ranks are given twice, by :N and by slots=")
    return [Host(name=h.name, user=h.user, port=h.port, slots=slots or h.slots) for h in hosts]
