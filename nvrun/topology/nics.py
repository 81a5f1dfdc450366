"""RDMA ports: which carry the training traffic, which is nearest to each GPU, and when NCCL must be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from nvrun.model import Frozen
from nvrun.topology.model import UNDER_A_SWITCH, GpuPlace, NicPlace, Topology, nearness

_Value = TypeVar("_Value", str, float)
_NCCL_LAYERS = ("InfiniBand", "Ethernet")
"""Link layers that NCCL's own IB transport drives; EFA says neither and comes through its plugin."""


class ComputeNics(Frozen, frozen=True, kw_only=True):
    """The RDMA ports of one host, sorted into those for NCCL and the others."""

    chosen: tuple[NicPlace, ...]
    """In PCI order, which NCCL 2.29.7+ takes too; the place in it is the rail."""
    left_out: Mapping[str, str]
    """`mlx5_1:1` -> why it is no compute port."""
    certain: bool
    """False where no port shares a switch with a GPU: then nothing tells compute from storage."""


class HcaList(Frozen, frozen=True, kw_only=True):
    """Value of NCCL_IB_HCA for one host."""

    value: str | None
    """`=mlx5_0:1,mlx5_3:1`: exact names; None: NCCL's own choice is right, or nothing better is known."""
    why: str


def port_name(nic: NicPlace) -> str:
    """`mlx5_0:1`, or `mlx5_0` where the port is not known."""
    return nic.name if nic.port is None else f"{nic.name}:{nic.port}"


def compute_nics(topology: Topology) -> ComputeNics:
    """The ports that are there for the GPUs, told from storage and management.

    A compute port shares a PCIe switch with a GPU, is active, and has the link layer and the rate of most such ports.
    Where no port does, all of the fastest one's link layer count: NCCL cannot connect InfiniBand with Ethernet.
    Virtual functions beside a physical one are left out, and ports that the job may not open where it may open others
    (a pod was given these). What is not known of a port does not speak against it.
    """
    left_out: dict[str, str] = {}
    ports = list(topology.nics)
    open_ones = [nic for nic in ports if nic.openable is not False] or ports
    physical = any(nic.active is not False and not nic.is_vf for nic in open_ones)
    near = [nic for nic in ports if any(topology.path(gpu.name, nic.name) in UNDER_A_SWITCH for gpu in topology.gpus)]
    certain = bool(near)
    candidates = []
    for nic in ports:
        beside = nic in near or not certain
        reason = _unfit(nic, nic in open_ones, physical) or ("" if beside else "shares no PCIe switch with a GPU")
        if reason:
            left_out[port_name(nic)] = reason
        else:
            candidates.append(nic)
    layer = link_layer(((nic.link_layer, nic.rate_gbps) for nic in candidates), certain=certain)
    rates = [nic.rate_gbps for nic in candidates if nic.rate_gbps and nic.link_layer == layer]
    rate = _commonest(rates) if certain else None
    chosen = []
    for nic in candidates:
        if layer is not None and nic.link_layer not in (None, layer):
            left_out[port_name(nic)] = f"its link layer is {nic.link_layer}, that of the others {layer}"
        elif rate is not None and nic.rate_gbps not in (None, rate):
            left_out[port_name(nic)] = f"its rate is {nic.rate_gbps:g} Gb/s, that of the others {rate:g}"
        else:
            chosen.append(nic)
    chosen.sort(key=lambda nic: (nic.pci or "", nic.port or 0))
    return ComputeNics(chosen=tuple(chosen), left_out=left_out, certain=certain)


def link_layer(ports: Iterable[tuple[str | None, float | None]], *, certain: bool) -> str | None:
    """Of ports (link layer, rate in Gb/s) the link layer that carries the training traffic: where they are known to be
    beside GPUs that of most, else that of the fastest, for storage and management are slower. InfiniBand of equals."""
    known = [(layer, rate or 0.0) for layer, rate in ports if layer]
    if certain:
        return _commonest([layer for layer, _ in known])
    return max(known, key=lambda port: (port[1], port[0]), default=(None, 0.0))[0]


def _unfit(nic: NicPlace, is_open: bool, physical: bool) -> str:
    if nic.active is False:
        return "the port is not active"
    if not is_open:
        return "its device file cannot be opened"
    if nic.is_vf and physical:
        return "a virtual function, and physical functions are here too"
    return ""


