"""RDMA ports (InfiniBand, RoCE, EFA, iWARP) from /sys/class/infiniband; the active MTU from libibverbs."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from . import pci
from .child import Call, ask
from .tree import Tree, natural

CLASS = "/sys/class/infiniband"
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "port_xmit_wait",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
HW_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "np_cnp_sent",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "roce_slow_restart",
)
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""enum ibv_mtu."""


def ports(tree: Tree) -> list[dict[str, Any]]:
    """The `RdmaPort`s of the schema, one for each port of each device."""
    found = [
        _port(tree, device, int(port))
        for device in tree.entries(CLASS)
        for port in tree.entries(f"{CLASS}/{device}/ports")
    ]
    if found and tree.live:
        # libibverbs opens each device: a wedged firmware blocks it, and must not cost the other facts.
        answer = ask({"mtu": Call(active_mtus, 2.0)})["mtu"].value or {}
        for port in found:
            port["active_mtu"] = answer.get(f"{port['device']}/{port['port']}")
    return found


def _port(tree: Tree, device: str, port: int) -> dict[str, Any]:
    folder, device_folder = f"{CLASS}/{device}/ports/{port}", f"{CLASS}/{device}/device"
    gids = _gids(tree, folder)
    uverbs = next(iter(tree.entries(f"{device_folder}/infiniband_verbs")), None)
    return {
        "device": device,
        "port": port,
        "link_layer": tree.text(f"{folder}/link_layer") or "",
        "state": _label(tree.text(f"{folder}/state")),
        "phys_state": _label(tree.text(f"{folder}/phys_state")),
        "rate_gbps": _rate(tree.text(f"{folder}/rate")),
        "lid": tree.number(f"{folder}/lid"),
        "sm_lid": tree.number(f"{folder}/sm_lid"),
        "gids": gids,
        "pkeys": _pkeys(tree, folder),
        "netdev": _netdev(tree, device_folder, port, gids),
        "pci": pci.address_of(tree, device_folder),
        "numa_node": pci.numa_node(tree, device_folder),
        "firmware": tree.text(f"{CLASS}/{device}/fw_ver"),
        "board": tree.text(f"{CLASS}/{device}/board_id"),
        "hca_type": tree.text(f"{CLASS}/{device}/hca_type"),
        "node_guid": tree.text(f"{CLASS}/{device}/node_guid"),
        "counters": _counters(tree, folder),
        "uverbs": f"/dev/infiniband/{uverbs}" if uverbs else None,
        "uverbs_openable": _opens(tree.path(f"/dev/infiniband/{uverbs}")) if uverbs else None,
        "is_vf": tree.exists(f"{device_folder}/physfn"),
        "traffic_class": _traffic_class(tree.text(f"{CLASS}/{device}/tc/{port}/traffic_class")),
    }


def _label(text: str | None) -> str:
    """`4: ACTIVE` -> `ACTIVE`."""
    return (text or "").partition(": ")[2].strip() or (text or "")


def _rate(text: str | None) -> float | None:
    """`400 Gb/sec (4X NDR)` -> 400.0; old lanes have `2.5`."""
    found = re.match(r"[\d.]+", text or "")
    return float(found[0]) if found else None


def _traffic_class(text: str | None) -> int | None:
    """MLNX_OFED's `Global tclass=106`; unset where the file is empty."""
    found = re.search(r"Global tclass=(\d+)", text or "")
    return int(found[1]) if found else None


def _gids(tree: Tree, folder: str) -> list[dict[str, Any]]:
    """Used slots of the table; a table has up to 256, the free ones all zeros (and no type: EINVAL)."""
    table = []
    for slot in tree.entries(f"{folder}/gids"):
        gid = tree.text(f"{folder}/gids/{slot}")
        if gid and gid.strip("0:"):
            kind = tree.text(f"{folder}/gid_attrs/types/{slot}") or ""
            netdev = tree.text(f"{folder}/gid_attrs/ndevs/{slot}")
            table.append({"index": int(slot), "gid": gid, "type": kind, "netdev": netdev})
    return table


def _pkeys(tree: Tree, folder: str) -> list[str]:
    """By their place in the table, up to the last one in use: a partition that was left leaves 0x0000 behind."""
    keys = [tree.text(f"{folder}/pkeys/{slot}") or "0x0000" for slot in tree.entries(f"{folder}/pkeys")]
    while keys and not keys[-1].strip("0x"):
        keys.pop()
    return keys


def _netdev(tree: Tree, device_folder: str, port: int, gids: list[dict[str, Any]]) -> str | None:
    """RoCE: the interface of the port's GIDs. InfiniBand: the IPoIB interface whose dev_port (from 0) is this port."""
    for gid in gids:
        if gid["netdev"]:
            return str(gid["netdev"])
    names = tree.entries(f"{device_folder}/net")
    same = [
        name
        for name in names
        if port - 1
        in (tree.number(f"{device_folder}/net/{name}/dev_port"), tree.number(f"{device_folder}/net/{name}/dev_id"))
    ]
    return next(iter(sorted(same, key=natural)), None)


def _counters(tree: Tree, folder: str) -> dict[str, int]:
    files = [f"counters/{name}" for name in COUNTERS] + [f"hw_counters/{name}" for name in HW_COUNTERS]
    read = {file.rpartition("/")[2]: tree.number(f"{folder}/{file}") for file in files}
    return {name: value for name, value in read.items() if value is not None}


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def active_mtus() -> dict[str, int]:
    """`mlx5_0/1` -> bytes, as ibv_query_port says (sysfs does not); {} where libibverbs is not installed."""
    import ctypes

    try:
        verbs = ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return {}
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    mtus: dict[str, int] = {}
    for index in range(count.value if devices else 0):
        name = (verbs.ibv_get_device_name(devices[index]) or b"").decode()
        context = verbs.ibv_open_device(devices[index])
        if not context:
            continue
        with contextlib.suppress(OSError):
            for port in os.listdir(f"{CLASS}/{name}/ports"):
                attributes = (ctypes.c_int * 64)()  # struct ibv_port_attr begins: state, max_mtu, active_mtu
                if verbs.ibv_query_port(context, int(port), attributes) == 0 and attributes[2] in MTU_BYTES:
                    mtus[f"{name}/{port}"] = MTU_BYTES[attributes[2]]
    return mtus
