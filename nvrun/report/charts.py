"""Samples and ends of a run -> charts as data, which report.js draws. Pure.

Times are seconds since the run began, by the launcher's clock.
"""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

from nvrun.model import Frozen, RankEnd, RunResult
from nvrun.monitor import GpuRead, HostSamples, RankRead, Sample, rates
from nvrun.report.recorded import Recorded
from nvrun.report.text import ended

MOST_SERIES = 24
"""More lines than this are shown as their lowest, middle and highest."""
MOST_POINTS = 400
FEW_SERIES = 8
"""More lines than this cannot be told apart by colour: only those that stand out have one."""
STANDS_OUT = 0.1
"""Of the middle of all: how far a line's mean must be away to stand out."""
MOST_RANKS = 64
"""More ranks than this are shown by host."""
_GB, _GIB = 1e-9, 1 / (1 << 30)

Points = Sequence[tuple[float, float | None]]


class Series(Frozen, frozen=True, kw_only=True):
    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    loud: bool = True
    """False for one of many that are alike: drawn in the background."""


class Event(Frozen, frozen=True, kw_only=True):
    """Something that happened at one moment of the run."""

    at: float
    text: str
    kind: Literal["start", "restart", "failure", "end"]


class Bar(Frozen, frozen=True, kw_only=True):
    """One rank, or one host, from where it was let go to its end."""

    name: str
    begun: float
    ended: float
    first_output: float | None
    outcome: Literal["ok", "failed", "stopped"]
    text: str


class Chart(Frozen, frozen=True, kw_only=True, omit_defaults=False):
    id: str
    title: str
    unit: str
    """Of the y axis; empty for bars."""
    series: tuple[Series, ...] = ()
    bars: tuple[Bar, ...] = ()
    x: Literal["time", "bytes", "bars"] = "time"
    top: float | None = None
    """Highest value of the y axis, where the unit has one."""
    note: str = ""


def charts(run: Recorded) -> tuple[Chart, ...]:
    """All charts for which there is data."""
    found = [*_ranks_over_time(run.result), *_gpus(run), *_network(run), *_ranks(run), *_hosts(run), *bandwidth(run)]
    return tuple(chart for chart in found if chart.series or chart.bars)


def events(run: Recorded) -> tuple[Event, ...]:
    """Start, first output, restarts, the failure."""
    result = run.result
    if result is None:
        return ()
    found: list[Event] = []
    begun = [end.begun for end in result.ranks if end.begun is not None and not end.attempt]
    output = [end.first_output for end in result.ranks if end.first_output is not None]
    if begun:
        found.append(Event(at=min(begun), text="ranks begin", kind="start"))
    if output:
        found.append(Event(at=min(output), text="first output", kind="start"))
    for attempt in sorted({end.attempt for end in result.ranks if end.attempt}):
        again = [end.begun for end in result.ranks if end.attempt == attempt and end.begun is not None]
        if again:
            found.append(Event(at=min(again), text=f"restart {attempt}", kind="restart"))
    first = result.first_failure
    if first and first.at is not None:
        found.append(Event(at=first.at, text=f"rank {first.rank} failed", kind="failure"))
    return tuple(Event(at=round(each.at - run.begun, 3), text=each.text, kind=each.kind) for each in found)


def label(text: str) -> str:
    """A name for the charts, whose library takes some HTML in it."""
    return html.escape(text)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def _ranks_over_time(result: RunResult | None) -> Iterator[Chart]:
    if result is None:
        return
    ends = [end for end in result.ranks if end.begun is not None and end.at is not None]
    if len(ends) <= MOST_RANKS:
        bars = tuple(_bar(_rank_name(end), [end], result) for end in ends)
        title = "Ranks, from go to end"
    else:
        hosts = dict.fromkeys(end.host for end in ends)
        bars = tuple(_bar(host, [end for end in ends if end.host == host], result) for host in hosts)
        title = "Hosts, from the first rank's go to the last one's end"
    note = "◆ first output" if any(bar.first_output is not None for bar in bars) else ""
    yield Chart(id="ranks", title=title, unit="", bars=bars, x="bars", note=note)


def _rank_name(end: RankEnd) -> str:
    return f"rank {end.rank}{f' (restart {end.attempt})' if end.attempt else ''}, {end.host}"


def _bar(name: str, ends: Sequence[RankEnd], result: RunResult) -> Bar:
    failed = [end for end in ends if end.failed]
    stopped = [end for end in ends if end.by_nvrun]
    worst = (failed or stopped or ends)[0]
    output = [end.first_output for end in ends if end.first_output is not None]
    return Bar(
        name=label(name),
        begun=round(min(end.begun or 0.0 for end in ends) - result.started, 3),
        ended=round(max(end.at or 0.0 for end in ends) - result.started, 3),
        first_output=round(min(output) - result.started, 3) if output else None,
        outcome="failed" if failed else "stopped" if stopped else "ok",
        text=label(f"{ended(worst.code)}{', ended by nvrun' if worst.by_nvrun else ''}"),
    )


