"""What one sample holds: counters and gauges of this host, its GPUs, NICs and ranks, as they are read.

Counters are left as the kernel and the driver count them; whoever reads the samples makes rates of them. What cannot be
read is absent, never 0.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import procs
from .probe.gpu import CLOCK_SM, EVENT_REASONS, TEMPERATURE_GPU, memory
from .probe.nvml import Reader, words

LINKS_EVERY = 6
"""Error counters of each NVLink are asked for in the first, the last and every so manyth sample: 54 of them cost a GPU
14 ms of CPU time, all its other readings 3 ms (measured on an H200)."""
GPU_SECONDS = 5.0
"""A driver that does not answer within this is waited for no longer; later samples tell when it has answered."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CLOCK_MEMORY = 2
_PCIE_TX, _PCIE_RX = 0, 1
_ALL_LINKS = 0xFFFFFFFF
_KIB = 1024

# NVML field ids (nvml.h): each tells one counter of a GPU.
_ECC_CORRECTED, _ECC_UNCORRECTED, _PCIE_REPLAYS = 3, 4, 94
_NVLINK_TX, _NVLINK_RX = 138, 139  # KiB of data, all links at once
_LINK_COUNT, _LINK_TX, _LINK_RX = 91, 202, 204  # bytes of one link, where drivers no longer have the two above
_LINK_ERRORS = _LINK_REPLAY, _LINK_RECOVERY, _LINK_CRC = 161, 162, 163

RDMA_ERRORS = (
    ("counters", "symbol_error"),
    ("counters", "link_downed"),
    ("counters", "link_error_recovery"),
    ("counters", "port_rcv_errors"),
    ("counters", "port_xmit_discards"),
    ("hw_counters", "out_of_sequence"),
    ("hw_counters", "packet_seq_err"),
    ("hw_counters", "local_ack_timeout_err"),
    ("hw_counters", "rnr_nak_retry_err"),
)
"""Counters of an RDMA port that stand still on a healthy network (kernel, ABI/stable/sysfs-class-infiniband)."""


def host() -> Dict[str, Any]:
    """CPU seconds of all CPUs together since boot, and what memory is left in bytes; what /proc hides is left out."""
    found: Dict[str, Any] = {}
    if fields := [int(word) for word in procs.contents("/proc/stat").partition(b"\n")[0].split()[1:9]]:
        user, nice, system, idle, iowait, irq, softirq, steal = fields
        busy = user + nice + system + irq + softirq + steal
        found = {"cpu_busy_s": busy / _TICKS, "cpu_total_s": (busy + idle + iowait) / _TICKS}
    for line in procs.contents("/proc/meminfo").split(b"\n"):
        if line.startswith(b"MemAvailable:"):
            found["memory_available"] = int(line.split()[1]) * _KIB
            break
    return found


def interfaces() -> Dict[str, Dict[str, int]]:
    """Bytes, errors and drops of each network interface of this network namespace but the loopback."""
    found = {}
    for line in procs.contents("/proc/net/dev").splitlines()[2:]:
        name, _, numbers = line.partition(b":")
        fields = [int(word) for word in numbers.split()]
        label = name.strip().decode("utf-8", "replace")
        if label != "lo":
            found[label] = {
                "rx": fields[0],
                "tx": fields[8],
                "errors": fields[2] + fields[10],
                "drops": fields[3] + fields[11],
            }
    return found


class Carriers:
    """How often the links of this host's network cards went down (a file that Linux has since 4.16); what is made by
    software comes and goes with what made it, and is left out. Their files are found once."""

    def __init__(self, root: str = "/sys/class/net") -> None:
        self._files = {
            name: "%s/%s/carrier_down_count" % (root, name)
            for name in _names(root)
            if os.path.exists("%s/%s/device" % (root, name))
        }

    def read(self) -> Dict[str, int]:
        """By interface; what has no such file any more, or is of another namespace, is absent."""
        return {name: value for name, path in self._files.items() if (value := _number(path)) is not None}


class RdmaPorts:
    """The ports of this host's RDMA devices. Their files are found once: a device does not come and go in a job."""

    def __init__(self, root: str = "/sys/class/infiniband") -> None:
        self._ports: Dict[str, Dict[str, str]] = {}
        for device in _names(root):
            for port in _names("%s/%s/ports" % (root, device)):
                folder = "%s/%s/ports/%s" % (root, device, port)
                files = {"rx": folder + "/counters/port_rcv_data", "tx": folder + "/counters/port_xmit_data"}
                files.update({name: "%s/%s/%s" % (folder, where, name) for where, name in RDMA_ERRORS})
                self._ports["%s/%s" % (device, port)] = {
                    name: path for name, path in files.items() if _number(path) is not None
                }

    def read(self) -> Dict[str, Dict[str, int]]:
        """By `device/port`: bytes, and errors by name. port_*_data count in units of four bytes."""
        found = {}
        for port, files in self._ports.items():
            values = {name: value for name, path in files.items() if (value := _number(path)) is not None}
            found[port] = {name: value * 4 if name in ("rx", "tx") else value for name, value in values.items()}
        return found


