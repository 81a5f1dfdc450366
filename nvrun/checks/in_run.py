"""What the hosts' monitors saw while a job ran: GPUs and ranks that hold up the others, and errors that grew.

Pure: samples in, findings out. In a job whose ranks wait for each other the slow one is not the one that waits: a GPU
that waits for its peers in a collective is fully utilised by NVML's measure, the slow rank's is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from time import gmtime, strftime
from typing import NamedTuple

from nvrun.checks.code import ERROR, INFO, WARNING, Code, declare
from nvrun.meanings import there
from nvrun.model import Finding
from nvrun.monitor import GpuKnown, GpuRead, HostSamples, Sample

LEAST_SAMPLES = 6
"""A minute at the usual pace; fewer say nothing of a job."""
BUSY = 50.0
"""Percent of utilisation from which on a GPU's clock is that of its work."""
SLOW_CLOCK = 0.9
"""Of the others' median: H100s of one batch differ by 2 to 3 % under load."""
HOT_C = 15.0
"""Degrees above the median of the host's other GPUs. Chosen: no vendor names a limit, so it is for information only."""
THROTTLED_SHARE, BRAKED_SHARE = 0.3, 0.1
"""Of the samples under load, for heat by software and for any brake by hardware. Chosen; hardware brakes only for a
fault, software for heat also on a hot day."""
IDLE_POINTS = 25.0
"""Percentage points of utilisation below the peers'. Chosen: ranks with equal work differ by less."""
CONTENDED_SHARE = 0.2
"""Of the time a rank was ready to run and had no CPU, which must be twice its peers' too. Chosen."""
MAJOR_A_SECOND = 20.0
"""Page faults that a disk had to serve, a second, over the whole run. Chosen: what is read once comes in a burst."""
REPLAYS = 100
"""PCIe replays in a job; a healthy link has a few a day."""

_NVML = "https://docs.nvidia.com/deploy/nvml-api/"
_READ = "the monitor's samples"
_PACE = "ranks wait for each other in every collective: the slowest sets the pace of all"
_BRAKES = ("hardware thermal", "power brake", "hardware slowdown")

SLOW = declare(
    "run-gpu-slow",
    WARNING,
    "one GPU's clock was lower under load than its peers'",
    read=f"{_READ}: SM clock while the GPU was busy, against the median of the job's other GPUs of that model",
    why=_PACE,
    remedy="nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE on that host; leave it out meanwhile: --exclude HOST",
    source="measured spread of like GPUs under load; open_clip#703, Megatron-LM#4662",
    real=False,
)
THROTTLED = declare(
    "run-gpu-throttled",
    WARNING,
    "a GPU's clocks were held down during the job",
    read=f"{_READ}: NVML's clocks event reasons while the GPU was busy",
    why=_PACE,
    remedy="thermal: airflow and fans; power brake: power supply, PDU or BMC of the host",
    source=f"{_NVML}: nvmlClocksEventReasons",
    depends="warning from a tenth of the samples for hardware slowdowns, from a third for software thermal slowdown",
    real=False,
)
HOT = declare(
    "run-gpu-hot",
    INFO,
    "one GPU was much hotter than its neighbours",
    read=f"{_READ}: highest temperature, against the median of the other GPUs of that host",
    why="cooling of that slot is worse; it will be the first to slow down",
    remedy="look at airflow, fans and dust on that host",
    source=f"{_NVML}: nvmlDeviceGetTemperature",
    real=False,
)
STARVED = declare(
    "run-gpu-starved",
    WARNING,
    "one GPU was much less busy than its peers",
    read=f"{_READ}: mean utilisation, against the median of the job's other GPUs",
    why="a GPU that waits for its peers counts as busy, one that waits for its own rank does not: " + _PACE,
    remedy="look for what that rank alone does: data loading, logging, checkpoints; py-spy top --pid PID",
    source=f"{_NVML}: nvmlUtilization_t",
    real=False,
)
CONTENDED = declare(
    "run-rank-contended",
    WARNING,
    "a rank had to wait for a CPU much longer than its peers",
    read=f"{_READ}: time the main thread was ready to run and had no CPU (/proc/PID/schedstat)",
    why=_PACE,
    remedy="other processes or too few CPUs: nvrun plan shows the bindings; top on that host shows who is there",
    source="kernel, Documentation/scheduler/sched-stats.rst",
)
PAGED = declare(
    "run-rank-paged",
    WARNING,
    "a rank's memory was read back from a disk again and again",
    read=f"{_READ}: major page faults of the rank and its children",
    why="the host is short of memory, or files that are mapped do not fit: every access waits for a disk",
    remedy="free -h and vmstat 1 on that host; fewer data loader workers",
    source="proc(5): majflt",
)
ERRORS = declare(
    "run-errors-grew",
    WARNING,
    "a link or a memory had errors during the job",
    read=f"{_READ}: counters of NVML, of the interfaces and of RDMA ports, last against first",
    why="packets or transfers were repeated: the link is slow or about to fail",
    remedy="cable, transceiver, riser or port; look whether it goes on: nvrun check",
    source=f"{_NVML}; kernel, Documentation/ABI/stable/sysfs-class-infiniband",
    depends="error for uncorrected memory errors",
    real=False,
)
LINK_DOWN = declare(
    "run-link-down",
    WARNING,
    "a network link went down during the job",
    read=f"{_READ}: link_downed of RDMA ports, carrier_down_count of network cards, each against the sample before",
    why="what was on its way is lost: collectives stand still until it is back, or end with an error",
    remedy="cable, transceiver or switch port; ethtool, ibstat and dmesg on that host say more",
    source="kernel, Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net",
    real=False,
)
BLIND = declare(
    "run-gpu-driver-silent",
    WARNING,
    "the GPU driver stopped answering during the job",
    read=f"{_READ}: NVML's answer, waited for 5 s",
    why="a GPU that fell off the bus, or a wedged driver, hangs whoever uses it",
    remedy="dmesg -T | grep -iE 'xid|nvrm' on that host",
    source=_NVML,
    real=False,
)


