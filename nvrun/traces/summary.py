"""Events of one rank's trace -> where its time went. Pure, in one pass over the events."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from nvrun.model import Frozen
from nvrun.traces.events import Event, Message
from nvrun.traces.spans import Span, Spans, common, inside, length

MOST_SIZES = 8
"""Message sizes of a collective that are kept apart, the ones that carry most."""
_MICRO = 1e-6


class Timed(Frozen, frozen=True, kw_only=True):
    """All events of one name."""

    name: str
    count: int
    seconds: float
    """Added up."""


class Size(Frozen, frozen=True, kw_only=True):
    """Messages of one size."""

    bytes: int
    count: int


class Collective(Frozen, frozen=True, kw_only=True):
    """All calls of one collective."""

    name: str
    count: int
    seconds: float
    """While one ran; two at once count once."""
    exposed: float
    """Of these, while no other work ran."""
    bytes: int | None = None
    """Of all messages; None where the trace does not say."""
    sizes: tuple[Size, ...] = ()
    """Those that carry most first, at most 8."""
    dtypes: tuple[str, ...] = ()
    group: int | None = None
    """Ranks, of the largest group."""


class Accumulation(Frozen, frozen=True, kw_only=True):
    """DDP's forward passes against the optimizer's steps."""

    forwards: int
    optimizer_steps: int
    needless: int
    """Forward passes that no optimizer step follows before the next, and whose gradients were reduced all the same."""


class RankProfile(Frozen, frozen=True, kw_only=True):
    """Where the time of one rank's profiled steps went, in seconds."""

    trace: str
    rank: int | None = None
    host: str = ""
    device: Literal["gpu", "cpu"] = "gpu"
    """What the work ran on: kernels of a GPU, or operators on the CPU beside gloo."""
    steps: int = 0
    """The profiler's; 0 where the script does not mark any."""
    total: float
    """From the first to the last of what ran."""
    communication: float
    """While a collective ran."""
    exposed: float
    """While a collective ran and no other work did: what a faster network could save at most."""
    compute: float
    """While other work ran."""
    collectives: tuple[Collective, ...] = ()
    """The longest first."""
    waits: tuple[Timed, ...] = ()
    """CUDA calls in which the CPU waited for the GPU."""
    copies: tuple[Timed, ...] = ()
    marks: tuple[Timed, ...] = ()
    """Operators and annotations that advice is made from."""
    accumulation: Accumulation | None = None
    """None without DDP."""

    @property
    def busy(self) -> float:
        """While anything ran."""
        return self.compute + self.exposed

    @property
    def idle(self) -> float:
        """While nothing ran."""
        return max(0.0, self.total - self.busy)

    @property
    def hidden(self) -> float | None:
        """Part of the communication that ran beside other work; None where there was none."""
        return 1 - self.exposed / self.communication if self.communication else None

    def each_step(self, seconds: float) -> float:
        return seconds / (self.steps or 1)


@dataclass(slots=True)
class _Calls:
    """What is collected of one collective."""

    spans: Spans = field(default_factory=Spans)
    count: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    unsized: int = 0
    dtypes: dict[str, None] = field(default_factory=dict)
    group: int | None = None

    def add(self, event: Event, message: Message) -> None:
        self.spans.add(event.begin, event.end)
        self.count += 1
        if message.bytes is None:
            self.unsized += 1
        else:
            self.sizes[message.bytes] += 1
        if message.dtype:
            self.dtypes[message.dtype] = None
        self.group = max(filter(None, (self.group, message.group)), default=None)


