"""A topology as a tree for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nvrun.topology.cpus import format_cpulist
from nvrun.topology.model import GpuPlace, NicPlace, Topology, nvlinks_of
from nvrun.topology.nics import compute_nics, port_name

_Lines = Sequence[tuple[str, "_Lines"]]


def tree(topology: Topology, title: str) -> list[str]:
    """Lines: NUMA nodes, in them PCIe switches, in these GPUs and NICs; below, NVLink and what was not known."""
    places: dict[str, GpuPlace | NicPlace] = {nic.name: nic for nic in topology.nics}
    places |= {gpu.name: gpu for gpu in topology.gpus}
    nodes = {name: node_of(topology, place) for name, place in places.items()}
    branches = []
    for numa in topology.numa:
        cpus = (
            "CPUs not known" if numa.cpus is None else f"CPUs {format_cpulist(numa.cpus)}" if numa.cpus else "no CPUs"
        )
        members = [name for name in places if nodes[name] == numa.node]
        branches.append((f"NUMA node {numa.node}: {cpus}", _switches(topology, places, members)))
    known = {numa.node for numa in topology.numa}
    if lost := [name for name in places if nodes[name] not in known]:
        branches.append(("NUMA node not known", _switches(topology, places, lost)))
    lines = [title, *_drawn(branches)]
    return [*lines, *nvlink_lines(topology), *(f"not known: {note}" for note in topology.notes)]


def node_of(topology: Topology, place: GpuPlace | NicPlace) -> int | None:
    """NUMA node of a device; for a NIC of a matrix, that of a GPU which is no further than NODE away."""
    if place.numa_node is not None:
        return place.numa_node
    near = (gpu for gpu in topology.gpus if topology.path(gpu.name, place.name) in ("PIX", "PXB", "PHB", "NODE"))
    return next((gpu.numa_node for gpu in near if gpu.numa_node is not None), None)


def _switches(topology: Topology, places: Mapping[str, GpuPlace | NicPlace], members: Sequence[str]) -> _Lines:
    """The devices of a NUMA node, those on one switch (or cascade of switches) together."""
    left_out = compute_nics(topology).left_out
    lines = {name: _line(places[name], topology, left_out) for name in members}
    rows: list[tuple[str, _Lines]] = []
    for group in topology.switches():
        if inside := [name for name in group if name in lines]:
            kind = "PCIe switches" if "PXB" in {topology.path(a, b) for a in inside for b in inside} else "PCIe switch"
            rows.append((kind, [(lines.pop(name), ()) for name in inside]))
    return rows + [(line, ()) for line in lines.values()]


def _line(place: GpuPlace | NicPlace, topology: Topology, left_out: Mapping[str, str]) -> str:
    if isinstance(place, GpuPlace):
        memory = f"its memory is NUMA node {place.memory_node}" if place.memory_node is not None else ""
        return "  ".join(filter(None, (place.name, place.model, place.pci, memory)))
    ports = []
    for nic in (nic for nic in topology.nics if nic.name == place.name):
        rate = f"{nic.rate_gbps:g} Gb/s" if nic.rate_gbps else ""
        reason = left_out.get(port_name(nic), "")
        said = ", ".join(filter(None, (nic.link_layer, rate, f"not for NCCL: {reason}" if reason else "")))
        ports.append(f"port {nic.port}: {said}" if nic.port is not None and said else said)
    netdev = f"({place.netdev})" if place.netdev else ""
    return "  ".join(filter(None, (place.name, place.pci, netdev, *ports)))


def nvlink_lines(topology: Topology) -> Iterator[str]:
    """NVLinks in words: one line where they are the same between all GPUs, else one a GPU."""
    names = [gpu.name for gpu in topology.gpus]
    links = {(a, b): nvlinks_of(topology.path(a, b)) for a in names for b in names if a != b}
    counts = set(links.values())
    if counts <= {0}:
        return
    if len(counts) == 1:
        yield f"NVLink: NV{max(counts)} between all {len(names)} GPUs"
        return
    yield "NVLink: not the same between all GPUs"
    for one in names:
        have = ", ".join(f"{other} NV{links[one, other]}" for other in names if links.get((one, other)))
        yield f"   {one}: {have or 'none'}"


def _drawn(branches: _Lines, indent: str = "") -> Iterator[str]:
    for at, (label, below) in enumerate(branches):
        last = at == len(branches) - 1
        yield f"{indent}{'└─ ' if last else '├─ '}{label}"
        yield from _drawn(below, indent + ("   " if last else "│  "))
