"""One model of a host's GPUs, NICs and NUMA nodes and of the ways between them, whoever described it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Final

from nvrun.model import Frozen

PATHS: Final = ("X", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Kinds of way, the nearest first, as nvidia-smi and NCCL name them. `NV18`, 18 bonded NVLinks, ranks before PIX.

PIX: through one PCIe switch. PXB: through several. PHB: through the CPU's host bridge. NODE: between host bridges of
one NUMA node. SYS: between NUMA nodes. C2C: NVLink chip to chip, Grace to Hopper.
"""
UNDER_A_SWITCH: Final = ("PIX", "PXB")
_NVLINK = re.compile(r"NV(\d{1,3})", re.ASCII)


def is_path(text: str) -> bool:
    """Whether this is a kind of way."""
    return text in PATHS or _NVLINK.fullmatch(text) is not None


def nvlinks_of(path: str | None) -> int:
    """Number of bonded NVLinks of a way; 0 for any other."""
    match = _NVLINK.fullmatch(path or "")
    return int(match[1]) if match else 0


def nearness(path: str) -> int:
    """Smaller is nearer."""
    return PATHS.index("C2C") if nvlinks_of(path) else PATHS.index(path)


class GpuPlace(Frozen, frozen=True, kw_only=True):
    """One GPU."""

    name: str
    """`GPU0`, by NVML index."""
    index: int
    uuid: str | None = None
    pci: str | None = None
    model: str = ""
    numa_node: int | None = None
    memory_node: int | None = None
    """NUMA node that the GPU's own memory is (GH200); `GPU NUMA ID` of nvidia-smi."""
    cpus: tuple[int, ...] = ()
    """CPUs beside it."""


class NicPlace(Frozen, frozen=True, kw_only=True):
    """One port of an RDMA device. Fields are None where the source does not give them: a matrix gives names only."""

    name: str
    """`mlx5_0`."""
    port: int | None = None
    pci: str | None = None
    numa_node: int | None = None
    link_layer: str | None = None
    active: bool | None = None
    rate_gbps: float | None = None
    is_vf: bool | None = None
    openable: bool | None = None
    """The job may open its device file."""
    netdev: str | None = None


class NumaPlace(Frozen, frozen=True, kw_only=True):
    """One NUMA node."""

    node: int
    cpus: tuple[int, ...] | None
    """() for a node of memory only; None where the source does not give them."""


class Topology(Frozen, frozen=True, kw_only=True):
    """GPUs, NICs and NUMA nodes of one host."""

    source: str
    """`facts`, `matrix` or `NCCL XML`."""
    gpus: tuple[GpuPlace, ...] = ()
    nics: tuple[NicPlace, ...] = ()
    numa: tuple[NumaPlace, ...] = ()
    paths: Mapping[str, Mapping[str, str]] = {}
    """Name -> other name -> kind of way, both ways round; a way that is not known is absent."""
    notes: tuple[str, ...] = ()
    """What the source left open or contradicts itself in."""

    def path(self, one: str, other: str) -> str | None:
        """Kind of way between two devices; None where it is not known."""
        return "X" if one == other else self.paths.get(one, {}).get(other)

    def switches(self) -> tuple[tuple[str, ...], ...]:
        """Devices that hang on the same PCIe switch, or on the same cascade of switches; each at least two.

        NVLink hides the PCIe way between two GPUs in a matrix; a NIC that both are near to still joins them.
        """
        names = list(dict.fromkeys([gpu.name for gpu in self.gpus] + [nic.name for nic in self.nics]))
        groups: list[list[str]] = []
        for name in names:
            near = [group for group in groups if any(self.path(name, member) in UNDER_A_SWITCH for member in group)]
            groups = [group for group in groups if group not in near]
            groups.append([*chain.from_iterable(near), name])
        ordered = [sorted(group, key=names.index) for group in groups if len(group) > 1]
        return tuple(tuple(group) for group in sorted(ordered, key=lambda group: names.index(group[0])))


def both_ways(ways: Mapping[tuple[str, str], str]) -> Mapping[str, Mapping[str, str]]:
    """`Topology.paths` from pairs given one way round."""
    paths: dict[str, dict[str, str]] = {}
    for (one, other), path in ways.items():
        paths.setdefault(one, {})[other] = path
        paths.setdefault(other, {})[one] = path
    return paths
