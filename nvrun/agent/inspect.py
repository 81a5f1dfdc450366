"""Where running ranks really are, read from the kernel and from NVML."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from . import procs


def look(pids: Dict[int, int]) -> Dict[str, Any]:
    """Local rank -> `cpus` (cpulist), `policy` (numa_maps' word for the task's policy, `prefer:0`) and `gpus`.

    A value that could not be read is None; `gpus` are the UUIDs of GPUs on which the rank or a process below it has a
    context, () before it made one.
    """
    users = _gpu_users()
    return {str(local): _one(pid, users) for local, pid in pids.items()}


def _one(pid: int, users: "Optional[Dict[int, List[str]]]") -> Dict[str, Any]:
    gpus = None
    if users is not None:
        family = {pid} | procs.descendants(pid)
        gpus = sorted({uuid for member in family for uuid in users.get(member, ())})
    return {"pid": pid, "cpus": _cpus(pid), "policy": _policy(pid), "gpus": gpus}


def _cpus(pid: int) -> Optional[str]:
    try:
        with open("/proc/%d/status" % pid) as file:
            for line in file:
                if line.startswith("Cpus_allowed_list:"):
                    return line.split()[1]
    except OSError:
        pass
    return None


def _policy(pid: int) -> Optional[str]:
    """Policy of the stack's mapping: no program gives its stack a policy of its own, so it is the task's."""
    try:
        with open("/proc/%d/numa_maps" % pid) as file:
            for line in file:
                fields = line.split()
                if "stack" in fields:
                    return fields[1]
    except OSError:  # no NUMA in this kernel, or another user's process
        pass
    return None


def _gpu_users() -> "Optional[Dict[int, List[str]]]":
    """pid -> UUIDs of the GPUs it computes on, by NVML; None where NVML is not to be had."""
    if not os.path.exists("/dev/nvidiactl"):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        users: Dict[int, List[str]] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                users.setdefault(process.pid, []).append(uuid)
        return users
    except pynvml.NVMLError:
        return None
