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
    """95 % interval of that median by the same test; the widest there is where the pairs are too few."""
    p: float
    """Exact two-sided sign test: how likely it is that so many pairs agree where there is no difference. It takes
    nothing for granted about the noise, and a trial disturbed by something else costs one pair, whatever its size."""


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compares seconds of equally many trials; the n-th of each ran side by side in time. At least one pair."""
    ratios = sorted(b / a for a, b in zip(first, second, strict=True))
    cut = _cut(len(ratios))
    return Paired(pairs=len(ratios), ratio=median(ratios), low=ratios[cut], high=ratios[-1 - cut], p=sign_test(ratios))


def sign_test(ratios: Sequence[float]) -> float:
    """Two-sided p of the exact sign test of ratios against 1; pairs that are equal are left out."""
    faster, slower = sum(ratio < 1 for ratio in ratios), sum(ratio > 1 for ratio in ratios)
    return min(1.0, 2 * _at_most(min(faster, slower), faster + slower))


def _at_most(heads: int, throws: int) -> float:
    """How likely a fair coin shows no more heads."""
    return sum(math.comb(throws, count) for count in range(heads + 1)) / 2.0**throws


def _cut(count: int) -> int:
    """How many of the sorted ratios on each side lie outside the 95 % interval of their median."""
    cut = 0
    while _at_most(cut, count) <= 0.025:
        cut += 1
    return max(0, cut - 1)
