"""CPUs and NUMA nodes from sysfs, and what of them this process chain may use."""

from __future__ import annotations

import re
from typing import Any

from .tree import Tree, parse_list

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"


def cpus(tree: Tree) -> dict[str, Any]:
    """The `Cpus` of the schema."""
    status = tree.text("/proc/self/status") or ""
    home = {cpu: node["node"] for node in numa(tree) for cpu in node["cpus"]}
    load = (tree.text("/proc/loadavg") or "").split()
    return {
        "model": model(tree),
        "online": [_cpu(tree, cpu, home.get(cpu)) for cpu in online(tree)],
        "allowed": _allowed(status, "Cpus_allowed_list"),
        "allowed_nodes": _allowed(status, "Mems_allowed_list"),
        "governor": _governor(tree),
        "load1": float(load[0]) if load else None,
        "runnable": int(load[3].partition("/")[0]) if len(load) > 3 else None,
        "quota": quota(tree),
    }


def numa(tree: Tree) -> list[dict[str, Any]]:
    """Online nodes only: their distance rows hold one value for each online node, in order."""
    nodes = online_nodes(tree)
    running = set(online(tree))
    return [_node(tree, node, nodes, running) for node in nodes]


def online_nodes(tree: Tree) -> list[int]:
    listed = tree.cpus(f"{NODE}/online")
    if listed is not None:
        return listed
    return [int(name[4:]) for name in tree.entries(NODE) if re.fullmatch(r"node\d+", name)]


def online(tree: Tree) -> list[int]:
    """CPUs that run and show a topology; a CPU that is being taken down may be in the list without one."""
    listed = tree.cpus(f"{CPU}/online")
    if listed is None:
        listed = [int(name[3:]) for name in tree.entries(CPU) if re.fullmatch(r"cpu\d+", name)]
    return [cpu for cpu in listed if tree.exists(f"{CPU}/cpu{cpu}/topology")] or listed


def node_cpus(tree: Tree, node: int) -> list[int]:
    listed = tree.cpus(f"{NODE}/node{node}/cpulist")
    return listed if listed is not None else tree.cpus(f"{NODE}/node{node}/cpumap") or []


def model(tree: Tree) -> str:
    """`model name` on x86; on ARM and POWER what stands for it."""
    info = tree.text("/proc/cpuinfo") or ""
    found = re.search(r"^(?:model name|cpu|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    if found:
        return found[1].strip()
    part = re.search(r"^CPU part\s*:\s*(\S+)$", info, re.MULTILINE)
    return ARM_PARTS.get(part[1], f"ARM part {part[1]}") if part else ""


ARM_PARTS = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
"""MIDR part numbers of ARM's server cores (Arm Neoverse technical reference manuals); V2 is Grace."""


def quota(tree: Tree) -> float | None:
    """CPUs' worth of time: the least cpu.max on the way from the root of the cgroup tree, or version 1's quota."""
    told = [(tree.text(f"{folder}/cpu.max") or "").split() for folder in cgroup_folders(tree)]
    for folder in cgroup1_folders(tree, "cpu"):
        told.append([tree.text(f"{folder}/cpu.cfs_{what}_us") or "" for what in ("quota", "period")])
    known = [(int(words[0]), int(words[1])) for words in told if len(words) == 2 and all(map(str.isdigit, words))]
    return min((most / period for most, period in known if period), default=None)


def cgroup_folders(tree: Tree) -> list[str]:
    """This process's folder of the unified hierarchy and all above it, as seen from here."""
    found = re.search(r"^0::(/.*)$", tree.text("/proc/self/cgroup") or "", re.MULTILINE)
    return _and_above("/sys/fs/cgroup", found[1] if found else "")


def cgroup1_folders(tree: Tree, controller: str) -> list[str]:
    """The same of a controller of version 1; none where it is not one of version 1 here."""
    lines = (tree.text("/proc/self/cgroup") or "").splitlines()
    found = (line.split(":", 2) for line in lines)
    path = next((parts[2] for parts in found if len(parts) == 3 and controller in parts[1].split(",")), None)
    return [] if path is None else _and_above(f"/sys/fs/cgroup/{controller}", path)


def _and_above(base: str, path: str) -> list[str]:
    """In a container only the root may be there, which is its own folder."""
    parts = [part for part in path.split("/") if part]
    return ["/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _cpu(tree: Tree, cpu: int, node: int | None) -> dict[str, Any]:
    topology = f"{CPU}/cpu{cpu}/topology"
    siblings = tree.cpus(f"{topology}/thread_siblings_list")
    if siblings is None:
        siblings = tree.cpus(f"{topology}/thread_siblings") or [cpu]
    package = tree.number(f"{topology}/physical_package_id")
    return {"cpu": cpu, "core": siblings, "package": None if package == -1 else package, "node": node}


def _node(tree: Tree, node: int, nodes: list[int], running: set[int]) -> dict[str, Any]:
    folder = f"{NODE}/node{node}"
    info = tree.text(f"{folder}/meminfo") or ""
    row = (tree.text(f"{folder}/distance") or "").split()
    # The row also skips offline nodes; anything else cannot be assigned to nodes.
    fits = len(row) == len(nodes) and all(word.isdigit() for word in row)
    distances = {number: int(word) for number, word in zip(nodes, row)} if fits else {}  # noqa: B905 - Python 3.9
    distances.pop(node, None)
    return {
        "node": node,
        "cpus": [cpu for cpu in node_cpus(tree, node) if cpu in running],
        "memory_total": _kib(info, "MemTotal"),
        "memory_free": _kib(info, "MemFree"),
        "distances": distances,
    }


def _kib(info: str, key: str) -> int | None:
    found = re.search(rf"\b{key}:\s*(\d+) kB", info)
    return int(found[1]) * 1024 if found else None


def _allowed(status: str, key: str) -> list[int]:
    found = re.search(rf"^{key}:\s*(\S+)$", status, re.MULTILINE)
    return parse_list(found[1]) if found else []


def _governor(tree: Tree) -> str | None:
    """All governors in use, joined by `+`; None where the kernel scales nothing (guests)."""
    found = {tree.text(f"{CPU}/cpufreq/{policy}/scaling_governor") for policy in tree.entries(f"{CPU}/cpufreq")}
    return "+".join(sorted(governor for governor in found if governor)) or None
