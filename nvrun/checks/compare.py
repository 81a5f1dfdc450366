"""Consistency without a golden file: the majority of like hosts is right, and a tie names both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from nvrun.checks.code import Code
from nvrun.facts import HostFacts
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding, Severity

_Value = TypeVar("_Value")


def groups_of(fleet: Mapping[str, HostFacts]) -> tuple[tuple[str, ...], ...]:
    """Hosts of like hardware: the same GPU and CPU models.

    GPUs are told by their PCI identity where it was read, so that a host whose driver fails stays with its like.
    """
    groups: dict[object, list[str]] = {}
    for host, facts in fleet.items():
        devices = {(d.vendor, d.device) for d in facts.pci or () if d.vendor == "0x10de" and d.pci_class[:4] == "0x03"}
        models: frozenset[object] = frozenset(devices) or frozenset(gpu.name for gpu in facts.gpus or ())
        groups.setdefault((models, facts.cpus.model if facts.cpus else None), []).append(host)
    return tuple(tuple(hosts) for hosts in groups.values())


def sides(values: Mapping[str, _Value]) -> list[tuple[_Value, list[str]]]:
    """Value -> hosts that have it, the most frequent first."""
    held: dict[_Value, list[str]] = {}
    for host, value in values.items():
        held.setdefault(value, []).append(host)
    return sorted(held.items(), key=lambda side: -len(side[1]))


def is_tie(found: Sequence[tuple[_Value, list[str]]]) -> bool:
    """No value has more hosts than every other."""
    return len(found) > 1 and len(found[0][1]) == len(found[1][1])


def differing(
    code: Code,
    values: Mapping[str, _Value | None],
    what: str,
    *,
    groups: Iterable[Sequence[str]] | None = None,
    shown: Callable[[_Value], str] = str,
    severity: Severity | None = None,
    subject: str = "",
    remedy: str | None = None,
) -> Iterator[Finding]:
    """One finding for each host that differs from the majority; one for all where there is none.

    `values`: None = not known, and takes no part. `what` stands before the value: `torch`. With `groups` only hosts of
    one group are compared.
    """
    for group in groups if groups is not None else [tuple(values)]:
        known = {host: value for host in group if (value := values.get(host)) is not None}
        found = sides(known)
        if len(found) < 2:
            continue
        if is_tie(found):
            listed = "; ".join(f"{shown(value)} on {fold(hosts)}" for value, hosts in found[:4])
            more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
            yield code.found(
                f"{what} differs: {listed}{more}", severity=severity, subject=subject or what, remedy=remedy
            )
            continue
        common, holders = found[0]
        agree = f"{len(holders)} hosts" if len(holders) > 1 else holders[0]
        for value, hosts in found[1:]:
            for host in hosts:
                yield code.found(
                    f"{what} {shown(value)}, but {shown(common)} on {agree}",
                    host=host,
                    severity=severity,
                    subject=subject or what,
                    observed=shown(value),
                    expected=shown(common),
                    remedy=remedy,
                )


def listed(items: Iterable[object], most: int = 8) -> str:
    """`1, 2, 3 and 5 more`."""
    texts = list(dict.fromkeys(map(str, items)))
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def size(number: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1: `64 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"
