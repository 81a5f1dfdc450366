"""NVLink, the NVSwitch fabric, and which GPUs can reach each other's memory, from NVML."""

from __future__ import annotations

from typing import Any

from .nvml import Reader, pci_address

FI_LINK_COUNT, FI_REPLAY, FI_RECOVERY, FI_CRC, FI_SPEED, FI_STATE, FI_SPEED_COMMON = 91, 161, 162, 163, 164, 165, 90
MAX_LINKS = 18
LINK_UP = (1, 2)
"""NVML_NVLINK_STATE_ACTIVE, and SLEEP: an idle link that wakes by itself."""
REMOTE_TYPES = {0: "gpu", 1: "npu", 2: "switch"}
FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
HEALTH = {1: "healthy", 2: "unhealthy", 3: "limited"}
HEALTH_BITS = {0: "degraded bandwidth", 2: "route recovery", 4: "route unhealthy", 6: "access timeout"}
"""Shift of each two-bit field of the health mask: 1 = yes, 2 = no, 0 = not known."""
CONFIGURATION_SHIFT = 8
CONFIGURATION = {
    2: "system GUID",
    3: "chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware",
    7: "location",
    8: "GPU state",
}
"""Four-bit field `incorrect configuration`; 0 not known, 1 none."""
P2P_READ, P2P_WRITE = 0, 1
"""Literal, for pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake."""
P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
    6: "unknown",
}


def links(reader: Reader, handle: Any) -> list[dict[str, Any]]:
    """The `NvLink`s; none where the GPU has none or the guest is shown none.

    All numbers come with one call: each costs a way into the driver, and eight GPUs have 144 links."""
    (count, common) = reader.fields(handle, [(FI_LINK_COUNT, 0), (FI_SPEED_COMMON, 0)])
    per_link = (FI_STATE, FI_SPEED, FI_REPLAY, FI_RECOVERY, FI_CRC)
    numbers = range(min(count or 0, 64)) if count is not None else range(_count(reader, handle))
    values = reader.fields(handle, [(field, link) for link in numbers for field in per_link]) if numbers else []
    found = []
    for link in numbers:
        state, speed, replay, recovery, crc = values[link * len(per_link) : (link + 1) * len(per_link)]
        if state is None:  # drivers without the field
            state = _quiet(reader, "nvmlDeviceGetNvLinkState", handle, link)
        kind = _quiet(reader, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        found.append(
            {
                "link": link,
                "active": state in LINK_UP,
                "speed_mb_s": speed if speed is not None else common,
                "remote_pci": _remote(reader, handle, link),
                "remote_type": REMOTE_TYPES.get(kind) if kind is not None else None,
                "crc_errors": crc,
                "replay_errors": replay,
                "recovery_errors": recovery,
            }
        )
    return found


def fabric(reader: Reader, handle: Any) -> dict[str, Any]:
    """State of the GPU in its NVSwitch fabric: `fabric_state`, `_status`, `_health`, `_clique`."""
    info = _fabric_info(reader, handle)
    if info is None:
        return {}
    state = FABRIC_STATES.get(int(info.state), f"unknown ({int(info.state)})")
    if state == "not supported":
        return {"fabric_state": state}
    return {
        "fabric_state": state,
        "fabric_status": "success" if info.status == 0 else _status(reader, int(info.status)),
        "fabric_health": health(int(getattr(info, "healthMask", 0)), int(getattr(info, "healthSummary", 0))),
        "fabric_clique": f"{bytes(info.clusterUuid).hex()}.{int(info.cliqueId)}" if any(info.clusterUuid) else None,
    }


def health(mask: int, summary: int) -> dict[str, str]:
    """What of the fabric's health is known, in words."""
    known = {name: mask >> shift & 3 for shift, name in HEALTH_BITS.items()}
    words = {name: "yes" if value == 1 else "no" for name, value in known.items() if value}
    configuration = mask >> CONFIGURATION_SHIFT & 15
    if configuration > 1:
        words["incorrect configuration"] = CONFIGURATION.get(configuration, f"unknown ({configuration})")
    if summary:
        words["summary"] = HEALTH.get(summary, f"unknown ({summary})")
    return words


def add_peers(nvml: Any, handles: list[Any], gpus: list[dict[str, Any]]) -> None:
    """Fills in `p2p`: UUID of each other GPU -> `ok`, or why reading or writing its memory does not work."""
    for a, gpu in zip(handles, gpus):  # noqa: B905 - Python 3.9
        if a is not None:
            gpu["p2p"] = {
                other["uuid"]: _p2p(nvml, a, b)
                for b, other in zip(handles, gpus)  # noqa: B905 - Python 3.9
                if b is not None and other["index"] != gpu["index"]
            }


def _p2p(nvml: Any, a: Any, b: Any) -> str:
    try:
        for index in (P2P_READ, P2P_WRITE):
            status = int(nvml.nvmlDeviceGetP2PStatus(a, b, index))
            if status:
                return P2P.get(status, f"unknown ({status})")
    except nvml.NVMLError as error:
        return str(error).lower()
    return "ok"


def _count(reader: Reader, handle: Any) -> int:
    """For drivers without the field: links up to the first that the GPU does not have."""
    for link in range(MAX_LINKS):
        if _quiet(reader, "nvmlDeviceGetNvLinkState", handle, link) is None:
            return link
    return MAX_LINKS


def _remote(reader: Reader, handle: Any, link: int) -> str | None:
    """PCI address of the other end; a switch that the guest does not see reads ffffffff:ff:ff.0."""
    info = _quiet(reader, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    if info is None:
        return None
    text = info.busId.decode() if isinstance(info.busId, bytes) else info.busId
    return None if not text or text.lower().startswith("ffffffff") else pci_address(text)


def _quiet(reader: Reader, function: str, *arguments: Any) -> Any:
    """A value that may be missing link by link: None then, without a note for each of 144 links."""
    try:
        return getattr(reader.nvml, function)(*arguments)
    except (reader.nvml.NVMLError, AttributeError):
        return None


def _fabric_info(reader: Reader, handle: Any) -> Any:
    """The newest form of the answer that this driver knows (version 3 from driver 550 on)."""
    import ctypes  # 5 ms that hosts without a GPU need not spend

    forms = (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    )
    for function, form in forms:
        make = getattr(reader.nvml, form, None)
        if make is not None:
            info = make()
            if reader.read("fabric_state", function, handle, ctypes.byref(info)) is not None:
                reader.unread.pop("fabric_state", None)
                return info
    return None


def _status(reader: Reader, status: int) -> str:
    return str(reader.nvml.NVMLError(status)).lower()
