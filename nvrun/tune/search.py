"""The search: a space and a way to measure in, a verdict out. Pure but for what `measure` does.

1. Every option alone, once; where settings are known to help together, these, several times, and then every change of
one option of the best. 2. The combinations that the sum of these effects promises most of. 3. Every change of one
option of the best few so far, and of single options with a strong effect: this finds what helps only together. 4.
Halving: the best few again and again, fewer each time. 5. The best one or two against the default in fresh pairs of
trials, so that luck in the choice is no evidence, and what takes compute from a training step beside a matrix product
too. Where trials or time are short, 4 and 5 are brief, and what too little time is left for is left out: the evidence
for a gain is then fewer pairs that all agree.

The default runs among the others in every batch and each result is held against its neighbours, so that slow drift of
the machine counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product
from random import Random
from statistics import mean, median

import msgspec

from nvrun.bench.paired import Paired, paired
from nvrun.model import Frozen
from nvrun.tune.space import Config, Space, default, takes_compute

SURE = 0.01
"""p of the sign test up to which a gain counts: at least 14 of 16 pairs must agree, or 9 of 9."""
LEAST_GAIN = 0.02
"""What is less is not worth a setting that the next NCCL may handle better by itself."""
TIE = 0.01
"""A step beside compute may be so much longer and still counts as equal."""
BETWEEN = 6
"""Trials of others between two of the default."""
PROMISING = 8
"""Combinations that the single options' effects promise most of and that are tried."""
WORTH_A_JOB = 8
"""Settings for which a batch is begun: a job takes as long to start as some trials."""
MOST_REPEATS = 6
"""Further trials of one setting in the last round of halving, where time is left."""
WIDTH = 3
"""Of how many settings the neighbours are tried."""
KNOWN = 3
"""Trials of each setting that is known to help together with others. One tells little where they are needed: over
sockets the same setting took 17 ms in one process and 33 in another (2x H200 as two hosts, 2026-11-29)."""
STRONG = 0.1
"""A single option with such a gain is tried with all others, since it may depend on one of them."""


class Effort(Frozen, frozen=True, kw_only=True):
    """What the end of a search takes."""

    halving: tuple[tuple[int, int], ...]
    """(settings, further trials of each)."""
    halving_trials: int
    """What that takes, the default between included."""
    pairs: int
    """Fresh pairs of trials, the default and a finalist."""
    beside: int
    """Such pairs beside a matrix product."""

    @property
    def final(self) -> int:
        """Trials of one finalist."""
        return 2 * self.pairs + 2 * self.beside

    @property
    def trials(self) -> int:
        return self.halving_trials + self.final

    @property
    def calls(self) -> int:
        """Of `measure`."""
        return len(self.halving) + 1


THOROUGH = Effort(halving=((6, 1), (4, 2), (2, 3)), halving_trials=24, pairs=16, beside=6)
BRIEF = Effort(halving=((4, 2),), halving_trials=10, pairs=9, beside=2)
LEAST = Effort(halving=(), halving_trials=0, pairs=9, beside=2)


class Trial(Frozen, frozen=True, kw_only=True):
    """What is to be measured once."""

    config: Config
    overlap: bool = False
    """Beside a matrix product."""


class Sample(Frozen, frozen=True, kw_only=True):
    """What came of it."""

    seconds: float | None = None
    """For the job's messages; beside a product until both are done. None where it failed."""
    failed: str = ""
    """Its deadline, an error, a wrong result."""
    cost: float = 0.0
    """Seconds of the budget that it took."""
    start: float = 0.0
    """Seconds that all samples of a call took together besides: a job starts."""


Measure = Callable[[Sequence[Trial]], Sequence[Sample]]
"""Runs trials in this order and gives a sample for each."""


class Finalist(Frozen, frozen=True, kw_only=True):
    """A setting against the default, in fresh pairs."""

    config: Config
    against: Paired
    overlap: Paired | None = None
    """None where it was not measured: the setting takes no compute."""
    refused: str = ""
    """Why it is not taken; empty where it could be."""


class Outcome(Frozen, frozen=True, kw_only=True):
    """What the search ended with."""

    config: Config
    """What to set; all zeros for NCCL's own choice."""
    why: str
    finalists: tuple[Finalist, ...] = ()
    trials: int
    failed: tuple[tuple[Config, str], ...] = ()
    """Settings that failed, and how."""
    ratios: tuple[tuple[Config, float], ...] = ()
    """Every setting that was tried, and its seconds over the default's, as far as it was measured."""


def search(space: Space, measure: Measure, *, trials: int, seconds: float = math.inf, seed: int = 0) -> Outcome:
    """Looks for a setting that beats the default beyond the noise, with at most `trials` trials that take about
    `seconds` together; a quarter of `space.grid` is plenty for a hundred settings and more."""
    return _Search(space, measure, trials, seconds, Random(seed)).outcome()


