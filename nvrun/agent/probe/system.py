"""Limits, memory and file systems of the very chain that will run the job."""

from __future__ import annotations

import os
import re
import resource
from functools import partial
from typing import Any

from . import cpu
from .child import Call, UnreadError, ask
from .tree import Tree

PATIENCE = 2.0
"""Seconds for one mounted file system to answer."""


def limits(tree: Tree) -> dict[str, Any]:
    """The `Limits` of the schema; -1 = unlimited."""

    def soft(kind: int) -> int:
        return resource.getrlimit(kind)[0]

    return {
        "memlock_bytes": soft(resource.RLIMIT_MEMLOCK),
        "nofile": soft(resource.RLIMIT_NOFILE),
        "nofile_hard": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": soft(resource.RLIMIT_NPROC),
        "stack_bytes": soft(resource.RLIMIT_STACK),
        "core_bytes": soft(resource.RLIMIT_CORE),
        "tasks_left": _tasks_left(tree),
    }


def _tasks_left(tree: Tree) -> int | None:
    """Processes and threads that the cgroup still grants; None = no limit or unknown."""
    left = []
    for folder in (*cpu.cgroup_folders(tree), *cpu.cgroup1_folders(tree, "pids")):
        most, current = tree.number(f"{folder}/pids.max"), tree.number(f"{folder}/pids.current")
        if most is not None and current is not None:
            left.append(most - current)
    return min(left, default=None)


def memory(tree: Tree) -> dict[str, Any]:
    """The `Memory` of the schema."""
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB", tree.text("/proc/meminfo") or "", re.MULTILINE))
    if "MemTotal" not in info:
        raise UnreadError("/proc/meminfo does not tell")
    active = re.search(r"\[(\w+)\]", tree.text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        "total_bytes": int(info["MemTotal"]) * 1024,
        "available_bytes": int(info.get("MemAvailable") or info["MemFree"]) * 1024,
        "swap_total_bytes": int(info.get("SwapTotal", 0)) * 1024,
        "swap_free_bytes": int(info.get("SwapFree", 0)) * 1024,
        "thp": active[1] if active else None,
        "numa_balancing": tree.text("/proc/sys/kernel/numa_balancing"),
        "cgroup_limit_bytes": _cgroup_limit(tree),
    }


def _cgroup_limit(tree: Tree) -> int | None:
    """The least limit on the way from the root of the cgroup tree; None = none (v1 says that with a huge number)."""
    bounds = [tree.number(f"{folder}/memory.max") for folder in cpu.cgroup_folders(tree)]
    bounds += [tree.number(f"{folder}/memory.limit_in_bytes") for folder in cpu.cgroup1_folders(tree, "memory")]
    return min((bound for bound in bounds if bound is not None and bound < 1 << 60), default=None)


def filesystems(tree: Tree, paths: list[str]) -> list[dict[str, Any]]:
    """The `Filesystem` of each path; a child for each mount asks it.

    Of a path that does not exist yet (a cache) its nearest existing folder is described."""
    mounts = mount_table(tree)
    answers = ask({path: Call(partial(_statvfs, tree, path), PATIENCE, mount_of(mounts, path)[0]) for path in paths})
    described = []
    for path in paths:
        _, kind, options = mount_of(mounts, path)
        fact = {"path": path, "type": kind, "noexec": "noexec" in options, "readonly": "ro" in options}
        described.append({**fact, **(answers[path].value or {}), "error": answers[path].error})
    return described


def _statvfs(tree: Tree, path: str) -> dict[str, Any]:
    while not tree.exists(path) and path not in ("/", ""):
        path = os.path.dirname(path)
    size = os.statvfs(tree.path(path))
    counted = size.f_blocks > 0  # autofs before its mount, and file systems in user space, count nothing
    return {
        "total_bytes": size.f_blocks * size.f_frsize if counted else None,
        "free_bytes": size.f_bavail * size.f_frsize if counted else None,
        "free_inodes": size.f_favail if size.f_files else None,
        "writable": os.access(tree.path(path), os.W_OK),
    }


Mount = tuple[str, str, frozenset[str]]
"""Mount point, type, options of the mount and of the file system."""


def mount_table(tree: Tree) -> list[Mount]:
    """/proc/self/mountinfo, in the order of mounting; reading it touches no file system."""
    table = []
    for line in (tree.text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, *rest) = left.split(), right.split()
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        table.append((point, kind, frozenset((fields[5] + "," + ",".join(rest)).split(","))))
    return table


def mount_of(mounts: list[Mount], path: str) -> Mount:
    """The mount that holds the path, without following links: the longest mount point, of equals the last."""
    best: Mount = ("", "", frozenset())
    for mount in mounts:
        point = mount[0]
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= len(best[0]):
            best = mount
    return best