def nearest_nics(topology: Topology) -> Mapping[str, tuple[str, ...]]:
    """GPU name -> its RDMA devices, the one that NCCL begins with first; () where no way is known.

    NCCL takes the devices with the fastest, then nearest way (ncclTopoGetLocal) and begins among them at the GPU's
    number modulo the GPUs nearest to the first of them, its bits mirrored, so that these spread (ncclTopoGetLocalNet,
    2.30). Here the kind of way stands for the bandwidth, the port's rate decides among equals.
    """
    nics = compute_nics(topology).chosen
    result: dict[str, tuple[str, ...]] = {}
    for gpu in topology.gpus:
        names = _local(topology, gpu, nics)
        start = _start(gpu.index % _gpus_near(topology, names[0]), len(names)) if names else 0
        result[gpu.name] = names[start:] + names[:start]
    return result


def _gpus_near(topology: Topology, nic: str) -> int:
    """How many GPUs are nearest to a device."""
    ways = [nearness(path) for gpu in topology.gpus if (path := topology.path(gpu.name, nic)) is not None]
    return ways.count(min(ways))


def _local(topology: Topology, gpu: GpuPlace, nics: Sequence[NicPlace]) -> tuple[str, ...]:
    ways = {nic: path for nic in nics if (path := topology.path(gpu.name, nic.name)) is not None}
    rated = {nic: (nearness(path), -(nic.rate_gbps or 0)) for nic, path in ways.items()}
    return tuple(dict.fromkeys(nic.name for nic in nics if nic in rated and rated[nic] == min(rated.values())))


def _start(number: int, count: int) -> int:
    """Where the GPU of that number begins among `count` devices; for a power of two with the number's bits mirrored."""
    bits = count.bit_length() - 1
    return int(format(number % count, f"0{bits}b")[::-1], 2) if 1 < count == 1 << bits else number % count


def hca_lists(hosts: Mapping[str, Topology]) -> Mapping[str, HcaList]:
    """NCCL_IB_HCA of each host of a job: set on all hosts, or on none.

    NCCL takes every active port. That is right where all of them are compute ports and all hosts have as many; else
    its rings cross storage or management links, or hosts disagree on the number of rails.
    """
    found = {host: compute_nics(topology) for host, topology in hosts.items()}
    ports = {
        host: [nic for nic in nics.chosen if nic.link_layer in (None, *_NCCL_LAYERS)] for host, nics in found.items()
    }
    wrong = {host: _wrong_ports(hosts[host], nics) for host, nics in found.items()}
    unknown = _not_known(hosts, found)
    reason = ""
    if other := next((host for host in hosts if wrong[host]), None):
        reason = f"as on {other}, where NCCL would take {_and(wrong[other])} too"
    elif len(counts := sorted({len(those) for those in ports.values()})) > 1:
        reason = f"hosts have unlike numbers of compute ports: {_and([*map(str, counts)])}"
    result = {}
    for host, those in ports.items():
        value = f"={','.join(map(port_name, those))}"
        if not those:
            result[host] = HcaList(value=None, why="no InfiniBand or RoCE port for NCCL")
        elif unknown:
            result[host] = HcaList(value=None, why=unknown)
        elif wrong[host]:
            why = _and(list(dict.fromkeys(found[host].left_out[port] for port in wrong[host])))
            result[host] = HcaList(value=value, why=f"NCCL would take {_and(wrong[host])} too: {why}")
        elif reason:
            result[host] = HcaList(value=value, why=reason)
        else:
            result[host] = HcaList(value=None, why=f"NCCL's own choice is right: {_and([*map(port_name, those)])}")
    return result


def _not_known(hosts: Mapping[str, Topology], found: Mapping[str, ComputeNics]) -> str:
    """Why compute ports cannot be told from others; empty where they can."""
    if any(nic.active is None for topology in hosts.values() for nic in topology.nics):
        return "which ports are active is not known"
    vague = [
        host
        for host, nics in found.items()
        if not nics.certain and len(nics.chosen) > 1 and not _wrong_ports(hosts[host], nics)
    ]
    if vague:
        return f"no port shares a PCIe switch with a GPU ({_and(vague)}): nothing tells compute ports from others"
    return ""


def _wrong_ports(topology: Topology, nics: ComputeNics) -> list[str]:
    """Active ports that NCCL would take although they are no compute ports."""
    takes = [n for n in topology.nics if n.active and n.openable is not False and n.link_layer in _NCCL_LAYERS]
    return [port_name(nic) for nic in takes if nic not in nics.chosen]


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _commonest(values: Sequence[_Value]) -> _Value | None:
    """The most frequent value, among equals the greatest; None of none."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value)) if counts else None
