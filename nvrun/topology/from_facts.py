"""Topology of a host from its facts."""

from __future__ import annotations

from itertools import combinations

from nvrun.facts import Gpu, HostFacts
from nvrun.topology.model import GpuPlace, NicPlace, NumaPlace, Topology, both_ways


def from_facts(facts: HostFacts) -> Topology:
    """GPUs, RDMA ports and NUMA nodes of these facts; ways from PCI paths and NVLinks."""
    numa = tuple(NumaPlace(node=node.node, cpus=node.cpus) for node in facts.numa or ())
    cpus = {node.node: node.cpus for node in facts.numa or ()}
    gpus = tuple(
        GpuPlace(
            name=f"GPU{gpu.index}",
            index=gpu.index,
            uuid=gpu.uuid,
            pci=gpu.pci,
            model=gpu.name,
            numa_node=gpu.numa_node,
            memory_node=gpu.memory_node,
            cpus=cpus.get(gpu.numa_node, ()) if gpu.numa_node is not None else (),
        )
        for gpu in sorted(facts.gpus or (), key=lambda gpu: gpu.index)
    )
    nics = tuple(
        NicPlace(
            name=port.device,
            port=port.port,
            pci=port.pci,
            numa_node=port.numa_node,
            link_layer=port.link_layer,
            active=port.state == "ACTIVE",
            rate_gbps=port.rate_gbps,
            is_vf=port.is_vf,
            openable=port.uverbs_openable,
            netdev=port.netdev,
        )
        for port in facts.rdma or ()
    )
    ways: dict[tuple[str, str], str] = {}
    pci_paths = {device.address: device.path for device in facts.pci or ()}
    devices: dict[str, GpuPlace | NicPlace] = {gpu.name: gpu for gpu in gpus} | {nic.name: nic for nic in nics}
    for one, other in combinations(devices.values(), 2):
        way = _pci_way(pci_paths.get(one.pci or "", ()), pci_paths.get(other.pci or "", ()), one, other)
        if way is not None:
            ways[one.name, other.name] = way
    for a, b in combinations(facts.gpus or (), 2):
        if links := _nvlinks(a, b):
            ways[f"GPU{a.index}", f"GPU{b.index}"] = f"NV{links}"
    missing = (f"{what}: {facts.missing[what]}" for what in ("gpus", "pci", "rdma", "numa") if what in facts.missing)
    return Topology(source="facts", gpus=gpus, nics=nics, numa=numa, paths=both_ways(ways), notes=tuple(missing))


def _pci_way(
    one: tuple[str, ...], other: tuple[str, ...], a: GpuPlace | NicPlace, b: GpuPlace | NicPlace
) -> str | None:
    """Kind of way between two PCI devices, from their paths (host bridge, root port, switch ports, device)."""
    if not one or not other:
        return None
    shared = next((n for n, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    if shared == 0:
        if a.numa_node is None or b.numa_node is None:
            return None
        return "NODE" if a.numa_node == b.numa_node else "SYS"
    if shared == 1:
        return "PHB"
    # Below the shared port each side has at least its own downstream port; more means a second switch.
    return "PIX" if max(len(one), len(other)) - shared <= 2 else "PXB"


def _nvlinks(one: Gpu, other: Gpu) -> int:
    """NVLinks between two GPUs: those that end at the other, else those of both that end at NVSwitches."""
    direct = sum(1 for link in one.nvlinks if link.active and link.remote_pci == other.pci)
    to_switches = (sum(1 for x in gpu.nvlinks if x.active and x.remote_type == "switch") for gpu in (one, other))
    return direct or min(to_switches)
