"""NCCL's log at NCCL_DEBUG=INFO (2.4 to 2.30) -> `NcclLog`. Pure: lines in, one value out, in one pass.

Memory grows with processes, communicators and pairs of ranks, not with lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from nvrun.nccl.log_line import Record, Speaker, clean, cut_lines, read_record, text
from nvrun.nccl.log_model import Communicator, NcclLog, NcclProcess, NcclWarning, Route

_MOST_WARNINGS = 1000
_MOST_LINES = 100


def read_log(lines: Iterable[bytes | str]) -> NcclLog:
    """What the NCCL lines among `lines` say; others are passed over. Logs of several processes may be joined."""
    reader = _Reader()
    for raw in cut_lines(lines):
        if b"NCCL " not in raw:
            continue
        record = read_record(clean(text(raw)))
        if record is not None:
            reader.feed(record)
    return reader.log()


@dataclass(slots=True)
class _Process:
    host: str
    pid: int
    facts: dict[str, object] = field(default_factory=dict)
    gdr: dict[str, bool] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    ranks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Communicator -> its size and the process's rank there."""
    named: dict[str, str] = field(default_factory=dict)
    """Address of a communicator in this process -> its name."""
    begun: set[str] = field(default_factory=set)
    """Addresses of those whose init goes on."""
    communicator: str = ""
    """The last one that the process began; by thread where threads begin different ones."""
    by_thread: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Communicator:
    nranks: int = 0
    hosts: set[str] = field(default_factory=set)
    ranks: dict[str, set[int]] = field(default_factory=lambda: {"START": set(), "COMPLETE": set(), "ABORT": set()})
    seconds: dict[int, float] = field(default_factory=dict)
    phases: dict[int, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    routes: dict[tuple[int, int, str, bool | None, bool], tuple[int, str]] = field(default_factory=dict)


_INIT = re.compile(
    r"comm (?P<comm>0x\w*) ?.*?rank (?P<rank>\d+) nranks (?P<nranks>\d+) cudaDev (?P<cuda>\d+)"
    r"(?: nvmlDev (?P<nvml>\d+))? busId (?P<bus>\w+)(?P<origin>.*?)"
    r" ?- (?P<what>Init START|Init COMPLETE|Abort COMPLETE)"
)
_ID = re.compile(r" commId (0x\w+)")
_SPLIT = re.compile(r" parent (?P<parent>0x\w+)(?: (?:split|child)Count (?P<count>\d+))? color (?P<color>-?\d+)")
"""Of a communicator split from another: NCCL makes its id of these (init.cc), and prints no other since 2.23."""
_SIZES = re.compile(r"comm \S+ rank \d+ nRanks (?P<nranks>\d+) nNodes (?P<nodes>\d+) localRanks (?P<local>\d+)")
_TIMINGS = re.compile(r"rank (?P<rank>\d+) nranks \d+ total (?P<total>[\d.]+) \((?P<phases>[^)]*)\)")
_ROUTE = re.compile(
    r"Channel \d+(?:/\d+)? : (?P<source>\d+)\[\w+\] -> (?P<target>\d+)\[\w+\](?: \[(?:send|receive)\])? via (?P<via>.+)"
)
_RING = re.compile(r"Channel (?P<channel>\d+)/(?P<rings>\d+) : +(?P<order>\d[\d ]*)$")
_COUNTS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels\b( per peer)?")
_HCA = re.compile(r"[\w.+-]+:\d+/(?:IB|RoCE)\b")
"""One port, alone or in the braces of a fused device: `[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}` (2.20 to 2.23)."""
_DEVICE = re.compile(r"\[\d+\](\S+?)(?:<\d+>)?(?= |$)")
_HCA_GDR = re.compile(r"GPU Direct RDMA (?P<state>Enabled|Disabled) for HCA \d+ '(?P<hca>[^']+)'")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\S*)")
_VARIABLE = re.compile(r"(?P<name>NCCL_\w+) set by environment to (?P<value>.*)")
_REJECTED = re.compile(
    r"Invalid value .* for (?P<name>NCCL_\w+)|Invalid (?P<invalid>NCCL_\w+) |(?P<low>NCCL_\w+) \d+ is too low"
    r"|User asked for a (?P<limit>min|max)imum of"
)
_CONNECTED = re.compile(r"use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d)")


