"""What hosts measured between each other, in a few rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from nvrun.active.run import Outcome
from nvrun.checks.collectives import Smoke
from nvrun.checks.fabric import between
from nvrun.facts import HostFacts
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding, worst_first

_PAIRS = 4096
"""Pairs whose fabric is told; of more hosts only those that are next to each other."""


def rows(outcome: Outcome, facts: Sequence[HostFacts]) -> list[tuple[str, str]]:
    """(title, what was found): one row a test that was made."""
    measured = outcome.network
    tried = measured.tried
    result: list[tuple[str, str]] = []
    if tried:
        opened = sum(not any(seen.ports.values()) for seen in tried.values())
        knocks = sum(len(seen.ports) for seen in tried.values())
        result.append(("connections", f"{opened} of {len(tried)} directed pairs are open ({knocks} ports tried)"))
    if sounded := [seen.mtu for seen in tried.values() if seen.mtu]:
        sizes = Counter(arrived for _, arrived, _ in sounded)
        result.append(("path MTU", ", ".join(f"{size or 'unknown'} ({count} pairs)" for size, count in sizes.items())))
    if pushed := [seen.push[1] for seen in tried.values() if seen.push and not seen.push[0]]:
        result.append(("256 KiB", f"{1e3 * median(pushed):.1f} ms, the slowest {1e3 * max(pushed):.1f} ms"))
    if measured.latency:
        slowest = max(measured.latency, key=lambda each: each.p50)
        half = median(each.p50 for each in measured.latency)
        text = f"{half:.0f} µs (10 % within {min(each.p10 for each in measured.latency):.0f},"
        text += f" 99 % within {max(each.p99 for each in measured.latency):.0f};"
        text += f" slowest pair {' and '.join(slowest.pair)}: {slowest.p50:.0f})"
        result.append(("latency", text))
    if measured.rates:
        rates = [each.gbps for each in measured.rates]
        result.append(("bandwidth", f"{median(rates):.3g} Gb/s over one TCP connection, the slowest {min(rates):.3g}"))
    return result + _reduced(outcome.collectives.first) + _fabrics(facts)


def _reduced(rounds: Sequence[Smoke]) -> list[tuple[str, str]]:
    """Of each kind the range over all hosts."""
    gemm = [value for smoke in rounds for values in smoke.gemm.values() for value in values]
    copies = [rate for smoke in rounds for pairs in smoke.copies.values() for rate in pairs.values()]
    own = [rate for smoke in rounds for rate in smoke.own.values()]
    together = [smoke.together for smoke in rounds if smoke.together is not None]
    kinds = (
        ("GEMM", gemm, "TFLOP/s a rank"),
        ("GPU copies", copies, "GB/s"),
        ("all-reduce", own, "GB/s among the ranks of a host"),
        ("all-reduce", together, "GB/s between two hosts"),
    )
    return [(title, f"{_range(values)} {unit}") for title, values, unit in kinds if values]


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


def as_data(outcome: Outcome) -> dict[str, object]:
    """The same, whole, for JSON."""
    network = outcome.network
    return {
        "connections": [
            {"from": source, "to": target, **msgspec.to_builtins(seen)}
            for (source, target), seen in network.tried.items()
        ],
        "latency_us": msgspec.to_builtins(network.latency),
        "bandwidth": msgspec.to_builtins(network.rates),
        "busy": dict(network.busy),
        "collectives": msgspec.to_builtins((*outcome.collectives.first, *outcome.collectives.second)),
    }


def _fabrics(facts: Sequence[HostFacts]) -> list[tuple[str, str]]:
    if len(facts) < 2:
        return []
    pairs = [(a, b) for at, a in enumerate(facts) for b in facts[at + 1 :]]
    if len(pairs) > _PAIRS:
        pairs = list(pairwise(facts))
    best = {(a.host, b.host): next(iter(between(a, b)), None) for a, b in pairs}
    kinds = Counter(str(way) if way else "none known" for way in best.values())
    if len(kinds) == 1:
        return [("fabric", f"{next(iter(kinds))} between all hosts")]
    usual = kinds.most_common(1)[0][0]
    others = [f"{kind} between {_whom(best, kind)}" for kind in kinds if kind != usual]
    return [("fabric", f"{usual} between most hosts; {'; '.join(others[:4])}")]


def _whom(best: Mapping[tuple[str, str], object], kind: str) -> str:
    pairs = [pair for pair, way in best.items() if (str(way) if way else "none known") == kind]
    if len(pairs) == 1:
        return " and ".join(pairs[0])
    common = set.intersection(*(set(pair) for pair in pairs))
    if common:
        return f"{fold(sorted(common))} and the others"
    return fold(dict.fromkeys(host for pair in pairs for host in pair))


def left_out(found: Iterable[Finding]) -> list[str]:
    """Hosts for which spares stand in, and why."""
    reasons: dict[str, Finding] = {}
    for finding in worst_first(found):
        if finding.host:
            reasons.setdefault(finding.host, finding)
    return [f"left out     {host}: {finding.message} [{finding.code}]" for host, finding in reasons.items()]