def rank(pid: int) -> Optional[Dict[str, Any]]:
    """A rank and all processes below it; None where it is gone.

    `cpu_s` (with those of its children that have ended), `rss` in bytes (pages that processes share count in each),
    page faults `minor` and `major`, number of `processes`; `wait_s`: how long its main thread was ready to run and had
    no CPU.
    """
    first = _stat(pid)
    if first is None:
        return None
    total = list(first)
    count = 1
    for child in _below(pid):
        fields = _stat(child)
        if fields:
            total = [one + other for one, other in zip(total, fields)]  # noqa: B905 - Python 3.9
            count += 1
    ticks, pages, minor, major = total
    found = {
        "pid": pid,
        "cpu_s": ticks / _TICKS,
        "rss": pages * _PAGE,
        "minor": minor,
        "major": major,
        "processes": count,
    }
    wait = _text("/proc/%d/schedstat" % pid)
    if wait:  # nanoseconds on a CPU, nanoseconds waiting for one, time slices (kernel, sched-stats.rst)
        found["wait_s"] = int(wait.split()[1]) / 1e9
    return found


def _stat(pid: int) -> Optional[Tuple[int, int, int, int]]:
    """CPU ticks, resident pages, minor and major faults (proc(5)); those of ended children included."""
    text = _text("/proc/%d/stat" % pid)
    if not text:
        return None
    fields = [b"", b""] + text[text.rindex(b")") + 2 :].split()
    if fields[2] in (b"Z", b"X"):
        return None
    minor, minor_children, major, major_children = (int(fields[at]) for at in (9, 10, 11, 12))
    return sum(map(int, fields[13:17])), int(fields[23]), minor + minor_children, major + major_children


def _below(pid: int) -> Iterator[int]:
    """All processes below `pid`; none where the kernel has no children files (CONFIG_PROC_CHILDREN)."""
    todo = [pid]
    while todo:
        folder = "/proc/%d/task" % todo.pop()
        for thread in _names(folder):
            for child in (_text("%s/%s/children" % (folder, thread)) or b"").split():
                yield int(child)
                todo.append(int(child))


class Gpus:
    """All GPUs that NVML shows, read in a thread of their own: a wedged driver costs the GPUs' part of a sample only.

    `load` imports pynvml.
    """

    def __init__(self, load: Optional[Callable[[], Any]] = None) -> None:
        self.there = (
            load is not None or os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia/version")
        )
        self.known: List[Dict[str, Any]] = []
        """What does not change: index, uuid, name, memory_total, power_limit_w."""
        self._load = load or _pynvml
        self._handles: List[Any] = []
        self._fields: List[List[Tuple[int, int]]] = []
        self._asked: "queue.SimpleQueue[bool]" = queue.SimpleQueue()
        self._answers: "queue.SimpleQueue[Tuple[Optional[List[Any]], str]]" = queue.SimpleQueue()
        self._pending = False
        if self.there:
            threading.Thread(target=self._serve, daemon=True).start()

    def read(self, patience: float = GPU_SECONDS, links: bool = True) -> Tuple[Optional[List[Dict[str, Any]]], str]:
        """One reading a GPU, in the order of `known`; or None and why there is none. `links`: with each NVLink's
        error counters."""
        if not self.there:
            return [], ""
        if not self._pending:
            self._asked.put(links)
            self._pending = True
        try:
            answer = self._answers.get(timeout=patience)
        except queue.Empty:
            return None, "the driver did not answer in %g s" % patience
        self._pending = False
        return answer

    def _serve(self) -> None:
        trouble = ""
        nvml = reader = None
        while True:
            links = self._asked.get()
            try:
                if nvml is None:
                    nvml = self._load()
                    nvml.nvmlInit()
                    reader = Reader(nvml)
                    self._open(reader)
                assert reader is not None
                found = []
                for handle, known in zip(self._handles, self._fields):  # noqa: B905 - Python 3.9
                    fields = known if links else [each for each in known if each[0] not in _LINK_ERRORS]
                    found.append(_gpu(reader, handle, fields))
                self._answers.put((found, ""))
            except Exception as error:  # noqa: BLE001 - the thread's border: whatever a driver does, the samples go on
                trouble = words(error)
                self._answers.put((None, trouble))

    def _open(self, reader: Reader) -> None:
        for index in range(reader.nvml.nvmlDeviceGetCount()):
            handle = reader.nvml.nvmlDeviceGetHandleByIndex(index)
            limit = reader.read("limit", "nvmlDeviceGetEnforcedPowerLimit", handle)
            self._handles.append(handle)
            self._fields.append(_supported(reader, handle))
            self.known.append(
                {
                    "index": index,
                    "uuid": _text_of(reader.read("uuid", "nvmlDeviceGetUUID", handle)),
                    "name": _text_of(reader.read("name", "nvmlDeviceGetName", handle)),
                    "memory_total": memory(reader, handle).get("memory_total"),
                    "power_limit_w": None if limit is None else limit / 1000,
                }
            )


