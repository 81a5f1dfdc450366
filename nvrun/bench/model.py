"""What is to be timed, what came back, and the bandwidths by nccl-tests' definitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Literal, get_args

from nvrun.errors import UsageError
from nvrun.model import Frozen
from nvrun.nccl.parse import scaled

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
Scope = Literal["all", "node", "across"]
"""All ranks; those of one node, on every node at once; those of one place (local rank), in all places at once."""

LARGEST = {"nccl": 8 << 30, "gloo": 64 << 20}
"""Bytes of the default range. Gloo's goes through the CPU: a larger message tells nothing new and takes seconds."""
FACTOR = 4


class Point(Frozen, frozen=True, kw_only=True, array_like=True):
    """One collective of one size."""

    collective: Collective
    bytes: int


class Schedule(Frozen, frozen=True, kw_only=True):
    """What the worker does, in order. It travels as JSON on a command line: at most 128 KiB."""

    environments: tuple[Mapping[str, str], ...] = ({},)
    order: tuple[tuple[int, bool], ...] = ((0, False),)
    """A trial each: which environment, and whether beside a matrix product."""
    points: tuple[Point, ...]
    beside: tuple[Point, ...] = ()
    """What runs beside a matrix product; `points` where nothing is named."""
    scopes: tuple[Scope, ...] = ("all",)
    seconds: float = 0.2
    """For the timed calls of one point."""
    deadline: float
    """Seconds after which a trial is killed."""
    slowest: float | None = None
    """Every later trial is killed after so many times what the first one took, if that is sooner."""
    least_deadline: float = 10.0
    """Seconds that a trial has whatever the first one took."""
    load: tuple[int, int] | None = None
    """Calls and matrix products that run beside each other; None: as many as take equally long."""
    most_bytes: Mapping[str, int] = {}
    """Backend -> the longest message that is tried; none where not named."""
    seed: int = 0


class Overlap(Frozen, frozen=True, kw_only=True):
    """Seconds of calls and of matrix products, each alone and both at once."""

    alone: tuple[float, ...]
    matmul_alone: tuple[float, ...]
    together: tuple[float, ...]
    matmul_together: tuple[float, ...]

    @property
    def total(self) -> float:
        """Seconds until both are done, begun at once: what a training step sees."""
        return median(map(max, self.together, self.matmul_together))

    @property
    def slowdown(self) -> float:
        """How much longer the collective takes beside the product."""
        return median(self.together) / median(self.alone)

    @property
    def matmul_slowdown(self) -> float:
        return median(self.matmul_together) / median(self.matmul_alone)


class Record(Frozen, frozen=True, kw_only=True):
    """One point of one trial."""

    trial: int
    collective: Collective
    bytes: int
    """By nccl-tests' count: of the longer buffer, rounded down to equal parts for all ranks."""
    scope: Scope
    seconds: tuple[float, ...] = ()
    """For one call: one number a batch, of the slowest rank. Calls follow one another; launching them is in it."""
    calls: int = 0
    """In each batch."""
    wrong: int = 0
    """Elements that were not what was sent."""
    checked: float = 0.0
    """Share of one rank's result that was compared."""
    overlap: Overlap | None = None
    load: tuple[int, int] | None = None
    skipped: str = ""

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high


class TrialEnd(Frozen, frozen=True, kw_only=True):
    trial: int
    environment: int
    seconds: float
    failed: str | None = None
    """The first rank's reason; None where all went well."""


class Setup(Frozen, frozen=True, kw_only=True):
    """What the ranks found."""

    backend: str
    world: int
    torch: str
    nccl: str | None = None
    scopes: Mapping[Scope, int] = {}
    """Ranks of a group."""


class Results(Frozen, frozen=True, kw_only=True):
    """All that a session brought back."""

    setup: Setup | None
    """None where not even the first trial came so far."""
    records: tuple[Record, ...] = ()
    trials: tuple[TrialEnd, ...] = ()

    def of_trial(self, number: int) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.trial == number)


def algorithm_bandwidth(record: Record) -> float:
    """Bytes of the message per second."""
    return record.bytes / record.median


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): what crosses a rank's link."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def bus_bandwidth(record: Record, ranks: int) -> float:
    """Bytes per second to hold against the hardware's, whatever the number of ranks."""
    return algorithm_bandwidth(record) * bus_factor(record.collective, ranks)


def sizes(text: str) -> tuple[int, ...]:
    """`8:8G`, `8:8G:2` (a factor) or `1M,25MiB` -> bytes, growing. Raises UsageError for other text."""
    parts = text.split(":")
    if len(parts) == 1:
        found = [scaled(part) for part in text.split(",")]
    else:
        low, high, factor = scaled(parts[0]), scaled(parts[1]), scaled(parts[2]) if len(parts) == 3 else FACTOR
        found = []
        if len(parts) <= 3 and low and high and factor and factor > 1:
            found = [low * factor**step for step in range(64) if low * factor**step <= high]
    if not found or any(not size or size < 4 for size in found):
        raise UsageError(f"--sizes {text}: expected 8:8G, 8:8G:2 (a factor) or a list as 1M,25M")
    return tuple(sorted({size for size in found if size}))


def collectives(text: str | None) -> tuple[Collective, ...]:
    """A comma list, `-` or `_` between the words; None means all. Raises UsageError for a word that is none."""
    if text is None:
        return COLLECTIVES
    known = {name: name for name in COLLECTIVES} | {name.replace("_", ""): name for name in COLLECTIVES}
    found: list[Collective] = []
    for word in text.split(","):
        name = known.get(word.strip().lower().replace("-", "_"))
        if name is None:
            raise UsageError(f"{word}: no collective; there are {', '.join(COLLECTIVES).replace('_', '-')}")
        found.append(name)
    return tuple(dict.fromkeys(found))


def points(chosen: Iterable[Collective], lengths: Sequence[int]) -> tuple[Point, ...]:
    return tuple(Point(collective=collective, bytes=length) for collective in chosen for length in lengths)
