"""Facts of one host, as `nvrun.facts.HostFacts` takes them: one collector a file, each section read on its own.

Every section that can block is read in a forked child of its own with a deadline, all side by side: a wedged driver, a
dead file server or a silent resolver costs its own section and no other.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from . import cpu, gpu, names, network, paths, pci, processes, rdma, software, system, xid
from .child import Answer, Call, UnreadError, ask
from .tree import Tree

DEADLINE = 5.0
DEADLINES = {"gpus": 18.0, "software": 8.0}
"""Seconds a section has. Without persistence mode the driver takes one or two seconds to wake each GPU."""
CHILDREN = {
    section: child
    for child, sections in {
        "kernel": ("identity", "cpus", "numa", "limits", "memory", "env", "own_env", "listeners", "xids", "processes"),
        "devices": ("gpus_on_pci", "pci", "rdma", "network"),
        "files": ("paths", "filesystems", "conf_files"),
    }.items()
    for section in sections
}
"""Sections that are read in one child, in this order: what asks nobody but the kernel; what may wait for a driver; what
may wait for a file server (paths and file systems in children of their own). The others have a child each."""
LONGEST = max(DEADLINES.values())
"""`collect` answers within this and a moment."""


def collect(request: dict[str, Any], root: str = "/") -> dict[str, Any]:
    """All facts, or those of `request["sections"]`, as builtins for `nvrun.facts.decode`. Call before threads start.

    Keys of the request, all but `host` optional: `host` (the name it goes by), `python` (the job's interpreter),
    `script`, `cwd`, `paths` (looked at like the script), `peers` (names to resolve), `ports` (whose listener is to be
    named), `env` (variables the job will have, over this process's own), `sections`. `root` is the folder that stands
    for `/`: with a recorded tree what only system calls know (limits, GPUs) is still this host's.
    """
    tree = Tree(root)
    table = _collectors(tree, request)
    wanted = request.get("sections") or list(table)
    calls = {
        name: Call(table[name], DEADLINES.get(name, DEADLINE), CHILDREN.get(name, "")) for name in [*CHILDREN, *table]
    }
    calls = {name: call for name, call in calls.items() if name in wanted}
    answers = ask(calls)
    reply: dict[str, Any] = {
        "host": request["host"],
        **{name: answer.value for name, answer in answers.items() if not answer.error},
        "missing": {name: answer.error for name, answer in answers.items() if answer.error},
        "seconds": {name: round(answer.seconds, 4) for name, answer in answers.items()},
    }
    return _join_driver(reply, answers)


def _collectors(tree: Tree, request: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    env = {**os.environ, **(request.get("env") or {})}
    cwd = request.get("cwd") or _here()
    asked = [request.get("script"), cwd, *(request.get("paths") or [])]
    wanted = list(dict.fromkeys(_absolute(path, cwd, env) for path in asked if path))
    return {
        "identity": lambda: names.identity(tree, env),
        "software": lambda: software.software(tree, request.get("python"), env),
        "gpus": lambda: gpu.gpus(tree),
        "gpus_on_pci": lambda: _told(pci.gpus(tree), "sysfs shows no PCI bus"),
        "cpus": lambda: cpu.cpus(tree),
        "numa": lambda: cpu.numa(tree),
        "pci": lambda: pci.devices(tree),
        "network": lambda: network.network(tree),
        "rdma": lambda: rdma.ports(tree),
        "names": lambda: names.names(tree, request.get("peers") or []),
        "limits": lambda: system.limits(tree),
        "memory": lambda: system.memory(tree),
        "filesystems": lambda: system.filesystems(tree, _folders(cwd, env)),
        "paths": lambda: paths.paths(tree, wanted),
        "processes": lambda: processes.processes(tree),
        "listeners": lambda: processes.listeners(tree, request.get("ports") or []),
        "xids": lambda: xid.xids(tree),
        "env": lambda: names.environment(env),
        "own_env": lambda: names.environment(dict(os.environ)),
        "conf_files": lambda: names.conf_files(tree, env),
    }


def _told(value: Any, otherwise: str) -> Any:
    if value is None:
        raise UnreadError(otherwise)
    return value


def _join_driver(reply: dict[str, Any], answers: dict[str, Answer]) -> dict[str, Any]:
    """NVML is asked once, with the GPUs; what it says of the driver belongs to the software."""
    read = reply.pop("gpus", None)
    if read is not None:
        reply["gpus"] = read.pop("gpus")
        if "software" in reply:
            reply["software"].update(read)
    return reply


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # removed meanwhile
        return "/"


def _folders(cwd: str, env: dict[str, str]) -> list[str]:
    """Shared memory, scratch, the working directory and the caches that torch.compile and Triton write to."""
    home = env.get("HOME", "")
    caches = (
        env.get("TORCHINDUCTOR_CACHE_DIR"),
        env.get("TRITON_CACHE_DIR") or (home and f"{home}/.triton"),
        env.get("XDG_CACHE_HOME") or (home and f"{home}/.cache"),
    )
    places = ("/dev/shm", "/tmp", env.get("TMPDIR"), cwd, *caches)
    return list(dict.fromkeys(_absolute(place, cwd, env) for place in places if place))


def _absolute(path: str, cwd: str, env: dict[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        path = env.get("HOME", "") + path[1:]
    return os.path.normpath(os.path.join(cwd, path))


__all__ = ["LONGEST", "collect"]