def _gpus(run: Recorded) -> Iterator[Chart]:
    wanted: tuple[tuple[str, str, str, Callable[[GpuRead], float | None], float, float | None], ...] = (
        ("gpu-util", "GPU utilisation", "%", lambda gpu: gpu.util, 1, 100),
        ("gpu-power", "GPU power", "W", lambda gpu: gpu.power_w, 1, None),
        ("gpu-clock", "GPU clock (SM)", "MHz", lambda gpu: gpu.sm_mhz, 1, None),
        ("gpu-temperature", "GPU temperature", "°C", lambda gpu: gpu.temperature_c, 1, None),
        ("gpu-memory", "GPU memory in use", "GiB", lambda gpu: gpu.memory_used, _GIB, None),
        ("pcie", "PCIe, received by each GPU at that moment", "GB/s", lambda gpu: gpu.pcie_rx_per_s, _GB, None),
    )
    for name, title, unit, value, scale, top in wanted:
        yield _chart(name, title, unit, _of_gpus(run, value, scale, rate=False), top=top)
    yield _chart("nvlink", "NVLink, sent by each GPU", "GB/s", _of_gpus(run, lambda gpu: gpu.nvlink_tx, _GB, rate=True))


def _of_gpus(run: Recorded, value: Callable[[GpuRead], float | None], scale: float, *, rate: bool) -> dict[str, Points]:
    found: dict[str, Points] = {}
    for host, seen in run.samples.items():
        for at, known in enumerate(seen.header.gpus):

            def read(sample: Sample, at: int = at) -> float | None:
                return value(sample.gpus[at]) if sample.gpus and at < len(sample.gpus) else None

            found[_where(run, host, f"GPU {known.index}")] = _points(run, host, seen, read, scale, rate=rate)
    return found


def _network(run: Recorded) -> Iterator[Chart]:
    for direction, word in (("tx", "sent"), ("rx", "received")):
        found: dict[str, Points] = {}
        for host, seen in run.samples.items():
            ports = dict.fromkeys(name for sample in seen.samples for name in (*sample.interfaces, *sample.rdma))
            for port in ports:

                def read(sample: Sample, port: str = port, direction: str = direction) -> float | None:
                    return {**sample.interfaces, **sample.rdma}.get(port, {}).get(direction)

                found[_where(run, host, port)] = _points(run, host, seen, read, _GB, rate=True)
        loud = {name: points for name, points in found.items() if any(value for _, value in points)}
        yield _chart(f"network-{direction}", f"Network, {word}", "GB/s", loud)


def _ranks(run: Recorded) -> Iterator[Chart]:
    wanted: tuple[tuple[str, str, str, Callable[[RankRead], float | None], float, bool], ...] = (
        ("rank-cpu", "CPUs in use by each rank", "CPUs", lambda rank: rank.cpu_s, 1, True),
        ("rank-memory", "Memory of each rank", "GiB", lambda rank: rank.rss, _GIB, False),
        ("rank-wait", "Ready to run, without a CPU", "% of time", lambda rank: rank.wait_s, 100, True),
        ("rank-faults", "Major page faults of each rank", "per second", lambda rank: rank.major, 1, True),
    )
    for name, title, unit, value, scale, rate in wanted:
        found: dict[str, Points] = {}
        for host, seen in run.samples.items():
            for number in sorted({number for sample in seen.samples for number in sample.ranks}):

                def read(
                    sample: Sample, number: int = number, value: Callable[[RankRead], float | None] = value
                ) -> float | None:
                    return value(sample.ranks[number]) if number in sample.ranks else None

                found[f"rank {number}"] = _points(run, host, seen, read, scale, rate=rate)
        if name == "rank-faults" and not any(y for points in found.values() for _, y in points):
            continue
        yield _chart(name, title, unit, found)


def _hosts(run: Recorded) -> Iterator[Chart]:
    busy: dict[str, Points] = {}
    memory: dict[str, Points] = {}
    for host, seen in run.samples.items():
        used = rates(seen.samples, lambda sample: sample.cpu_busy_s)
        all_of_it = rates(seen.samples, lambda sample: sample.cpu_total_s)
        shares = [
            (at - run.begun - run.offset(host), 100 * part / whole if part is not None and whole else None)
            for (at, part), (_, whole) in zip(used, all_of_it, strict=True)
        ]
        busy[host] = shares
        memory[host] = _points(run, host, seen, lambda sample: sample.memory_available, _GIB, rate=False)
    yield _chart("host-cpu", "CPUs of each host, busy", "%", busy, top=100)
    yield _chart("host-memory", "Memory left on each host", "GiB", memory)


