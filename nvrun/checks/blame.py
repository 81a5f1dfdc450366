"""Tests between pairs of hosts that failed -> the one host at fault, where there is one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Literal, NamedTuple

Edge = tuple[str, str]
"""From one host to another."""


class Blame(NamedTuple):
    """Failed edges that have one explanation."""

    kind: Literal["in", "out", "both", "pair", "all"]
    """What fails: all that arrives at `host`, all that leaves it, both, single pairs, or every way between hosts."""
    host: str | None
    """None for pairs, of which nothing tells which of the two it is, and for all."""
    edges: tuple[Edge, ...]
    answer: str
    """The most frequent one of these edges, silence last; of a pair that fails both ways that of the first edge."""

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for source, _ in self.edges))

    @property
    def between(self) -> tuple[str, ...]:
        """The two hosts of one pair, where nothing tells which of them it is."""
        hosts = tuple(dict.fromkeys(host for edge in self.edges for host in edge))
        return hosts if self.host is None and len(hosts) == 2 else ()

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(target for _, target in self.edges))


def blame(edges: Mapping[Edge, str]) -> list[Blame]:
    """Every edge that was tried -> "" or why it failed; who is to blame for the failed ones.

    A host is named where everything that arrives at it, or leaves it, fails, and either that is more than one edge or
    others succeed with the same partner. None is named where no host reaches any other. What is left over are pairs,
    each way of a pair and equal targets put together.
    """
    left = {edge: answer for edge, answer in edges.items() if answer}
    arriving: dict[str, list[Edge]] = {}
    leaving: dict[str, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge[0], []).append(edge)
        arriving.setdefault(edge[1], []).append(edge)
    found: list[Blame] = []

    def take(kind: Literal["in", "out", "both"], host: str, covered: Iterable[Edge]) -> None:
        mine = tuple(edge for edge in covered if edge in left)
        if mine:
            found.append(Blame(kind, host, mine, most_telling(left[edge] for edge in mine)))
            for edge in mine:
                del left[edge]

    def all_fail(of_host: list[Edge]) -> bool:
        return len(of_host) > 1 and all(edges[edge] for edge in of_host)

    cut_off = [host for host in leaving if all_fail(leaving[host]) and all_fail(arriving.get(host, []))]
    if cut_off and set(cut_off) >= {*leaving, *arriving}:  # who is named would be by the order of the list
        return [Blame("all", None, tuple(edges), most_telling(edges.values()))]
    for host in cut_off:
        take("both", host, [*leaving[host], *arriving[host]])
    for host, of_host in arriving.items():
        if all_fail(of_host) and any(edge in left for edge in of_host):
            take("in", host, of_host)
    for host, of_host in leaving.items():
        partners = {target for _, target in of_host}
        others_do = any(not edges[edge] for target in partners for edge in arriving[target] if edge[0] != host)
        if all(edges[edge] for edge in of_host) and (len(of_host) > 1 or others_do):
            take("out", host, of_host)
    return [*found, *_pairs(left)]


def _pairs(left: Mapping[Edge, str]) -> Iterable[Blame]:
    mutual = [(a, b) for a, b in left if a < b and (b, a) in left]
    for a, b in mutual:
        answer = most_telling((left[a, b], left[b, a]))
        edges = ((a, b), (b, a)) if left[a, b] == answer else ((b, a), (a, b))
        yield Blame("pair", None, edges, answer)
    rest = {edge: answer for edge, answer in left.items() if tuple(sorted(edge)) not in mutual}
    groups: dict[tuple[str, str], list[Edge]] = {}
    for edge, answer in rest.items():
        groups.setdefault((edge[1], answer), []).append(edge)
    for (_, answer), same in groups.items():
        yield Blame("pair", None, tuple(same), answer)


def suspects(edges: Mapping[Edge, str]) -> list[str]:
    """Hosts of failed edges, those with the most of them first; as few as cover all failed edges, roughly."""
    left = [edge for edge, answer in edges.items() if answer]
    chosen: list[str] = []
    while left:
        count = Counter(host for edge in left for host in edge)
        host = count.most_common(1)[0][0]
        chosen.append(host)
        left = [edge for edge in left if host not in edge]
    return chosen


def usual(pairs: Mapping[Edge, float], best: Callable[[Iterable[float]], float]) -> tuple[float, float]:
    """What is usual between hosts, and the median deviation from it: of every host its `best` pair counts, so that one
    bad host, which spoils two of three pairs, does not make itself the rule."""
    of_host: dict[str, list[float]] = {}
    for pair, value in pairs.items():
        for host in pair:
            of_host.setdefault(host, []).append(value)
    values = [best(own) for own in of_host.values()]
    middle = median(values) if values else 0.0
    return middle, median(abs(value - middle) for value in values) if values else 0.0


def most_telling(answers: Iterable[str]) -> str:
    """The most frequent one; silence only where nothing else was said: what a firewall refuses on one way is silent on
    the other, since answers are refused too."""
    count = Counter(answers)
    said = Counter({answer: number for answer, number in count.items() if answer != "ETIMEDOUT"})
    return (said or count).most_common(1)[0][0]
