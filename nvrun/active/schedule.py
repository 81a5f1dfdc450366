"""Who tries what with whom, and in which order. Pure: numbers of hosts in, pairs out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from nvrun.checks.blame import suspects

Pair = tuple[int, int]

FULL_MESH = 64
"""Up to so many hosts every one connects to every other."""
HEAVY_MESH = 16
"""Up to so many hosts bytes are pushed and paths sounded between all; above it along shifts."""
ALL_PORTS = 8
"""Up to so many hosts every port of a host is tried by all others; above it they take turns."""
PARTNERS = 2
"""Known-good hosts with which a suspect is tried again."""


def mesh(hosts: Sequence[int], most: int = FULL_MESH) -> list[Pair]:
    """Every ordered pair; of more than `most` hosts each one's shifts by powers of two, so that every host has edges to
    and from `log2(n)` others (1000 hosts: ten each way)."""
    count = len(hosts)
    steps = range(1, count) if count <= most else [1 << power for power in range((count - 1).bit_length())]
    return [(hosts[at], hosts[(at + step) % count]) for step in steps for at in range(count)]


def turns(ports: Sequence[int], source: int, hosts: int) -> list[int]:
    """The ports of one target that `source` tries."""
    return list(ports) if hosts <= ALL_PORTS else [ports[source % len(ports)]]


def partners(hosts: int, *, deep: bool) -> int:
    """With how many others each host's latency is measured. Two tell a slow host from its slow partner."""
    return (4 if hosts <= HEAVY_MESH else 2) * (2 if deep else 1)


def rounds(hosts: Sequence[int], most: int) -> Iterator[list[Pair]]:
    """Rounds of disjoint pairs by the circle method: every host meets another one each time, `most` rounds at most.

    Of the full n-1 rounds evenly spaced ones are taken. Who comes first in a pair changes from round to round.
    """
    circle: list[int | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    full = len(circle) - 1
    chosen = {full * number // min(most, full) for number in range(min(most, full))} if full > 0 else set()
    for number in range(full):
        if number in chosen:
            half = len(circle) // 2
            pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
            met = [(a, b) for a, b in pairs if a is not None and b is not None]
            yield [pair if number % 2 == 0 else pair[::-1] for pair in met]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def few(pairs: Sequence[Pair], at_once: int) -> Iterator[Sequence[Pair]]:
    """Parts of a round that are measured together."""
    for first in range(0, len(pairs), at_once):
        yield pairs[first : first + at_once]


def again(edges: Mapping[Pair, str], hosts: Sequence[int]) -> list[Pair]:
    """What is tried again: each suspect with a few of the other hosts, both ways; those with which it failed come
    first."""
    named = suspects({(str(a), str(b)): answer for (a, b), answer in edges.items()})
    bad = [int(name) for name in named]
    good = [host for host in hosts if host not in bad] or list(hosts)
    chosen: dict[Pair, None] = {}
    for host in bad:
        tried = [other for other in good if other != host and (edges.get((host, other)) or edges.get((other, host)))]
        partners = [*tried, *(other for other in good if other != host and other not in tried)]
        for other in partners[:PARTNERS]:
            chosen |= dict.fromkeys([(host, other), (other, host)])
    return list(chosen)


def settled(edges: Mapping[Pair, str], second: Mapping[Pair, str]) -> dict[Pair, str]:
    """What holds after the second try. An edge that was tried again is as it was then. A failed edge that was not is
    taken to be well where others of the same source or target were tried again, and all of them are well."""
    result = {**edges, **second}
    for pair, answer in edges.items():
        if answer and pair not in second:
            same_way = [other for other in second if other[0] == pair[0] or other[1] == pair[1]]
            if same_way and not any(second[other] for other in same_way):
                result[pair] = ""
    return result


def adjacent(hosts: Sequence[int]) -> list[tuple[int, ...]]:
    """First round of the collective test: neighbours together; one that is left over is alone."""
    return [tuple(hosts[at : at + 2]) for at in range(0, len(hosts), 2)]


def mixed(groups: Sequence[tuple[int, ...]], slowness: Mapping[int, float], bad: Collection[int]) -> list[
    tuple[int, ...]
]:  # fmt: skip
    """Second round: the fastest with the slowest, those whose group failed at the slow end, so that a host at fault
    fails with two partners, and its first partner shows that it is well."""
    hosts = [host for group in groups for host in group]
    order = sorted(hosts, key=lambda host: (host in bad, slowness.get(host, 0.0)))
    before = {frozenset(group) for group in groups}
    result: list[tuple[int, ...]] = []
    while len(order) > 1:
        first = order.pop(0)
        partner = next((other for other in reversed(order) if frozenset((first, other)) not in before), order[-1])
        order.remove(partner)
        result.append((first, partner))
    return [*result, *((host,) for host in order)]