class _Gpu(NamedTuple):
    host: str
    known: GpuKnown
    all: Sequence[GpuRead]
    busy: Sequence[GpuRead]

    @property
    def label(self) -> str:
        return f"GPU {self.known.index}"


def in_run(hosts: Mapping[str, HostSamples], used: Mapping[str, frozenset[int]] | None = None) -> tuple[Finding, ...]:
    """Findings over all hosts of a run. `used`: by host the NVML indices of the job's GPUs; None: all of them."""
    gpus = [gpu for host, seen in hosts.items() for gpu in _gpus(host, seen, used)]
    found: list[Finding] = []
    for gpu in gpus:
        peers = [each for each in gpus if each is not gpu and each.known.name == gpu.known.name]
        found += _slow(gpu, peers)
        found += _throttled(gpu)
        found += _hot(gpu, [each for each in peers if each.host == gpu.host])
        found += _starved(gpu, peers)
    for host, seen in hosts.items():
        found += _errors(host, seen)
        found += _silent(host, seen)
        found += _paged(host, seen)
    return (*found, *_contended(hosts))


def _gpus(host: str, seen: HostSamples, used: Mapping[str, frozenset[int]] | None) -> Iterator[_Gpu]:
    for at, known in enumerate(seen.header.gpus):
        if used is not None and known.index not in used.get(host, ()):
            continue
        # The first and the last sample are of the job's edges: loading, and what is left after it.
        reads = [sample.gpus[at] for sample in seen.samples[1:-1] if sample.gpus and at < len(sample.gpus)]
        if len(reads) >= LEAST_SAMPLES:
            yield _Gpu(host, known, reads, [read for read in reads if (read.util or 0) >= BUSY])


def _of(reads: Sequence[GpuRead], value: Callable[[GpuRead], float | None]) -> float | None:
    values = [found for read in reads if (found := value(read)) is not None]
    return fmean(values) if len(values) >= LEAST_SAMPLES else None


def _others(peers: Sequence[_Gpu], value: Callable[[_Gpu], float | None]) -> float | None:
    values = [found for peer in peers if (found := value(peer)) is not None]
    return median(values) if values else None


