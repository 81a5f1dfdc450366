"""Facts of a host as far as a matrix or NCCL's XML gives them, so that a plan can be made from a pasted text."""

from __future__ import annotations

from collections.abc import Sequence

from nvrun.facts import SECTIONS, Cpu, Cpus, Gpu, HostFacts, NumaNode
from nvrun.topology.cpus import Core, format_cpulist, parse_cpulist
from nvrun.topology.model import Topology


def as_facts(topology: Topology, host: str) -> HostFacts:
    """GPUs, CPUs and NUMA nodes of a topology as facts; everything else is missing, with the reason.

    Bind with the topology beside them: `bind(as_facts(topology, host), topology=topology, ...)`.
    """
    reason = f"not in the {topology.source}"
    missing = {section: reason for section in SECTIONS if section not in ("gpus", "cpus", "numa")}
    online = tuple(
        Cpu(cpu=cpu, core=core, node=node.node)
        for node in topology.numa
        for core in _cores(node.cpus or ())
        for cpu in core
    )
    if online:
        if any(len(cpu.core) > 1 for cpu in online):
            missing["smt"] = f"{reason}: two ranges of CPUs of the same length are taken for SMT siblings"
    elif all(gpu.numa_node is None for gpu in topology.gpus):
        missing["cpus"] = missing["numa"] = f"the {topology.source} names no NUMA node"
    else:
        missing["cpus"] = f"the CPU lists of the {topology.source} are not whole"
    gpus = tuple(
        Gpu(
            index=gpu.index,
            uuid=gpu.uuid or "",
            name=gpu.model,
            pci=gpu.pci or "",
            numa_node=gpu.numa_node,
            memory_node=gpu.memory_node,
        )
        for gpu in topology.gpus
    )
    return HostFacts(
        host=host,
        gpus=gpus,
        cpus=Cpus(online=online, allowed=tuple(sorted(cpu.cpu for cpu in online))) if online else None,
        numa=tuple(NumaNode(node=node.node, cpus=node.cpus or ()) for node in topology.numa) or None,
        missing=missing,
    )


def _cores(cpus: Sequence[int]) -> list[Core]:
    """Cores of a NUMA node: Linux numbers second threads after all first ones, as a second range of the same length."""
    if not cpus:
        return []
    ranges = [parse_cpulist(part) for part in format_cpulist(cpus).split(",")]
    if len(ranges) == 2 and len(ranges[0]) == len(ranges[1]):
        return list(zip(*ranges, strict=True))
    return [(cpu,) for cpu in cpus]
