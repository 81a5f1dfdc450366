"""A sample as Prometheus text, for the textfile collector of a node_exporter on the host."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, List, Mapping, Tuple

GAUGES = {
    "util": ("nvrun_gpu_utilization_ratio", 0.01),
    "memory_used": ("nvrun_gpu_memory_used_bytes", 1),
    "power_w": ("nvrun_gpu_power_watts", 1),
    "temperature_c": ("nvrun_gpu_temperature_celsius", 1),
    "sm_mhz": ("nvrun_gpu_sm_clock_hertz", 1e6),
    "pcie_tx_per_s": ("nvrun_gpu_pcie_transmit_bytes_per_second", 1),
    "pcie_rx_per_s": ("nvrun_gpu_pcie_receive_bytes_per_second", 1),
}
COUNTERS = {
    "nvlink_tx": "nvrun_gpu_nvlink_transmitted_bytes_total",
    "nvlink_rx": "nvrun_gpu_nvlink_received_bytes_total",
    "pcie_replays": "nvrun_gpu_pcie_replays_total",
    "ecc_uncorrected": "nvrun_gpu_ecc_uncorrected_total",
}
RANK = {
    "rss": ("nvrun_rank_resident_bytes", "gauge"),
    "cpu_s": ("nvrun_rank_cpu_seconds_total", "counter"),
    "major": ("nvrun_rank_major_faults_total", "counter"),
}
Row = Tuple[str, str, Dict[str, str], float]
"""Name, type, labels, value."""


class Textfile:
    """One file of this run in the collector's folder, replaced whole with each sample and removed at the end."""

    def __init__(self, folder: str, run: str) -> None:
        self._run = run
        self._path = os.path.join(folder, "nvrun-%s.prom" % run)

    def write(self, known: List[Dict[str, Any]], sample: Mapping[str, Any]) -> None:
        """What cannot be written is left: the job and its samples do not depend on it."""
        part = "%s.%d" % (self._path, os.getpid())  # the collector reads *.prom only
        with contextlib.suppress(OSError):
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "w") as file:
                file.write(text(self._run, known, sample))
            os.rename(part, self._path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def text(run: str, known: List[Dict[str, Any]], sample: Mapping[str, Any]) -> str:
    """One sample; `known` has the index and UUID of each of its GPUs."""
    grouped: Dict[Tuple[str, str], List[str]] = {}
    for name, kind, labels, value in _rows(known, sample):
        inside = ",".join('%s="%s"' % (label, _escaped(content)) for label, content in {"run": run, **labels}.items())
        grouped.setdefault((name, kind), []).append("%s{%s} %s" % (name, inside, repr(value)))
    lines: List[str] = []
    for (name, kind), rows in grouped.items():
        lines += ["# TYPE %s %s" % (name, kind), *rows]
    return "\n".join(lines) + "\n"


def _rows(known: List[Dict[str, Any]], sample: Mapping[str, Any]) -> Iterator[Row]:
    for gpu, read in zip(known, sample.get("gpus") or []):  # noqa: B905 - Python 3.9
        labels = {"gpu": str(gpu["index"]), "uuid": str(gpu["uuid"])}
        for field, (name, scale) in GAUGES.items():
            if field in read:
                yield name, "gauge", labels, read[field] * scale
        for field, name in COUNTERS.items():
            if field in read:
                yield name, "counter", labels, read[field]
        for reason in read.get("reasons") or ():
            yield "nvrun_gpu_throttled", "gauge", {**labels, "reason": reason}, 1
    for rank, read in sample["ranks"].items():
        for field, (name, kind) in RANK.items():
            if field in read:
                yield name, kind, {"rank": rank}, read[field]
    yield "nvrun_sample_timestamp_seconds", "gauge", {}, sample["at"]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