def bandwidth(run: Recorded) -> Iterator[Chart]:
    """Bus bandwidth over message size, a line for each collective and scope."""
    lines: dict[str, list[tuple[float, float | None]]] = {}
    for record in run.bench:
        if "bus_bandwidth" in record and not record.get("overlap"):
            name = f"{record['collective']}, {record['scope']}".replace("_", "-")
            lines.setdefault(name, []).append((record["bytes"], record["bus_bandwidth"] * _GB))
    series = [_series(name, sorted(points)) for name, points in lines.items()]
    yield Chart(id="bandwidth", title="Bus bandwidth over message size", unit="GB/s", series=tuple(series), x="bytes")


# -- lines -------------------------------------------------------------------------------------------------------------


def _where(run: Recorded, host: str, what: str) -> str:
    return what if len(run.plan.hosts) == 1 else f"{host} {what}"


def _points(
    run: Recorded,
    host: str,
    seen: HostSamples,
    read: Callable[[Sample], float | None],
    scale: float,
    *,
    rate: bool,
) -> Points:
    zero = run.begun + run.offset(host)
    if rate:
        found = list(rates(seen.samples, read, scale))
    else:
        found = [(sample.at, None if (value := read(sample)) is None else value * scale) for sample in seen.samples]
    return [(at - zero, value) for at, value in found]


def _chart(id: str, title: str, unit: str, lines: Mapping[str, Points], *, top: float | None = None) -> Chart:
    known = {name: points for name, points in lines.items() if any(value is not None for _, value in points)}
    note = ""
    if len(known) > MOST_SERIES:
        note = f"lowest, middle and highest of {len(known)}"
        known = envelope(known.values())
    loud = standing_out(known) if len(known) > FEW_SERIES else known.keys()
    series = tuple(_series(name, reduced(points), name in loud) for name, points in known.items())
    return Chart(id=id, title=title, unit=unit, series=series, top=top, note=note)


def standing_out(lines: Mapping[str, Points]) -> Collection[str]:
    """The lines whose means are far from the others', at most `FEW_SERIES`, the farthest first."""
    means = {name: fmean(y for _, y in points if y is not None) for name, points in lines.items()}
    middle = median(means.values())
    far = {name: abs(mean - middle) for name, mean in means.items() if abs(mean - middle) > STANDS_OUT * abs(middle)}
    return sorted(far, key=lambda name: -far[name])[:FEW_SERIES]


def _series(name: str, points: Points, loud: bool = True) -> Series:
    return Series(
        name=label(name),
        loud=loud,
        x=tuple(round(at, 2) for at, _ in points),
        y=tuple(None if value is None else float(f"{value:.4g}") for _, value in points),
    )


def reduced(points: Points) -> Points:
    """Neighbours put together by their mean until there are no more than MOST_POINTS."""
    width = -(-len(points) // MOST_POINTS)
    if width <= 1:
        return points
    return [_mean(points[at : at + width]) for at in range(0, len(points), width)]


def _mean(points: Points) -> tuple[float, float | None]:
    values = [value for _, value in points if value is not None]
    return fmean(at for at, _ in points), fmean(values) if values else None


def envelope(lines: Iterable[Points]) -> dict[str, Points]:
    """Lowest, middle and highest of many lines whose points lie at different times: each keeps its last value."""
    known = [[(at, value) for at, value in line if value is not None] for line in lines]
    known = [line for line in known if line]
    first, last = min(line[0][0] for line in known), max(line[-1][0] for line in known)
    gaps = [later[0] - earlier[0] for line in known for earlier, later in pairwise(line)]
    width = max((last - first) / MOST_POINTS, median(gaps) if gaps else 0.0) or 1.0
    moments = [first + width * (step + 1) for step in range(max(1, round((last - first) / width)))]
    found: dict[str, list[tuple[float, float | None]]] = {"highest": [], "middle": [], "lowest": []}
    for moment in moments:
        values = [value for line in known if (value := _last_before(line, moment, width)) is not None]
        for name, of in (("highest", max), ("middle", median), ("lowest", min)):
            found[name].append((moment, float(of(values)) if values else None))
    return dict(found)


def _last_before(line: Sequence[tuple[float, float]], moment: float, width: float) -> float | None:
    """The line's value at that moment; None before it began and after it ended."""
    place = bisect_right(line, moment, key=lambda point: point[0])
    if not place or (place == len(line) and moment - line[-1][0] > 2 * width):
        return None
    return line[place - 1][1]