def _slow(gpu: _Gpu, peers: Sequence[_Gpu]) -> Iterator[Finding]:
    mine, others = _of(gpu.busy, _clock), _others(peers, lambda peer: _of(peer.busy, _clock))
    if mine is not None and others is not None and mine < SLOW_CLOCK * others:
        yield SLOW.found(
            f"{gpu.label} ran at {mine:.0f} MHz under load, its peers at {others:.0f} MHz",
            host=gpu.host,
            subject=gpu.label,
            observed=f"{mine:.0f} MHz",
            expected=f"about {others:.0f} MHz",
            remedy=there(SLOW.remedy, gpu.host),
        )


def _clock(read: GpuRead) -> float | None:
    return read.sm_mhz


def _throttled(gpu: _Gpu) -> Iterator[Finding]:
    if len(gpu.busy) < LEAST_SAMPLES:
        return
    shares = {
        reason: sum(reason in read.reasons for read in gpu.busy) / len(gpu.busy)
        for reason in (*_BRAKES, "software thermal")
    }
    told = {
        reason: share
        for reason, share in shares.items()
        if share >= (BRAKED_SHARE if reason in _BRAKES else THROTTLED_SHARE)
    }
    if told:
        words = ", ".join(f"{reason} in {share:.0%}" for reason, share in told.items())
        yield THROTTLED.found(
            f"{gpu.label}'s clocks were held down: {words} of the samples under load",
            host=gpu.host,
            subject=gpu.label,
            observed=words,
        )


def _hot(gpu: _Gpu, neighbours: Sequence[_Gpu]) -> Iterator[Finding]:
    mine, others = _hottest(gpu), _others(neighbours, _hottest)
    if mine is not None and others is not None and mine - others >= HOT_C:
        yield HOT.found(
            f"{gpu.label} reached {mine:.0f} °C, its neighbours {others:.0f} °C",
            host=gpu.host,
            subject=gpu.label,
            observed=f"{mine:.0f} °C",
            expected=f"about {others:.0f} °C",
        )


def _hottest(gpu: _Gpu) -> float | None:
    return max((read.temperature_c for read in gpu.all if read.temperature_c is not None), default=None)


def _starved(gpu: _Gpu, peers: Sequence[_Gpu]) -> Iterator[Finding]:
    mine, others = _of(gpu.all, _util), _others(peers, lambda peer: _of(peer.all, _util))
    if mine is not None and others is not None and others >= BUSY and others - mine >= IDLE_POINTS:
        yield STARVED.found(
            f"{gpu.label} was busy {mine:.0f} % of the time, its peers {others:.0f} %: its own rank keeps it waiting",
            host=gpu.host,
            subject=gpu.label,
            observed=f"{mine:.0f} %",
            expected=f"about {others:.0f} %",
        )


def _util(read: GpuRead) -> float | None:
    return read.util


def _silent(host: str, seen: HostSamples) -> Iterator[Finding]:
    silent = [sample for sample in seen.samples if sample.gpus is None and sample.gpus_unread]
    answered = any(sample.gpus for sample in seen.samples)
    if silent and answered:
        yield BLIND.found(
            f"NVML stopped answering: {silent[0].gpus_unread}",
            host=host,
            observed=f"in {len(silent)} of {len(seen.samples)} samples",
        )


def _paged(host: str, seen: HostSamples) -> Iterator[Finding]:
    for rank, spans in _spans(seen).items():
        seconds = sum(later.at - earlier.at for earlier, later in spans)
        faults = sum(
            max(0, (later.ranks[rank].major or 0) - (earlier.ranks[rank].major or 0)) for earlier, later in spans
        )
        # The first span is the program's start, which reads its libraries from a disk.
        if len(spans) >= LEAST_SAMPLES and faults / seconds >= MAJOR_A_SECOND:
            yield PAGED.found(
                f"rank {rank} had {faults / seconds:.0f} major page faults a second",
                host=host,
                subject=f"rank {rank}",
                observed=f"{faults / seconds:.0f}/s",
            )


def _spans(seen: HostSamples) -> dict[int, list[tuple[Sample, Sample]]]:
    """Rank -> neighbouring samples in which it is the same process, without the first."""
    spans: dict[int, list[tuple[Sample, Sample]]] = {}
    for earlier, later in pairwise(seen.samples):
        for rank, now in later.ranks.items():
            if rank in earlier.ranks and earlier.ranks[rank].pid == now.pid:
                spans.setdefault(rank, []).append((earlier, later))
    return {rank: each[1:] for rank, each in spans.items() if len(each) > 1}


