"""Two environments in turn: A B, B A, A B, ... and a verdict that respects the noise. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nvrun.bench.model import Collective, Record, Results, Scope
from nvrun.bench.paired import Paired, paired
from nvrun.bench.show import size, table, time
from nvrun.model import Frozen

PAIRS = 10
SURE = 0.05
"""p of the sign test up to which a difference is told: 9 of 10 pairs must agree."""
_Key = tuple[Collective, int, Scope]


class Comparison(Frozen, frozen=True, kw_only=True):
    """B against A, over all points and for each."""

    names: tuple[str, str]
    overall: Paired | None
    """Of the geometric mean of a trial's points; None where fewer than two pairs came to their end."""
    points: tuple[tuple[Collective, int, Scope, float, Paired], ...] = ()
    """(collective, bytes, scope, A's median seconds, B against A)."""
    lost: int = 0
    """Pairs of which a trial failed."""

    @property
    def verdict(self) -> str:
        """One sentence."""
        a, b = self.names
        if self.overall is None:
            return "too few pairs of trials came to their end: no verdict"
        change = 1 / self.overall.ratio - 1
        found = f"{abs(change):.1%}, p = {self.overall.p:.2g} by the sign test over {self.overall.pairs} pairs"
        if self.overall.p > SURE:
            return f"no difference beyond the noise (median {found})"
        return f"{b if change > 0 else a} is faster by {found}"


def order(pairs: int) -> tuple[tuple[int, bool], ...]:
    """Environments 0 and 1 in pairs whose order changes; the first trial warms the machine up and does not count."""
    return ((0, False), *((which, False) for at in range(pairs) for which in ((0, 1) if at % 2 == 0 else (1, 0))))


def compare(results: Results, names: tuple[str, str]) -> Comparison:
    """Judges trials that ran in `order`."""
    good = {end.trial: end.environment for end in results.trials if not end.failed and end.trial}
    good = {trial: which for trial, which in good.items() if not any(r.wrong for r in results.of_trial(trial))}
    last = max((end.trial for end in results.trials), default=0)
    pairs = [(trial, trial + 1) for trial in range(1, last, 2)]
    whole = [sorted(pair, key=lambda trial: good[trial]) for pair in pairs if pair[0] in good and pair[1] in good]
    lost = len(pairs) - len(whole)
    if len(whole) < 2:
        return Comparison(names=names, overall=None, lost=lost)
    times = {trial: _times(results.of_trial(trial)) for pair in whole for trial in pair}
    shared = [key for key in times[whole[0][0]] if all(key in found for found in times.values())]
    if not shared:
        return Comparison(names=names, overall=None, lost=lost)
    means = {
        trial: math.exp(sum(math.log(found[key]) for key in shared) / len(shared)) for trial, found in times.items()
    }
    sides = tuple([trials[side] for trials in whole] for side in (0, 1))
    points = []
    for key in shared:
        a, b = ([times[trial][key] for trial in side] for side in sides)
        points.append((*key, sorted(a)[len(a) // 2], paired(a, b)))
    overall = paired(*([means[trial] for trial in side] for side in sides))
    return Comparison(names=names, overall=overall, points=tuple(points), lost=lost)


def _times(records: Sequence[Record]) -> dict[_Key, float]:
    return {(record.collective, record.bytes, record.scope): record.median for record in records if record.seconds}


def lines(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.names
    yield f"A = {a}"
    yield f"B = {b}"
    rows = [("collective", "size", "ranks", "A", "B", "B against A", "95 % interval", "p")]
    for collective, length, scope, seconds, found in comparison.points:
        rows.append(
            (collective.replace("_", "-"), size(length), scope, time(seconds), time(seconds * found.ratio),
             f"{1 / found.ratio - 1:+.1%}", f"{1 / found.high - 1:+.1%} to {1 / found.low - 1:+.1%}", f"{found.p:.2g}")
        )  # fmt: skip
    if len(rows) > 1:
        yield from table(rows)
        yield "  p of a single row: of twenty rows one is below 0.05 by chance alone; the verdict is over all of them"
    if comparison.lost:
        yield f"{comparison.lost} pairs are left out: a trial of theirs failed"
    yield comparison.verdict