class _Reader:
    """Collects; each method reads one kind of line, found by the first word of its message."""

    def __init__(self) -> None:
        self._lines = 0
        self._versions: dict[str, None] = {}
        self._processes: dict[tuple[str, int], _Process] = {}
        self._communicators: dict[str, _Communicator] = {}
        self._warnings: dict[tuple[str, int, str, str], tuple[str, int]] = {}
        self._ras: list[str] = []
        self._kinds: dict[str, Callable[[_Process, Record], None]] = {
            "Channel": self._channel,
            "Using": self._network,
            "Bootstrap": self._bootstrap,
            "Bootstrap:": self._bootstrap,
            "NET/IB": self._ib,
            "NET/IB:": self._ib,
            "NET/Socket": self._socket,
            "NET/Socket:": self._socket,
            "comm": self._comm,
            "Init": self._timings,
            "Trees": self._trees,
            "Connected": self._connected,
            "NVLS": self._nvls,
            "DMA-BUF": self._dma_buf,
            "cudaDriverVersion": self._driver,
            "NCCL": self._version,
            "Could": self._refused,
            "Setting": self._affinity,
            "ncclTopoGetCpuAffinity:": self._affinity,
            "Invalid": self._rejected,
            "User": self._rejected,
            "RAS": self._ras_line,
        }

    def feed(self, record: Record) -> None:
        self._lines += 1
        if record.level == "VERSION":
            # without a prefix it says what is loaded, but not by whom
            if found := _VERSION.match(record.message):
                self._versions[found[1]] = None
            return
        process = self._process(record.speaker)
        message = record.message
        if record.level == "WARN":
            self._warn(record)
            return
        word = message.split(" ", 1)[0]
        kind = self._kinds.get(word)
        if kind is not None:
            kind(process, record)
        elif word.startswith("NCCL_"):
            self._variable(process, record)
        elif word.startswith(("ncclComm", "[Rank")):
            self._comm(process, record)
        elif "GPU Direct RDMA" in message:
            self._hca_gdr(process, message)
        elif "coll channels" in message:
            counts = {name + (peer or ""): int(number) for number, name, peer in _COUNTS.findall(message)}
            self._communicator(process, record).facts.setdefault("channels", counts)

    def _process(self, speaker: Speaker) -> _Process:
        key = (speaker.host, speaker.pid)
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = _Process(*key)
        return process

    def _communicator(self, process: _Process, record: Record) -> _Communicator:
        name = process.by_thread.get(record.speaker.tid, process.communicator)
        communicator = self._communicators.get(name)
        if communicator is None:
            communicator = self._communicators[name] = _Communicator()
        return communicator

    # one method a kind of line

    def _channel(self, process: _Process, record: Record) -> None:
        found = _ROUTE.match(record.message)
        if found is None:
            ring = _RING.match(record.message)
            if ring is not None:
                facts = self._communicator(process, record).facts
                facts.setdefault("rings", int(ring["rings"]))
                facts.setdefault("ring_order", " ".join(ring["order"].split()))
            return
        via, gdr, through_peer = _transport(found["via"])
        key = (int(found["source"]), int(found["target"]), via, gdr, through_peer)
        routes = self._communicator(process, record).routes
        count, first = routes.get(key, (0, record.line))
        routes[key] = (count + 1, first)

    def _network(self, process: _Process, record: Record) -> None:
        if record.message.startswith("Using network "):
            process.facts["network"] = record.message[len("Using network ") :].strip()
            process.facts["network_line"] = record.line

    def _bootstrap(self, process: _Process, record: Record) -> None:
        if found := re.search(r"Using (\S+?:\S+?)(?:<\d+>)?$", record.message):
            process.facts.setdefault("bootstrap", found[1])

    def _ib(self, process: _Process, record: Record) -> None:
        if "No device found" in record.message:
            process.facts["no_ib_device"] = True
        elif "Using" in record.message:
            devices, _, _ = record.message.partition("; OOB")
            process.facts["hcas"] = tuple(_HCA.findall(devices))
            process.facts["relaxed_ordering"] = "[RO]" in devices
        self._hca_gdr(process, record.message)

    def _socket(self, process: _Process, record: Record) -> None:
        if devices := _DEVICE.findall(record.message):
            process.facts["sockets"] = tuple(devices)

    def _comm(self, process: _Process, record: Record) -> None:
        if sizes := _SIZES.search(record.message):
            facts = self._communicator(process, record).facts
            facts["nodes"] = int(sizes["nodes"])
            return
        found = _INIT.search(record.message)
        if found is None:
            return
        rank, nranks = int(found["rank"]), int(found["nranks"])
        what, at = found["what"].split(), found["comm"]
        if what[0] == "Abort":
            name = process.named.get(at) or process.communicator or f"nranks {nranks}"
        elif what[1] == "START" or at not in process.begun:
            name = _name(process, found["origin"]) or f"nranks {nranks}"
        else:  # one that grew is complete under another name than it began with
            name = process.named[at]
        (process.begun.add if what[1] == "START" else process.begun.discard)(at)
        process.named[at] = name
        process.communicator = process.by_thread[record.speaker.tid] = name
        process.ranks.setdefault(name, (nranks, rank))
        process.facts.setdefault("cuda_device", int(found["cuda"]))
        if found["nvml"] is not None:
            process.facts.setdefault("nvml_device", int(found["nvml"]))
        process.facts.setdefault("bus_id", found["bus"])
        communicator = self._communicators.setdefault(name, _Communicator())
        communicator.nranks = nranks
        communicator.hosts.add(process.host)
        communicator.ranks["ABORT" if what[0] == "Abort" else what[1]].add(rank)

    def _timings(self, process: _Process, record: Record) -> None:
        if found := _TIMINGS.search(record.message):
            communicator = self._communicator(process, record)
            communicator.seconds[int(found["rank"])] = float(found["total"])
            communicator.phases[int(found["rank"])] = found["phases"]

    def _trees(self, process: _Process, record: Record) -> None:
        self._communicator(process, record).facts.setdefault("trees", record.message.count("["))

    def _connected(self, process: _Process, record: Record) -> None:
        if found := _CONNECTED.search(record.message):
            self._communicator(process, record).facts["ring_gdr"] = found["gdr"] == "1"

    def _nvls(self, process: _Process, record: Record) -> None:
        if "multicast support is" in record.message:
            process.facts["nvls"] = "not available" not in record.message

    def _dma_buf(self, process: _Process, record: Record) -> None:
        process.facts["dma_buf"] = "not available" not in record.message

    def _driver(self, process: _Process, record: Record) -> None:
        if found := re.search(r"\d+", record.message):
            process.facts["cuda_driver"] = int(found[0])

    def _version(self, process: _Process, record: Record) -> None:
        if found := _VERSION.match(record.message):
            self._versions[found[1]] = None
            process.facts["version"] = found[1]

    def _refused(self, process: _Process, record: Record) -> None:
        if "enable P2P" in record.message and len(process.refused) < _MOST_LINES:
            process.refused.append(record.message)

    def _affinity(self, process: _Process, record: Record) -> None:
        if found := re.search(r"(?:affinity|Affinity) for GPU \d+ (?:to|is) (.*)", record.message):
            process.facts["affinity"] = found[1]

    def _rejected(self, process: _Process, record: Record) -> None:
        if found := _REJECTED.search(record.message):
            channels = f"NCCL_{found['limit'].upper()}_CTAS" if found["limit"] else ""
            process.rejected[found["name"] or found["invalid"] or found["low"] or channels] = record.message

    def _ras_line(self, process: _Process, record: Record) -> None:
        if len(self._ras) < _MOST_LINES:
            self._ras.append(record.line)

    def _variable(self, process: _Process, record: Record) -> None:
        if found := _VARIABLE.match(record.message):
            value = found["value"]
            # integers are echoed with a full stop after them
            process.variables[found["name"]] = value[:-1] if re.fullmatch(r"-?\d+\.", value) else value
        else:
            self._rejected(process, record)

    def _hca_gdr(self, process: _Process, message: str) -> None:
        if found := _HCA_GDR.search(message):
            process.gdr[found["hca"]] = found["state"] == "Enabled"

    def _warn(self, record: Record) -> None:
        shape = re.sub(r"\d+", "#", record.message)
        key = (record.speaker.host, record.speaker.pid, record.where, shape)
        if key in self._warnings or len(self._warnings) < _MOST_WARNINGS:
            message, times = self._warnings.get(key, (record.message, 0))
            self._warnings[key] = (message, times + 1)

    def log(self) -> NcclLog:
        """All that was fed, as one value."""
        self._adopt_routes_without_name()
        return NcclLog(
            lines=self._lines,
            versions=tuple(self._versions),
            processes=tuple(_freeze_process(process) for process in self._processes.values()),
            communicators=tuple(
                _freeze_communicator(name, communicator) for name, communicator in self._communicators.items()
            ),
            warnings=tuple(
                NcclWarning(host=host, pid=pid, where=where, message=message, times=times)
                for (host, pid, where, _), (message, times) in self._warnings.items()
            ),
            ras=tuple(self._ras),
        )

    def _adopt_routes_without_name(self) -> None:
        """Before 2.18.3 the lines of an init come before its name: give them to the only communicator there is."""
        orphan = self._communicators.pop("", None)
        if orphan is None:
            return
        named = list(self._communicators.values())
        if len(named) == 1:
            for key, (count, line) in orphan.routes.items():
                before, first = named[0].routes.get(key, (0, line))
                named[0].routes[key] = (before + count, first)
            for name, value in orphan.facts.items():
                named[0].facts.setdefault(name, value)
        elif orphan.routes or orphan.facts:
            self._communicators["unknown"] = orphan


