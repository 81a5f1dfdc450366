"""Small /sys and /proc trees for the tests of the collectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvrun.agent.probe.tree import Tree


def write(root: Path, files: Mapping[str, str]) -> Tree:
    """A tree with these files; a value `-> path` makes a link to a path below the root."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            target = root / text[3:].lstrip("/")
            target.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        else:
            path.write_text(text + "\n")
    return Tree(str(root))


def machine(
    nodes: Mapping[int, str], *, online: str, siblings: Mapping[int, str], distances: str = ""
) -> dict[str, str]:
    """Files of a machine: NUMA node -> its CPU list, CPUs online, CPU -> its core's CPU list."""
    node, cpu = "/sys/devices/system/node", "/sys/devices/system/cpu"
    files = {f"{node}/online": ",".join(map(str, nodes)), f"{cpu}/online": online}
    for index, (number, cpus) in enumerate(nodes.items()):
        rows = distances.splitlines() or [""] * len(nodes)
        files[f"{node}/node{number}/cpulist"] = cpus
        files[f"{node}/node{number}/distance"] = rows[index].strip()
        files[f"{node}/node{number}/meminfo"] = f"Node {number} MemTotal: 1000 kB\nNode {number} MemFree: 10 kB"
    for number, core in siblings.items():
        files[f"{cpu}/cpu{number}/topology/thread_siblings_list"] = core
        files[f"{cpu}/cpu{number}/topology/physical_package_id"] = "0"
    return files


def pci(path: str, *, pci_class: str, vendor: str = "0x10de", node: int | None = None, **files: str) -> dict[str, str]:
    """A PCI device at `path` below /sys/devices, and its link in /sys/bus/pci/devices."""
    folder, address = f"/sys/devices/{path}", path.rpartition("/")[2]
    made = {f"{folder}/class": pci_class, f"{folder}/vendor": vendor}
    made.update({f"{folder}/{name}": text for name, text in files.items()})
    if node is not None:
        made[f"{folder}/numa_node"] = str(node)
    return {**made, f"/sys/bus/pci/devices/{address}": f"-> {folder}"}
