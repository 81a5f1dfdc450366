"""Hosts as people write them: `a,b:4,user@c:2222,gpu[01-04],[fe80::1]:4`.

- `HOST:N` gives N ranks, as with horovodrun and mpirun.
- `USER@HOST:PORT` gives the ssh port, `USER@HOST:PORT:N` also the ranks.
- `gpu[01-04]` is a node list; `:N` after it holds for each of its hosts.
- An IPv6 address stands in brackets.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from nvrun.errors import UsageError
from nvrun.hosts import nodeset
from nvrun.model import Host

MAX_SLOTS = 1024
"""Ranks on one host; a larger number is a port in the wrong place."""

_USER = re.compile(r"[^\s,:\[\]\-][^\s,:\[\]]{0,127}")
_ENTRY = re.compile(r"(?P<names>\[[^\[\]]*:[^\[\]]*\]|[^:]*?)(?P<numbers>(?::[^:]*){0,2})")


def parse(text: str, where: str) -> tuple[Host, ...]:
    """The hosts of a list, in its order. `where` is how errors name the source. Raises UsageError."""
    hosts = [host for entry in nodeset.split(text, where) for host in entry_hosts(entry, where)]
    if not hosts:
        raise UsageError(f"{where}: names no host")
    if len(hosts) > nodeset.MAX_HOSTS:
        raise UsageError(f"{where}: more than {nodeset.MAX_HOSTS} hosts")
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise UsageError(f"{where}: {host.name} is listed twice", hint=f"more ranks on it: {host.name}:2")
        seen.add(host.name)
    return tuple(hosts)


def entry_hosts(entry: str, where: str) -> list[Host]:
    """The hosts of one entry: several for a node list. Raises UsageError."""
    user, at, rest = entry.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"{where}: {entry!r}: expected a user name before @")
    found = _ENTRY.fullmatch(rest)
    if not found or "::" in found["numbers"]:
        raise UsageError(f"{where}: {entry!r} is no host", hint="an IPv6 address stands in brackets: [fe80::1]")
    names = found["names"]
    numbers = found["numbers"].split(":")[1:]
    ports, slots = (numbers[:1], numbers[1:]) if at else ([], numbers)
    if len(slots) > 1:
        raise UsageError(
            f"{where}: {entry!r}: one number after a host is its ranks", hint="a port needs USER@HOST:PORT"
        )
    port = _port(ports[0], entry, where) if ports else None
    count = _slots(slots[0], entry, where) if slots else None
    expanded = [_ipv6(names[1:-1], where)] if names[:1] == "[" and ":" in names else nodeset.expand(names, where)
    return [Host(name=name, user=user or None, port=port, slots=count) for name in expanded]


def _ipv6(text: str, where: str) -> str:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        raise UsageError(f"{where}: [{text}] is no IPv6 address") from None
    if not re.fullmatch(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?", text):
        raise UsageError(f"{where}: [{text}]: expected an interface name after %")
    return text


def _port(text: str, entry: str, where: str) -> int:
    number = _number(text)
    if number is None or not 1 <= number <= 65535:
        raise UsageError(f"{where}: {entry!r}: expected a port from 1 to 65535, got {text!r}")
    if number < 22:
        raise UsageError(
            f"{where}: {entry!r}: after USER@HOST the first number is the ssh port",
            hint=f"for {number} ranks write {entry.rpartition(':')[0]}:22:{number}",
        )
    return number


def _slots(text: str, entry: str, where: str) -> int:
    number = _number(text)
    if number is None or not 1 <= number <= MAX_SLOTS:
        hint = f"a port needs a user: USER@{entry}" if number and number > MAX_SLOTS and "@" not in entry else ""
        raise UsageError(f"{where}: {entry!r}: expected 1 to {MAX_SLOTS} ranks, got {text!r}", hint=hint)
    return number


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def without(hosts: Iterable[Host], exclude: str, where: str) -> tuple[tuple[Host, ...], tuple[str, ...]]:
    """The hosts that `exclude` (a list of names) leaves, and the excluded names that were no host of the job.

    Raises UsageError where none is left.
    """
    hosts = tuple(hosts)
    excluded = {host.name for entry in nodeset.split(exclude, where) for host in entry_hosts(entry, where)}
    left = tuple(host for host in hosts if host.name not in excluded)
    if not left:
        raise UsageError(f"{where}: excludes every host")
    return left, tuple(sorted(excluded - {host.name for host in hosts}))
