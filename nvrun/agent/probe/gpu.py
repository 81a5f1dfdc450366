"""GPUs as NVML shows them.

Each reading stands alone: what one driver or card cannot say is in `unread`, with NVML's words.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from . import nvlink, pci
from .child import UnreadError
from .nvml import Reader, pci_address, words
from .processes import user
from .tree import Tree

EVENT_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
"""nvmlClocksEventReason*."""
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain p2p",
    4: "drain and reset",
    5: "recover imex domain",
    6: "bus reset",
    7: "system reboot",
}
"""NVML_GPU_RECOVERY_ACTION_*; drivers from 570 on."""
FI_RECOVERY_ACTION = 230
CLOCK_SM, TEMPERATURE_GPU, UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1, 0, 1
DEVICE_NODES = ("nvidiactl", "nvidia-uvm", "gdrdrv")


def gpus(tree: Tree, load: Callable[[], Any] | None = None) -> dict[str, Any]:
    """`gpus`, and of the software `driver`, `cuda_driver` and `device_nodes`.

    No NVML and no NVIDIA device on PCI is no GPU; no NVML beside one is an UnreadError. `load` imports pynvml."""
    on_pci = pci.gpus(tree)
    if not on_pci and not tree.exists("/dev/nvidiactl") and not tree.exists("/proc/driver/nvidia/version"):
        if on_pci is None:
            raise UnreadError("no NVIDIA driver, and sysfs shows no PCI bus")
        return {"gpus": []}
    nvml = (load or _pynvml)()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnreadError(f"NVML: {words(error)}") from None
    reader = Reader(nvml)
    cuda = reader.read("cuda_driver", "nvmlSystemGetCudaDriverVersion_v2")
    return {
        "driver": reader.read("driver", "nvmlSystemGetDriverVersion"),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "gpus": _all(tree, nvml),
        "device_nodes": device_nodes(tree),
    }


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise UnreadError("pynvml is not there") from None
    return pynvml


def _all(tree: Tree, nvml: Any) -> list[dict[str, Any]]:
    handles: list[Any] = []
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        reader = Reader(nvml)
        handle = reader.read("handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None and "permission" in reader.unread["handle"].lower():
            continue  # another job's: NVML counts it, CUDA does not
        handles.append(handle)
        if handle is None:  # lost from the bus: the place in the list is all that is known
            found.append({"index": index, "uuid": "", "name": "", "pci": "", "unread": reader.unread})
        else:
            found.append(_gpu(tree, reader, handle, index))
    nvlink.add_peers(nvml, handles, found)
    return found


def _gpu(tree: Tree, reader: Reader, handle: Any, index: int) -> dict[str, Any]:
    read = reader.read
    bus = read("pci", "nvmlDeviceGetPciInfo", handle)
    address = pci_address(_string(bus.busId)) if bus else ""
    capability = read("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle)
    power = {
        "power_w": read("power_w", "nvmlDeviceGetPowerUsage", handle),
        "power_limit_w": read("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", handle),
        "power_limit_default_w": read("power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", handle),
    }
    fact = {
        "index": index,
        "uuid": _string(read("uuid", "nvmlDeviceGetUUID", handle) or ""),
        "name": _string(read("name", "nvmlDeviceGetName", handle) or ""),
        "pci": address,
        "numa_node": pci.numa_node(tree, f"{pci.DEVICES}/{address}"),
        "memory_node": _memory_node(tree, reader, handle, address),
        **memory(reader, handle),
        "processes": _processes(tree, reader, handle),
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "mig": _mig(reader, handle),
        "minor": read("minor", "nvmlDeviceGetMinorNumber", handle),
        "nvlinks": nvlink.links(reader, handle),
        **nvlink.fabric(reader, handle),
        "pcie_gen": read("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_gen_max": read("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": read("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": read("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", handle),
        **_health(reader, handle),
        "persistence": _flag(read("persistence", "nvmlDeviceGetPersistenceMode", handle)),
        "temperature_c": read("temperature_c", "nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU),
        **{field: None if value is None else value / 1000 for field, value in power.items()},
        "vbios": _string(read("vbios", "nvmlDeviceGetVbiosVersion", handle)),
        "sm_clock_mhz": read("sm_clock_mhz", "nvmlDeviceGetClockInfo", handle, CLOCK_SM),
        "sm_clock_max_mhz": read("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
        "compute_mode": _named(COMPUTE_MODES, read("compute_mode", "nvmlDeviceGetComputeMode", handle)),
    }
    return {**fact, "unread": reader.unread}


def _health(reader: Reader, handle: Any) -> dict[str, Any]:
    """ECC, row remapping, NVIDIA's own verdict, and why clocks are held down."""
    ecc = reader.read("ecc_enabled", "nvmlDeviceGetEccMode", handle)
    remapped = reader.read("remap_pending", "nvmlDeviceGetRemappedRows", handle)
    retired = None if remapped else reader.read("retired_pages", "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    (action,) = reader.fields(handle, [(FI_RECOVERY_ACTION, 0)])
    if action is None:
        reader.unread["recovery_action"] = "Not Supported"
    mask = reader.read("throttle_reasons", "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if mask is None:  # the name before driver 535
        mask = reader.read("throttle_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if mask is not None:
            del reader.unread["throttle_reasons"]
    errors = "nvmlDeviceGetTotalEccErrors"
    return {
        "ecc_enabled": _flag(ecc[0]) if ecc else None,
        "ecc_uncorrected_volatile": reader.read("ecc_uncorrected_volatile", errors, handle, UNCORRECTED, VOLATILE),
        "ecc_uncorrected_aggregate": reader.read("ecc_uncorrected_aggregate", errors, handle, UNCORRECTED, AGGREGATE),
        "remap_pending": bool(remapped[2]) if remapped else _flag(retired),
        "remap_failed": bool(remapped[3]) if remapped else None,
        "recovery_action": _named(RECOVERY_ACTIONS, action),
        "throttle_reasons": [name for bit, name in EVENT_REASONS.items() if (mask or 0) & bit],
    }


def memory(reader: Reader, handle: Any) -> dict[str, Any]:
    """Bytes; the second version of the call keeps the driver's own reserve out of `used`."""
    version = getattr(reader.nvml, "nvmlMemory_v2", None)
    memory = reader.read("memory_used", "nvmlDeviceGetMemoryInfo", handle, version) if version else None
    if memory is None:
        memory = reader.read("memory_used", "nvmlDeviceGetMemoryInfo", handle)
        if memory is not None:
            reader.unread["memory_used"] = "includes the driver's reserve"
    return {"memory_total": memory.total, "memory_used": memory.used} if memory else {}


def _memory_node(tree: Tree, reader: Reader, handle: Any, address: str) -> int | None:
    """NVML knows it on Grace Hopper; on POWER9 the driver has a file."""
    node = reader.read("memory_node", "nvmlDeviceGetNumaNodeId", handle)
    return memory_node_of(tree, address) if node is None else int(node)


def memory_node_of(tree: Tree, address: str) -> int | None:
    """`Node: 255` in /proc/driver/nvidia/gpus/ADDRESS/numa_status."""
    for line in (tree.text(f"/proc/driver/nvidia/gpus/{address}/numa_status") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Node" and value.strip().isdigit():
            return int(value)
    return None


def _processes(tree: Tree, reader: Reader, handle: Any) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for kind in ("Compute", "MPSCompute", "Graphics"):
        for process in reader.read("processes", f"nvmlDeviceGet{kind}RunningProcesses", handle) or []:
            pid = int(process.pid)
            if pid in found:
                continue  # it does both
            found[pid] = {
                "pid": pid,
                "memory_bytes": process.usedGpuMemory,
                "name": tree.text(f"/proc/{pid}/comm") or "",
                "user": user(tree, str(pid)),
                "graphics": kind == "Graphics",
            }
    return list(found.values())


def _mig(reader: Reader, handle: Any) -> list[str] | None:
    mode = reader.read("mig", "nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        return None
    instances = []
    for index in range(reader.read("mig", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        try:
            instance = reader.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            instances.append(_string(reader.nvml.nvmlDeviceGetUUID(instance)))
        except reader.nvml.NVMLError:
            continue  # a slot without an instance
    return instances


def device_nodes(tree: Tree) -> dict[str, str]:
    """The driver's device files -> `ok` or why they do not open; NVML has woken the GPUs by now."""
    names = [name for name in tree.entries("/dev") if name[6:].isdigit() and name.startswith("nvidia")]
    nodes = [f"/dev/{name}" for name in (*names, *DEVICE_NODES) if tree.exists(f"/dev/{name}")]
    channels = "/dev/nvidia-caps-imex-channels"
    return {
        node: _open(tree.path(node)) for node in [*nodes, *(f"{channels}/{name}" for name in tree.entries(channels))]
    }


def _open(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return "ok"


def _string(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _named(table: dict[int, str], value: int | None) -> str | None:
    return None if value is None else table.get(value, f"unknown ({value})")
