"""Stretches of time: collected in 16 bytes each, joined, compared. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

Span = tuple[float, float]


class Spans:
    """Stretches as they come, those that overlap the one before joined at once."""

    def __init__(self) -> None:
        self._begins, self._ends = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, begin: float, end: float) -> None:
        if self._begins and self._begins[-1] <= begin <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], end)
        else:
            self._begins.append(begin)
            self._ends.append(end)

    def joined(self) -> list[Span]:
        """In order, none overlapping another."""
        result: list[Span] = []
        for begin, end in sorted(zip(self._begins, self._ends, strict=True)):
            if result and begin <= result[-1][1]:
                result[-1] = result[-1][0], max(end, result[-1][1])
            else:
                result.append((begin, end))
        return result


def length(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def common(one: Sequence[Span], other: Sequence[Span]) -> float:
    """How long both last at once; each is joined."""
    total, first, second = 0.0, 0, 0
    while first < len(one) and second < len(other):
        total += max(0.0, min(one[first][1], other[second][1]) - max(one[first][0], other[second][0]))
        if one[first][1] <= other[second][1]:
            first += 1
        else:
            second += 1
    return total


def inside(spans: Sequence[Span], window: Span) -> list[Span]:
    """What of joined spans lies in the window."""
    return [(max(begin, window[0]), min(end, window[1])) for begin, end in spans
            if begin < window[1] and end > window[0]]  # fmt: skip