def _supported(reader: Reader, handle: Any) -> List[Tuple[int, int]]:
    """The counters that this GPU has, as (field, scope): each that it lacks would cost a way into the driver."""
    (links,) = reader.fields(handle, [(_LINK_COUNT, 0)])
    wanted = [(field, 0) for field in (_ECC_CORRECTED, _ECC_UNCORRECTED, _PCIE_REPLAYS)]
    if links:
        numbers = range(min(links, 64))
        wanted += [(field, _ALL_LINKS) for field in (_NVLINK_TX, _NVLINK_RX)]
        wanted += [(field, link) for field in _LINK_ERRORS for link in numbers]
        totals = reader.fields(handle, [(_NVLINK_TX, _ALL_LINKS)])
        if totals[0] is None:
            wanted += [(field, link) for field in (_NVLINK_TX, _NVLINK_RX, _LINK_TX, _LINK_RX) for link in numbers]
    values = reader.fields(handle, wanted)
    return [field for field, value in zip(wanted, values) if value is not None]  # noqa: B905 - Python 3.9


def _gpu(reader: Reader, handle: Any, fields: List[Tuple[int, int]]) -> Dict[str, Any]:
    read = reader.read
    busy = read("util", "nvmlDeviceGetUtilizationRates", handle)
    power = read("power", "nvmlDeviceGetPowerUsage", handle)
    mask = read("reasons", "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # the name before driver 535
        mask = read("reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    # NVML's byte counters of PCIe (fields 197, 198) have 32 bits: full after 0.1 s (measured on an H200). This is what
    # passed in 20 ms, for which the call waits.
    sent = read("pcie_tx", "nvmlDeviceGetPcieThroughput", handle, _PCIE_TX)
    received = read("pcie_rx", "nvmlDeviceGetPcieThroughput", handle, _PCIE_RX)
    found = {
        "util": None if busy is None else busy.gpu,
        "memory_used": memory(reader, handle).get("memory_used"),
        "power_w": None if power is None else power / 1000,
        "temperature_c": read("temperature", "nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU),
        "sm_mhz": read("sm", "nvmlDeviceGetClockInfo", handle, CLOCK_SM),
        "memory_mhz": read("mem", "nvmlDeviceGetClockInfo", handle, _CLOCK_MEMORY),
        "pcie_tx_per_s": None if sent is None else sent * _KIB,
        "pcie_rx_per_s": None if received is None else received * _KIB,
        "reasons": None if mask is None else [name for bit, name in EVENT_REASONS.items() if mask & bit],
        **_counters(fields, reader.fields(handle, fields) if fields else []),
    }
    return {name: value for name, value in found.items() if value is not None}


def _counters(fields: List[Tuple[int, int]], values: List[Optional[int]]) -> Dict[str, int]:
    sums: Dict[int, int] = {}
    for (field, _), value in zip(fields, values):  # noqa: B905 - Python 3.9
        if value is not None:
            sums[field] = sums.get(field, 0) + value
    named = {
        "ecc_corrected": sums.get(_ECC_CORRECTED),
        "ecc_uncorrected": sums.get(_ECC_UNCORRECTED),
        "pcie_replays": sums.get(_PCIE_REPLAYS),
        "nvlink_tx": sums[_NVLINK_TX] * _KIB if _NVLINK_TX in sums else sums.get(_LINK_TX),
        "nvlink_rx": sums[_NVLINK_RX] * _KIB if _NVLINK_RX in sums else sums.get(_LINK_RX),
        "nvlink_replays": sums.get(_LINK_REPLAY),
        "nvlink_recoveries": sums.get(_LINK_RECOVERY),
        "nvlink_crc": sums.get(_LINK_CRC),
    }
    return {name: value for name, value in named.items() if value is not None}


def _pynvml() -> Any:
    import pynvml

    return pynvml


def _text_of(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _text(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone, or not for this user
        return None


def _number(path: str) -> Optional[int]:
    text = (_text(path) or b"").strip()
    return int(text) if text.isdigit() else None


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
