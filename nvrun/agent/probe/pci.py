"""PCI devices that a training job is placed by (GPUs, NICs, NVMe), the bridges above them, and their NUMA nodes."""

from __future__ import annotations

import re
from typing import Any

from . import cpu
from .tree import Tree

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
DISPLAY = ("0x0300", "0x0302")
"""VGA and 3D controllers: what an NVIDIA GPU calls itself."""
WANTED = (*DISPLAY, "0x02", "0x0c06", "0x0108", "0x1200")
"""Class prefixes: GPUs, network and InfiniBand controllers, NVMe, accelerators."""


def devices(tree: Tree) -> list[dict[str, Any]]:
    """The `PciDevice`s of the schema: wanted ones first to last by address, each after the bridges above it."""
    nodes = {node: cpu.node_cpus(tree, node) for node in cpu.online_nodes(tree)}
    found: dict[str, dict[str, Any]] = {}
    for address in tree.entries(DEVICES):
        if (tree.text(f"{DEVICES}/{address}/class") or "").startswith(WANTED):
            path = device_path(tree, address)
            for depth, part in enumerate(path):
                if part not in found and not part.startswith("pci"):
                    found[part] = _device(tree, part, path[: depth + 1], nodes)
    return list(found.values())


def gpus(tree: Tree) -> list[str] | None:
    """Addresses of NVIDIA's display-class devices, whatever the driver says; None where sysfs shows no PCI at all."""
    if not tree.exists(DEVICES):
        return None
    return [
        address
        for address in tree.entries(DEVICES)
        if (tree.text(f"{DEVICES}/{address}/class") or "").startswith(DISPLAY)
        and (tree.text(f"{DEVICES}/{address}/vendor") or "").lower() == NVIDIA
    ]


def device_path(tree: Tree, address: str) -> list[str]:
    """From the host bridge (`pci0000:15`) down to the device; only the address where the tree is flat."""
    parts = tree.realpath(f"{DEVICES}/{address}").split("/")
    return [part for part in parts if re.fullmatch(r"pci[0-9a-f]+:[0-9a-f]+|" + ADDRESS, part)] or [address]


def address_of(tree: Tree, folder: str) -> str | None:
    """The PCI device that `folder` (a link such as eth0/device) is or, as virtio devices do, hangs on; else None."""
    if not tree.exists(folder):
        return None
    parts = [part for part in tree.realpath(folder).split("/") if re.fullmatch(ADDRESS, part)]
    return parts[-1] if parts else None


ADDRESS = r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"


def numa_node(tree: Tree, folder: str, nodes: dict[int, list[int]] | None = None) -> int | None:
    """The node of the device at `folder`; None where the kernel does not tell, or contradicts itself.

    Where `numa_node` is absent or -1 the near CPUs may still be those of one node: on a machine with a single node
    they are, on one whose firmware tells nothing they are those of all nodes. Where both are told they must agree."""
    node = tree.number(f"{folder}/numa_node")
    local = tree.cpus(f"{folder}/local_cpulist")
    if local is None:
        local = tree.cpus(f"{folder}/local_cpus")
    if not local:  # also a node of memory only, which has no near CPUs
        return node if node is not None and node >= 0 else None
    if nodes is None:
        nodes = {node: cpu.node_cpus(tree, node) for node in cpu.online_nodes(tree)}
    near = [number for number, cpus in nodes.items() if set(cpus) >= set(local)]
    if node is not None and node >= 0:
        return node if node in near else None
    return near[0] if len(near) == 1 else None


def _device(tree: Tree, address: str, path: list[str], nodes: dict[int, list[int]]) -> dict[str, Any]:
    folder = f"{DEVICES}/{address}"
    return {
        "address": address,
        "path": path,
        "numa_node": numa_node(tree, folder, nodes),
        "vendor": tree.text(f"{folder}/vendor") or "",
        "device": tree.text(f"{folder}/device") or "",
        "pci_class": tree.text(f"{folder}/class") or "",
        "link_speed_gt_s": _speed(tree.text(f"{folder}/current_link_speed")),
        "link_speed_max_gt_s": _speed(tree.text(f"{folder}/max_link_speed")),
        "link_width": _width(tree.number(f"{folder}/current_link_width")),
        "link_width_max": _width(tree.number(f"{folder}/max_link_width")),
    }


def _speed(text: str | None) -> float | None:
    """`16.0 GT/s PCIe` -> 16.0; `Unknown` -> None."""
    found = re.match(r"([\d.]+) GT/s", text or "")
    return float(found[1]) if found else None


def _width(lanes: int | None) -> int | None:
    """Lanes; a link that is down or not there reads 0, 63 or 255."""
    return lanes if lanes and lanes <= 32 else None
