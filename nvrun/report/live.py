"""The newest samples of a run as a table for the terminal: a line a rank, and one a host. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from nvrun.monitor import HostSamples, RankRead, Sample
from nvrun.plan import HostPlan, Plan
from nvrun.report.findings import printable

HEAD = ("host", "rank", "GPU", "busy", "memory", "power", "temp", "clock", "NVLink", "CPUs", "RAM", "held by")
_UNKNOWN = "-"


def rows(plan: Plan, seen: Mapping[str, HostSamples]) -> Iterator[tuple[str, ...]]:
    """Cells under `HEAD`; rates are those between the last two samples."""
    for host in plan.hosts:
        samples = seen.get(host.host.name)
        if samples is None or not samples.samples:
            yield (printable(host.host.name), "no sample", *[""] * (len(HEAD) - 2))
            continue
        for rank in host.ranks:
            index = rank.binding.gpu_index if rank.binding else None
            yield (printable(host.host.name), str(rank.rank), *_gpu(samples, index), *_rank(samples, rank.rank, index))


def host_lines(plan: Plan, seen: Mapping[str, HostSamples], now: Mapping[str, float]) -> Iterator[str]:
    """`n01: CPUs 23% busy, 1804 GiB left, sent 21 GB/s, received 20.9 GB/s (4 s ago)`; `now` by the host's clock."""
    for host in plan.hosts:
        samples = seen.get(host.host.name)
        if samples is not None and samples.samples:
            yield _host(host, samples, now[host.host.name])


def _host(host: HostPlan, seen: HostSamples, now: float) -> str:
    last = seen.samples[-1]
    busy, whole = _rate(seen, lambda each: each.cpu_busy_s), _rate(seen, lambda each: each.cpu_total_s)
    said = []
    if busy is not None and whole:
        said.append(f"CPUs {busy / whole:.0%} busy")
    if last.memory_available is not None:
        said.append(f"{last.memory_available / (1 << 30):.0f} GiB left")
    for word, way in (("sent", "tx"), ("received", "rx")):
        if (rate := _rate(seen, partial(_bytes, way=way))) is not None:
            said.append(f"{word} {rate / 1e9:.3g} GB/s")
    if last.gpus is None:
        said.append(f"GPUs not read: {printable(last.gpus_unread)}")
    return f"{printable(host.host.name)}: {', '.join(said)} ({max(0.0, now - last.at):.0f} s ago)"


def _bytes(sample: Sample, way: str) -> float:
    return sum(port.get(way, 0) for port in (*sample.interfaces.values(), *sample.rdma.values()))


def _gpu(seen: HostSamples, index: int | None) -> Sequence[str]:
    at = next((at for at, known in enumerate(seen.header.gpus) if known.index == index), None)
    gpus = seen.samples[-1].gpus
    if index is None or at is None or gpus is None or at >= len(gpus):
        return [_UNKNOWN if index is None else str(index), *[_UNKNOWN] * 6]
    gpu = gpus[at]
    total = seen.header.gpus[at].memory_total
    memory = _shown(gpu.memory_used, "{:.0f}", 1 / (1 << 30)) + (f"/{total / (1 << 30):.0f} GiB" if total else " GiB")
    link = _rate(seen, lambda each: each.gpus[at].nvlink_tx if each.gpus and at < len(each.gpus) else None)
    return [
        str(index),
        _shown(gpu.util, "{:.0f} %"),
        memory,
        _shown(gpu.power_w, "{:.0f} W"),
        _shown(gpu.temperature_c, "{:.0f} °C"),
        _shown(gpu.sm_mhz, "{:.0f} MHz"),
        _shown(link, "{:.3g} GB/s", 1e-9),
    ]


def _rank(seen: HostSamples, rank: int, index: int | None) -> Sequence[str]:
    def of(value: Callable[[RankRead], float | None]) -> Callable[[Sample], float | None]:
        return lambda sample: value(sample.ranks[rank]) if rank in sample.ranks else None

    last = seen.samples[-1]
    rss = of(lambda each: each.rss)(last)
    reasons: Sequence[str] = ()
    for at, known in enumerate(seen.header.gpus):
        if known.index == index and last.gpus and at < len(last.gpus):
            reasons = [reason for reason in last.gpus[at].reasons if reason != "idle"]
    cpus = _rate(seen, of(lambda each: each.cpu_s))
    return [_shown(cpus, "{:.1f}"), _shown(rss, "{:.1f} GiB", 1 / (1 << 30)), printable(", ".join(reasons))]


def _rate(seen: HostSamples, value: Callable[[Sample], float | None]) -> float | None:
    for earlier, later in pairwise(seen.samples[-2:]):
        before, after = value(earlier), value(later)
        if before is not None and after is not None and after >= before and later.at > earlier.at:
            return (after - before) / (later.at - earlier.at)
    return None


def _shown(value: float | None, form: str, scale: float = 1.0) -> str:
    return _UNKNOWN if value is None else form.format(value * scale)
