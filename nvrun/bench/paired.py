"""Whether of two things measured in turn one is faster, or the noise says it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from nvrun.model import Frozen


class Paired(Frozen, frozen=True, kw_only=True):
    """B against A over pairs of trials that ran one after the other."""

    pairs: int
    ratio: float
    """Median of B's seconds over A's: below 1 B is faster."""
    low: float
    high: float
    """The ratio's interval of the same test, 95 % or the widest there is."""
    p: float
    """Exact two-sided Wilcoxon signed-rank test of the ratios' logarithms: how likely a difference so clear is where
    there is none. It takes no shape of the noise for granted and heeds no outlier's size."""


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compares seconds of equally many trials; the n-th of each stand beside each other in time."""
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    low, high = _interval(logs)
    return Paired(
        pairs=len(logs), ratio=math.exp(median(logs)), low=math.exp(low), high=math.exp(high), p=signed_rank(logs)
    )


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of the exact Wilcoxon signed-rank test; zeros are left out, equal sizes share their mean rank."""
    there = [each for each in differences if each]
    if not there:
        return 1.0
    sizes = sorted(abs(each) for each in there)
    # Twice the rank, so that the mean rank of equals is whole.
    rank = {size: 2 * sizes.index(size) + sizes.count(size) + 1 for size in sizes}
    ranks = [rank[abs(each)] for each in there]
    positive = sum(rank[abs(each)] for each in there if each > 0)
    extreme = min(positive, sum(ranks) - positive)
    at_most: int = sum(count for total, count in _sums(ranks).items() if total <= extreme)
    return min(1.0, at_most / 2.0 ** (len(ranks) - 1))


def _sums(ranks: Sequence[int]) -> dict[int, int]:
    """How many of all ways to give each rank a sign lead to each sum of the positive ones."""
    ways = {0: 1}
    for rank in ranks:
        more = dict(ways)
        for total, count in ways.items():
            more[total + rank] = more.get(total + rank, 0) + count
        ways = more
    return ways


def _interval(logs: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the pseudo-median (Hodges and Lehmann): from the means of all pairs, those in the middle."""
    means = sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs)))
    ways, below, cut = _sums(range(1, len(logs) + 1)), 0, 0
    for total in sorted(ways):
        below += ways[total]
        if below / 2 ** len(logs) > 0.025:
            break
        cut = total + 1
    cut = max(0, min(cut - 1, len(means) // 2))
    return means[cut], means[-1 - cut]