class _Search:
    def __init__(self, space: Space, measure: Measure, trials: int, seconds: float, random: Random) -> None:
        self._space, self._measure, self._random = space, measure, random
        self._trials, self._seconds = trials, seconds
        self._used = 0
        self._spent, self._own, self._start = 0.0, 0.0, 0.0
        self._default = default(space)
        self._logs: dict[Config, list[float]] = {}
        self._failed: dict[Config, str] = {}

    def _left(self, calls: int) -> int:
        """Trials that may still be made in so many calls, where each takes as long as those so far."""
        left = self._trials - self._used
        if not self._spent or math.isinf(self._seconds):
            return left
        seconds = self._seconds - self._spent - calls * self._start
        return min(left, max(0, int(seconds / (self._own / self._used))))

    def _effort(self) -> Effort | None:
        """The end that is still possible."""
        efforts = (effort for effort in (THOROUGH, BRIEF, LEAST) if self._left(effort.calls) >= effort.trials)
        return next(efforts, None)

    def outcome(self) -> Outcome:
        if self._space.grid < 2:
            return self._kept("there is nothing to search: all settings are the user's own")
        effort = next((each for each in (THOROUGH, BRIEF) if self._trials >= each.trials + BETWEEN), None)
        if effort is None:
            return self._kept(f"{self._trials} trials are too few to tell a gain from the noise")
        self._screen(self._first(), effort)
        if self._default in self._failed:
            return self._kept(f"the default itself failed: {self._failed[self._default]}")
        effort = self._effort()
        if effort is None:
            return self._kept(f"{self._seconds:.0f} s are too few to tell a gain from the noise")
        seen: set[Config] = {self._default}
        if self._space.together and self._room(effort) >= WORTH_A_JOB:
            seen.add(best := self._ranking()[0])
            self._screen([other for other in self._neighbours(best) if other not in self._logs], effort)
        if self._room(effort) >= WORTH_A_JOB:
            self._screen(list(islice(self._promising(), PROMISING)), effort)
        while self._room(effort) >= WORTH_A_JOB and (
            near := [each for each in self._worth_a_look() if each not in seen]
        ):
            seen.add(near[0])
            self._screen([other for other in self._neighbours(near[0]) if other not in self._logs], effort)
        effort = self._effort() or LEAST
        for at, (count, repeats) in enumerate(effort.halving):
            contenders = [config for config in self._ranking()[:count] if config != self._default]
            rest = msgspec.structs.replace(effort, halving=effort.halving[at + 1 :], halving_trials=0)
            if contenders and not rest.halving:  # what is left of the time is best spent on the choice
                repeats = max(repeats, min(MOST_REPEATS, self._room(rest) // len(contenders)))
            self._screen(contenders * repeats, rest)
        return self._decide(effort)

    # -- finding candidates

    def _first(self) -> list[Config]:
        """Every single option; but where settings are known to help together, these and the single options of their
        dimensions: what else there is, is worth a look only beside them, when the best of them is known."""
        single = list(self._neighbours(self._default))
        if not self._space.together:
            return single
        theirs = {at for config in self._space.together for at, option in enumerate(config) if option}
        return [one for one in single if any(one[at] for at in theirs)] + [*self._space.together] * KNOWN

    def _room(self, effort: Effort) -> int:
        """Settings that may be screened now where `effort` is for later: the default takes its turns between."""
        left = self._left(1 + effort.calls) - effort.trials
        return max(0, left - 2 - left // (BETWEEN + 1))

    def _screen(self, configs: list[Config], effort: Effort) -> None:
        """One trial of each, as far as they are allowed, in random order with the default between them."""
        configs = [config for config in configs if config not in self._failed]
        self._random.shuffle(configs)
        configs = configs[: self._room(effort)]
        if not configs:
            return
        order = [self._default]
        for at, config in enumerate(configs, start=1):
            order.append(config)
            if at % BETWEEN == 0 or at == len(configs):
                order.append(self._default)
        samples = self._run([Trial(config=config) for config in order])
        defaults = [at for at, config in enumerate(order) if config == self._default and samples[at] is not None]
        for at, config in enumerate(order):
            mine = samples[at]
            if config != self._default and mine is not None and defaults:
                near = sorted(defaults, key=lambda other: abs(other - at))[:3]
                beside = median(math.log(samples[other] or 1.0) for other in near)
                self._logs.setdefault(config, []).append(math.log(mine) - beside)

    def _worth_a_look(self) -> list[Config]:
        """Settings whose neighbours are to be tried: the best, then strong single options, then the next best."""
        best = self._ranking()[:WIDTH]
        single = [config for config in self._logs if sum(map(bool, config)) == 1]
        strong = [config for config in single if median(self._logs[config]) < math.log(1 - STRONG)]
        return [*best[:1], *sorted(strong, key=lambda config: median(self._logs[config])), *best[1:]]

    def _neighbours(self, config: Config) -> Iterator[Config]:
        for at, dimension in enumerate(self._space.dimensions):
            for option in range(len(dimension.options) + 1):
                if option != config[at]:
                    yield (*config[:at], option, *config[at + 1 :])

    def _promising(self) -> Iterator[Config]:
        """Combinations not tried yet, the best sum of effects first: of each dimension unset and the best two."""
        effects: list[dict[int, float]] = []
        for at, dimension in enumerate(self._space.dimensions):
            alone = {0: 0.0}
            for option in range(1, len(dimension.options) + 1):
                logs = self._logs.get((*self._default[:at], option, *self._default[at + 1 :]))
                if logs:
                    alone[option] = mean(logs)
            effects.append(dict(sorted(alone.items(), key=lambda item: item[1])[:3]))

        def promised(config: Config) -> float:
            return sum(alone[option] for alone, option in zip(effects, config, strict=True))

        combinations = sorted(product(*effects), key=promised)
        return (config for config in combinations if config not in self._logs and config != self._default)

    def _ranking(self) -> list[Config]:
        """What was tried, the default among it, the best first. A single lucky trial counts less than several."""

        def judged(config: Config) -> float:
            logs = self._logs.get(config, [0.0])
            return median(logs) * len(logs) / (len(logs) + 0.2)

        tried = [config for config in self._logs if config not in self._failed]
        return sorted([self._default, *tried], key=judged)

    # -- the verdict

    def _decide(self, effort: Effort) -> Outcome:
        finalists: list[Finalist] = []
        ranking = [config for config in self._ranking() if config != self._default]
        chosen = ranking[:1]
        if chosen and takes_compute(self._space, chosen[0]):
            chosen += [config for config in ranking if not takes_compute(self._space, config)][:1]
        for config in chosen:
            if config != chosen[0] and self._left(1) < effort.final:
                break
            finalist = self._against(config, effort)
            if finalist is None:
                continue
            finalists.append(finalist)
            if not finalist.refused:
                break
        taken = next((finalist for finalist in finalists if not finalist.refused), None)
        if taken is None:
            why = finalists[0].refused if finalists else "no setting was measured to the end"
            return self._kept(why, finalists)
        gain = f"{(1 / taken.against.ratio - 1) * 100:.1f} % faster than the default"
        return self._ended(taken.config, f"{gain} (p = {taken.against.p:.2g}, {taken.against.pairs} pairs)", finalists)

    def _against(self, config: Config, effort: Effort) -> Finalist | None:
        """Fresh pairs with the default, then, for what takes compute, pairs beside a matrix product; the order within
        a pair changes from one to the next. None where too few came to their end."""
        takes = takes_compute(self._space, config)
        count, beside = effort.pairs, effort.beside if takes else 0
        if self._trials - self._used < 2 * (count + beside):
            return None
        both = (self._default, config)
        order = [pair for at in range(count + beside) for pair in ((0, 1) if at % 2 == 0 else (1, 0))]
        samples = self._run([Trial(config=both[which], overlap=at >= 2 * count) for at, which in enumerate(order)])
        alone = _paired(order[: 2 * count], samples[: 2 * count])
        together = _paired(order[2 * count :], samples[2 * count :]) if takes else None
        if config in self._failed or alone is None or alone.pairs < count - 1:
            return None
        refused = _no_gain(alone) or (_loses(together) if takes else "")
        return Finalist(config=config, against=alone, overlap=together, refused=refused)

    def _run(self, trials: list[Trial]) -> list[float | None]:
        self._used += len(trials)
        samples = self._measure(trials)
        self._start = samples[0].start
        self._spent += self._start + sum(sample.cost for sample in samples)
        for trial, sample in zip(trials, samples, strict=True):
            self._own += sample.cost
            if sample.seconds is None:
                self._failed.setdefault(trial.config, sample.failed)
        return [sample.seconds for sample in samples]

    def _kept(self, why: str, finalists: Iterable[Finalist] = ()) -> Outcome:
        return self._ended(self._default, f"the default stays: {why}", finalists)

    def _ended(self, config: Config, why: str, finalists: Iterable[Finalist]) -> Outcome:
        return Outcome(
            config=config,
            why=why,
            finalists=tuple(finalists),
            trials=self._used,
            failed=tuple(self._failed.items()),
            ratios=tuple((tried, math.exp(median(logs))) for tried, logs in self._logs.items()),
        )


def _paired(order: Sequence[int], samples: Sequence[float | None]) -> Paired | None:
    """The second of two settings against the first; pairs of which one failed are left out."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for at in range(0, len(order), 2):
        pair = dict(zip(order[at : at + 2], samples[at : at + 2], strict=True))
        a, b = pair[0], pair[1]
        if a is not None and b is not None:
            seconds[0].append(a)
            seconds[1].append(b)
    return paired(*seconds) if seconds[0] else None


def _no_gain(against: Paired) -> str:
    change = f"{(1 / against.ratio - 1) * 100:+.1f} %, p = {against.p:.2g} over {against.pairs} pairs"
    if against.p > SURE or against.ratio >= 1:
        return f"the best setting's gain is within the noise ({change})"
    if 1 / against.ratio - 1 < LEAST_GAIN:
        return f"the best setting's gain is below {LEAST_GAIN:.0%} ({change})"
    return ""


def _loses(beside: Paired | None) -> str:
    if beside is None:
        return "it takes compute, and could not be measured beside a matrix product"
    if beside.ratio > 1 + TIE:
        return f"it wins alone, and beside a matrix product the step takes {(beside.ratio - 1) * 100:.1f} % longer"
    return ""