def summarize(events: Iterable[Event], *, trace: str, rank: int | None = None, host: str = "") -> RankProfile | None:
    """None for a trace in which nothing ran."""
    calls: dict[str, _Calls] = {}
    kernels, work, steps = Spans(), Spans(), 0
    times: dict[str, dict[str, list[float]]] = {"copy": {}, "runtime": {}, "mark": {}}
    moments: dict[str, list[float]] = {"forward": [], "optimizer": [], "reduce": []}
    for event in events:
        if event.kind == "collective" and event.message:
            calls.setdefault(event.message.collective, _Calls()).add(event, event.message)
        elif event.kind == "kernel":
            kernels.add(event.begin, event.end)
        elif event.kind == "work":
            work.add(event.begin, event.end)
        elif event.kind == "step":
            steps += 1
        else:
            entry = times[event.kind].setdefault(event.name, [0, 0.0])
            entry[0] += 1
            entry[1] += event.end - event.begin
            if moment := _moment(event.name):
                moments[moment].append(event.begin)
    on_gpu = bool(kernels)
    computing = (kernels if on_gpu else work).joined()
    by_name = {name: found.spans.joined() for name, found in calls.items()}
    wire = _union(by_name.values())
    if not computing and not wire:
        return None
    ends = [*computing[:1], *wire[:1], *computing[-1:], *wire[-1:]]
    window = min(begin for begin, _ in ends), max(end for _, end in ends)
    return RankProfile(
        trace=trace,
        rank=rank,
        host=host,
        device="gpu" if on_gpu else "cpu",
        steps=steps,
        total=(window[1] - window[0]) * _MICRO,
        communication=length(wire) * _MICRO,
        exposed=(length(wire) - common(wire, computing)) * _MICRO,
        compute=length(inside(computing, window)) * _MICRO,
        collectives=_collectives(calls, by_name, computing),
        waits=_timed(times["runtime"]),
        copies=_timed(times["copy"]),
        marks=_timed(times["mark"]),
        accumulation=_accumulation(moments),
    )


def _moment(name: str) -> str | None:
    if name == "DistributedDataParallel.forward":
        return "forward"
    if name.startswith("Optimizer.step#"):
        return "optimizer"
    return "reduce" if name == "c10d::allreduce_" else None


def _union(parts: Iterable[Sequence[Span]]) -> list[Span]:
    spans = Spans()
    for begin, end in sorted(span for part in parts for span in part):
        spans.add(begin, end)
    return spans.joined()


def _collectives(
    calls: dict[str, _Calls], spans: dict[str, list[Span]], computing: Sequence[Span]
) -> tuple[Collective, ...]:
    found = []
    for name, each in calls.items():
        seconds = length(spans[name])
        heaviest = sorted(each.sizes.items(), key=lambda size: (-size[0] * size[1], -size[0]))
        found.append(
            Collective(
                name=name,
                count=each.count,
                seconds=seconds * _MICRO,
                exposed=(seconds - common(spans[name], computing)) * _MICRO,
                bytes=None if each.unsized else sum(size * count for size, count in each.sizes.items()),
                sizes=tuple(Size(bytes=size, count=count) for size, count in heaviest[:MOST_SIZES]),
                dtypes=tuple(each.dtypes),
                group=each.group,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.seconds))


def _timed(times: dict[str, list[float]]) -> tuple[Timed, ...]:
    found = (Timed(name=name, count=int(count), seconds=took * _MICRO) for name, (count, took) in times.items())
    return tuple(sorted(found, key=lambda each: -each.seconds))


def _accumulation(moments: dict[str, list[float]]) -> Accumulation | None:
    """Which of DDP's forward passes end in a reduction that no optimizer step uses."""
    forwards = sorted(moments["forward"])
    if not forwards:
        return None
    reductions, optimizer = sorted(moments["reduce"]), sorted(moments["optimizer"])
    needless = sum(
        _any_between(reductions, begin, end) and not _any_between(optimizer, begin, end)
        for begin, end in pairwise(forwards)
    )
    return Accumulation(forwards=len(forwards), optimizer_steps=len(moments["optimizer"]), needless=needless)


def _any_between(moments: Sequence[float], begin: float, end: float) -> bool:
    return bisect_left(moments, begin) < bisect_left(moments, end)