def _contended(hosts: Mapping[str, HostSamples]) -> Iterator[Finding]:
    shares: dict[tuple[str, int], float] = {}
    for host, seen in hosts.items():
        for rank, spans in _spans(seen).items():
            waited = [
                (later.ranks[rank].wait_s, earlier.ranks[rank].wait_s, later.at - earlier.at)
                for earlier, later in spans
            ]
            known = [
                (now - before, seconds) for now, before, seconds in waited if now is not None and before is not None
            ]
            if len(known) >= LEAST_SAMPLES:
                shares[host, rank] = sum(wait for wait, _ in known) / sum(seconds for _, seconds in known)
    for (host, rank), share in shares.items():
        others = [other for key, other in shares.items() if key != (host, rank)]
        usual = median(others) if others else 1.0
        if share >= CONTENDED_SHARE and share >= 2 * usual:
            yield CONTENDED.found(
                f"rank {rank} was ready to run but had no CPU for {share:.0%} of the time, the others for {usual:.0%}",
                host=host,
                subject=f"rank {rank}",
                observed=f"{share:.0%}",
                expected=f"about {usual:.0%}",
            )


def _errors(host: str, seen: HostSamples) -> Iterator[Finding]:
    """Counters that stand still on a healthy machine."""
    for at, known in enumerate(seen.header.gpus):
        reads = [sample.gpus[at] for sample in seen.samples if sample.gpus and at < len(sample.gpus)]
        label = f"GPU {known.index}"
        if grown := _grown([read.ecc_uncorrected for read in reads]):
            yield _grew(ERRORS, host, label, f"{grown} uncorrected memory errors", severe=True)
        if grown := _grown([read.nvlink_recoveries for read in reads]):
            yield _grew(ERRORS, host, label, f"{grown} NVLink recoveries")
        if (grown := _grown([read.pcie_replays for read in reads])) >= REPLAYS:
            yield _grew(ERRORS, host, label, f"{grown} PCIe replays")
    yield from _link_errors(host, seen)


def _link_errors(host: str, seen: HostSamples) -> Iterator[Finding]:
    names = dict.fromkeys(name for sample in seen.samples for name in sample.interfaces)
    for name in names:
        if grown := _grown([sample.interfaces.get(name, {}).get("errors") for sample in seen.samples]):
            yield _grew(ERRORS, host, name, f"{grown} packet errors")
        counts = [sample.interfaces.get(name, {}).get("carrier_down_count") for sample in seen.samples]
        yield from _went_down(host, name, seen.samples, counts)
    ports = {(port, what): None for sample in seen.samples for port, read in sample.rdma.items() for what in read}
    for port, what in ports:
        counts = [each.rdma.get(port, {}).get(what) for each in seen.samples]
        if what == "link_downed":
            yield from _went_down(host, port.replace("/", " port "), seen.samples, counts)
        elif what not in ("rx", "tx") and (grown := _grown(counts)):
            yield _grew(ERRORS, host, port, f"{what} grew by {grown}")


def _went_down(host: str, link: str, samples: Sequence[Sample], counts: Sequence[int | None]) -> Iterator[Finding]:
    """Where the counter of a link's falls grew; when, by the host's clock."""
    known = [(sample.at, count) for sample, count in zip(samples, counts, strict=True) if count is not None]
    steps = [(before, at, now - old) for (before, old), (at, now) in pairwise(known) if now > old]
    if steps:
        before, at, _ = steps[0]
        times = sum(grown for *_, grown in steps)
        often = f" {times} times, first" if times > 1 else ""
        yield LINK_DOWN.found(
            f"{link} went down{often} between {_clock_time(before)} and {_clock_time(at)} UTC",
            host=host,
            subject=link,
            observed=f"{times}",
            expected="0",
        )


def _clock_time(at: float) -> str:
    return strftime("%H:%M:%S", gmtime(at))


def _grown(values: Sequence[int | None]) -> int:
    known = [value for value in values if value is not None]
    return max(0, known[-1] - known[0]) if known else 0


def _grew(code: Code, host: str, subject: str, what: str, *, severe: bool = False) -> Finding:
    return code.found(
        f"{subject}: {what} during the job",
        host=host,
        subject=subject,
        observed=what,
        severity=ERROR if severe else None,
    )