def _name(process: _Process, origin: str) -> str:
    """The id that NCCL prints; of a split the same on all its ranks, put together from its parent's."""
    if split := _SPLIT.search(origin):
        parent = process.named.get(split["parent"], "")
        return " ".join([parent, f"split {split['count'] or ''}".rstrip(), f"color {split['color']}"]).strip()
    found = _ID.search(origin)
    return found[1] if found else ""


@lru_cache(maxsize=1024)
def _transport(via: str) -> tuple[str, bool | None, bool]:
    """NCCL's text after `via` -> transport, GPUDirect RDMA or not (None without a NIC), through a peer's NIC or not."""
    if "shared memory" in via or via.startswith("SHM"):
        return "SHM", None, False
    if via.startswith("NET/"):
        parts = via.split("/")
        through_peer = len(parts) > 2 and "(" in parts[2]
        return "/".join(parts[:2]), "/GDRDMA" in via, through_peer
    if via.startswith("P2P/"):
        return "P2P/" + re.split(r"[/ \[]", via[4:], maxsplit=1)[0], None, False
    return via.strip(), None, False


def _freeze_process(draft: _Process) -> NcclProcess:
    nranks, rank = max(draft.ranks.values(), key=lambda sizes: sizes[0]) if draft.ranks else (None, None)
    return NcclProcess(
        host=draft.host,
        pid=draft.pid,
        rank=rank,
        nranks=nranks,
        gdr_by_hca=draft.gdr,
        variables=draft.variables,
        rejected=draft.rejected,
        p2p_refused=tuple(draft.refused),
        **draft.facts,  # type: ignore[arg-type]  # fields by name, each of its own type
    )


def _freeze_communicator(name: str, draft: _Communicator) -> Communicator:
    slowest = max(draft.seconds, key=lambda rank: draft.seconds[rank], default=None)
    phases = [] if slowest is None else draft.phases[slowest].split(", ")
    return Communicator(
        id=name,
        nranks=draft.nranks,
        hosts=tuple(sorted(draft.hosts)),
        started=tuple(sorted(draft.ranks["START"])),
        completed=tuple(sorted(draft.ranks["COMPLETE"])),
        aborted=tuple(sorted(draft.ranks["ABORT"])),
        init_seconds=draft.seconds,
        slowest_phase=max(phases, key=lambda phase: float(phase.rpartition(" ")[2] or 0), default=""),
        routes=tuple(
            Route(source=source, target=target, via=via, channels=count, gdr=gdr, through_peer=through_peer, line=line)
            for (source, target, via, gdr, through_peer), (count, line) in sorted(
                draft.routes.items(), key=lambda item: item[0][:3]
            )
        ),
        **draft.facts,  # type: ignore[arg-type]  # fields by name, each of its own type
    )
