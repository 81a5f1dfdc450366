"""Lines of a host's samples.jsonl -> typed samples, and rates of their counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

FILE = "samples.jsonl"
LONGEST = 8 << 20
"""Bytes; the agent keeps its file below 2 MiB. A longer one is not the agent's."""


class _Read(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reading; None is what the host could not read. Unknown keys are a newer agent's."""


class GpuKnown(_Read, frozen=True, kw_only=True):
    """What of a GPU does not change."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_total: int | None = None
    power_limit_w: float | None = None


class Header(_Read, frozen=True, kw_only=True):
    """First line of the file."""

    version: int = 1
    run: str = ""
    host: str = ""
    every: float
    """Seconds between samples, as asked for; a file that grows long has fewer."""
    cpus: int | None = None
    gpus: tuple[GpuKnown, ...] = ()


class GpuRead(_Read, frozen=True, kw_only=True):
    """One GPU at one moment. Bytes, replays and errors count on from the driver's start."""

    util: float | None = None
    """Percent of the time in which a kernel ran; one that waits for its peers counts."""
    memory_used: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    reasons: tuple[str, ...] = ()
    """What holds the clocks down, as `nvrun facts` names it."""
    nvlink_tx: int | None = None
    nvlink_rx: int | None = None
    pcie_tx_per_s: int | None = None
    """Bytes a second in the 20 ms before, with PCIe's own headers: one look, not what passed since the last sample."""
    pcie_rx_per_s: int | None = None
    pcie_replays: int | None = None
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    nvlink_crc: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class RankRead(_Read, frozen=True, kw_only=True):
    """One rank with all processes below it, since their start."""

    pid: int
    cpu_s: float | None = None
    wait_s: float | None = None
    """Seconds for which the main thread was ready to run and had no CPU."""
    rss: int | None = None
    """Bytes; pages that its processes share count in each."""
    minor: int | None = None
    major: int | None = None
    """Page faults that had to read from a disk."""
    processes: int = 1


class Sample(_Read, frozen=True, kw_only=True):
    """One moment of one host."""

    at: float
    """Seconds since the epoch by the host's clock."""
    cpu_busy_s: float | None = None
    cpu_total_s: float | None = None
    memory_available: int | None = None
    gpus: tuple[GpuRead, ...] | None = None
    """In the header's order; None where the driver did not answer, see `gpus_unread`."""
    gpus_unread: str = ""
    interfaces: Mapping[str, Mapping[str, int]] = {}
    """Name -> rx, tx (bytes), errors, drops; of a card also carrier_down_count."""
    rdma: Mapping[str, Mapping[str, int]] = {}
    """`device/port` -> rx, tx (bytes) and errors by name."""
    ranks: Mapping[int, RankRead] = {}
    spent_s: float = 0.0
    """CPU time of the monitor itself so far."""


class HostSamples(_Read, frozen=True, kw_only=True):
    """All samples of one host, the earliest first."""

    header: Header
    samples: tuple[Sample, ...] = ()
    unread: int = 0
    """Lines that were no samples: of a host that died while it wrote, at most one."""


def parse(lines: Iterable[bytes]) -> HostSamples | None:
    """None where there is no header: the host was not watched, or ended before its first sample."""
    decoder = msgspec.json.Decoder(Sample, strict=False)
    found: list[Sample] = []
    header: Header | None = None
    unread = 0
    for line in lines:
        try:
            if header is None:
                header = msgspec.json.decode(line, type=Header)
            else:
                found.append(decoder.decode(line))
        except msgspec.MsgspecError:
            if header is None:
                return None
            unread += 1
    if header is None:
        return None
    return HostSamples(header=header, samples=tuple(sorted(found, key=lambda each: each.at)), unread=unread)


def read(folder: Path) -> HostSamples | None:
    """The samples in a host's log folder; None where there are none that could be read."""
    path = folder / FILE
    try:
        if path.is_symlink() or path.stat().st_size > LONGEST:
            return None
        with path.open("rb") as file:
            return parse(file)
    except OSError:
        return None


def rates(
    samples: Iterable[Sample], counter: Callable[[Sample], float | None], scale: float = 1.0
) -> Iterator[tuple[float, float | None]]:
    """(time, counts a second since the sample before); None where it is not known, or began again from 0."""
    before: tuple[float, float] | None = None
    for sample in samples:
        value = counter(sample)
        if value is None:
            yield sample.at, None
            before = None
            continue
        if before is not None:
            seconds, grown = sample.at - before[0], value - before[1]
            yield sample.at, grown / seconds * scale if seconds > 0 and grown >= 0 else None
        before = sample.at, value
