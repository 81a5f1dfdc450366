"""Made surfaces for the search: how long a job's messages take for each setting, and the noise of measuring it.

The figures of single settings are measured (two H200, NVLink, and two hosts over sockets, bus bandwidth of
all-reduce); how settings act together is made up and stated here, as is the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random

import msgspec

from nvrun.tune.search import Sample, Trial
from nvrun.tune.space import Config, Dimension, Option, Space, env_of

Pair = tuple[tuple[str, str], tuple[str, str]]


@dataclass
class Surface:
    """Seconds = the product of the factors of single variables and of pairs of them; 1.0 for the default."""

    space: Space
    singles: Mapping[tuple[str, str], float]
    """(variable, value) -> factor of the time."""
    pairs: Mapping[Pair, float] = field(default_factory=dict)
    """Two of them at once -> a further factor."""
    beside_compute: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """A further factor beside a matrix product."""
    table: Callable[[Mapping[str, str]], float] = lambda env: 1.0
    """Variables -> a further factor, for what single ones and pairs do not tell."""
    hangs: frozenset[tuple[str, str]] = frozenset()

    def seconds(self, config: Config, *, overlap: bool = False) -> float:
        variables = env_of(self.space, config)
        env = set(variables.items())
        factors = [self.singles.get(each, 1.0) for each in env]
        factors += [factor for (one, other), factor in self.pairs.items() if one in env and other in env]
        if overlap:
            factors += [self.beside_compute.get(each, 1.0) for each in env]
        return math.prod(factors) * self.table(variables)

    def best(self) -> float:
        every = product(*(range(len(dimension.options) + 1) for dimension in self.space.dimensions))
        return min(self.seconds(config) for config in every if not self.hangs & set(env_of(self.space, config).items()))


@dataclass
class Machine:
    """Measures on a surface with lognormal noise, outliers (one in fifty, +30 %) and a drift over the session."""

    surface: Surface
    seed: int
    noise: float = 0.01
    drift: float = 0.05
    outliers: float = 0.02
    slower: tuple[float, float] = (1.3, 1.3)
    """An outlier takes so many times as long, from and to."""
    start: float = 0.0
    """Seconds that a batch of trials takes beside them; a trial takes 2.0."""
    trials: list[Trial] = field(default_factory=list)
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def __call__(self, trials: Sequence[Trial]) -> list[Sample]:
        self.spent += 2.0 * len(trials) + self.start
        return [msgspec.structs.replace(self._one(trial), cost=2.0, start=self.start) for trial in trials]

    def _one(self, trial: Trial) -> Sample:
        self.trials.append(trial)
        if self.surface.hangs & set(env_of(self.surface.space, trial.config).items()):
            return Sample(failed="rank 1 was not done within 10 s")
        seconds = self.surface.seconds(trial.config, overlap=trial.overlap)
        seconds *= math.exp(self.random.gauss(0, self.noise)) * (1 + self.drift * math.sin(len(self.trials) / 40))
        if self.random.random() < self.outliers:
            seconds *= self.random.uniform(*self.slower)
        return Sample(seconds=seconds)


ALGO, PROTO, BUFFER, CTAS = "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MIN_CTAS"


def nvlink(space: Space, beside_compute: Mapping[tuple[str, str], float] | None = None) -> Surface:
    """Two H200 over NVSwitch at 256 MB, default 294 GB/s. Made: tree and 32 CTAs share half of their gains; a buffer of
    8 MiB helps 32 CTAs by 1 % more; 8 CTAs halve the bandwidth."""
    return Surface(
        space,
        {
            (CTAS, "32"): 294.4 / 308.8,
            (CTAS, "8"): 2.0,
            (CTAS, "16"): 1.05,
            (ALGO, "allreduce:tree"): 294.4 / 305.5,
            (ALGO, "allreduce:ring"): 1.0,
            (PROTO, "Simple"): 294.4 / 296.4,
            (BUFFER, str(1 << 20)): 294.4 / 300.0,
            (BUFFER, str(8 << 20)): 294.4 / 298.6,
            (BUFFER, str(16 << 20)): 294.4 / 294.0,
            ("NCCL_NTHREADS", "512"): 294.4 / 295.9,
            ("NCCL_NTHREADS", "256"): 1.04,
        },
        {
            ((CTAS, "32"), (ALGO, "allreduce:tree")): 1.018,
            ((CTAS, "32"), (BUFFER, str(8 << 20))): 0.99,
            ((ALGO, "allreduce:tree"), (BUFFER, str(1 << 20))): 1.03,
        },
        beside_compute or {},
    )


def sockets(space: Space) -> Surface:
    """Two hosts over TCP at 256 MB, default 3.0 GB/s; 2 threads with 8 channels 17.4. Made: 2 threads alone 6.0, with
    one socket each somewhat less, 8 channels alone no gain, so that the best is seen only by those who try both."""
    threads, per_thread, channels = "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", (CTAS, "8")
    return Surface(
        space,
        {
            (threads, "2"): 3.0 / 6.0,
            (threads, "1"): 0.8,
            (threads, "4"): 3.0 / 6.0,
            channels: 1.01,
            (CTAS, "16"): 1.05,
            (CTAS, "32"): 1.1,
            (ALGO, "allreduce:tree"): 1.3,
            ("NCCL_CROSS_NIC", "1"): 1.01,
        },
        {
            ((threads, "2"), channels): 6.0 / 17.4,
            ((threads, "4"), channels): 0.7,
            ((threads, "2"), (per_thread, "1")): 1.08,
        },
    )


RATES = {
    (None, None): (2.4, 2.35, 2.0),
    ("1", "4"): (6.4, 15.0, 14.4),
    ("2", "1"): (9.3, 15.9, 14.9),
    ("2", "4"): (9.0, 15.4, 14.7),
    ("4", "2"): (8.3, 13.8, 13.9),
    ("4", "4"): (8.3, 13.4, 11.6),
}
"""Threads and sockets for each -> GB/s with NCCL's own channels, with 8, with 16 at least; a fifth off that with 32 is
made up."""


def grid_of_sockets(space: Space) -> Surface:
    """Two hosts over veth at 256 MB as an exhaustive grid found them, the best of it in the median of four trials, the
    others by one (2x H200, 2026-11-29). What the trials scatter is not in it. Made: the effects of buffer, algorithm
    and threads in the GPU."""

    def table(env: Mapping[str, str]) -> float:
        rates = RATES[env.get("NCCL_SOCKET_NTHREADS"), env.get("NCCL_NSOCKS_PERTHREAD")]
        ctas = env.get(CTAS)
        rate = rates[0] if ctas is None else rates[1] if ctas == "8" else rates[2] * (0.8 if ctas == "32" else 1.0)
        return 2.4 / rate

    return Surface(
        space,
        {
            (BUFFER, str(1 << 20)): 1.1,
            (BUFFER, str(8 << 20)): 0.99,
            (BUFFER, str(16 << 20)): 1.1,
            (ALGO, "allreduce:tree"): 1.1,
            ("NCCL_NTHREADS", "512"): 1.05,
        },
        table=table,
    )


def drawn(seed: int, dimensions: int = 5, options: int = 3) -> Surface:
    """Effects of single options from -12 % to +20 %, and one pair in six of another ±8 %, by chance."""
    random = Random(seed)
    names = [f"NCCL_MADE_{at}" for at in range(dimensions)]
    space = Space(
        dimensions=tuple(
            Dimension(name=name, options=tuple(Option(env={name: str(value)}) for value in range(options)))
            for name in names
        )
    )
    single = [(name, str(value)) for name in names for value in range(options)]
    pairs = [(one, other) for one in single for other in single if one[0] < other[0] and random.random() < 1 / 6]
    return Surface(
        space,
        {each: 1 + random.uniform(-0.12, 0.20) for each in single},
        {pair: 1 + random.uniform(-0.08, 0.08) for pair in pairs},
    )
