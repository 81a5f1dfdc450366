"""Lossless Ethernet as RoCE needs it: PFC and DSCP priorities from the kernel (dcbnl), ECN from MLNX_OFED's sysfs,
pauses from the driver (ethtool).

Reading needs no privilege; only setting does (net/dcb/dcbnl.c).
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from typing import Any

from . import netlink
from .tree import Tree

GETDCB, IEEE_GET = 78, 21
ATTR_IFNAME, ATTR_IEEE, IEEE_PFC, IEEE_APP_TABLE = 1, 13, 2, 3
SELECTOR_DSCP = 5
SIOCETHTOOL, GPAUSEPARAM = 0x8946, 0x12


def lossless(tree: Tree, name: str) -> dict[str, Any]:
    """`pfc_priorities`, `dscp_priorities`, `ecn_priorities` and `global_pause` of an interface; None for each that
    nothing tells."""
    settings = _kernel(name) if tree.live else None
    return {
        **(settings or {"pfc_priorities": None, "dscp_priorities": None}),
        "ecn_priorities": _ecn(tree, name),
        "global_pause": _global_pause(name) if tree.live else None,
    }


def parse(body: bytes) -> dict[str, Any]:
    """The attributes of the kernel's answer to DCB_CMD_IEEE_GET."""
    ieee = list(netlink.attributes(dict(netlink.attributes(body)).get(ATTR_IEEE, b"")))
    pfc = next((value for kind, value in ieee if kind == IEEE_PFC), None)
    tables = [value for kind, value in ieee if kind == IEEE_APP_TABLE]
    rules = [
        struct.unpack("=BBH", rule[:4]) for table in tables for _, rule in netlink.attributes(table) if len(rule) >= 4
    ]
    return {
        # struct ieee_pfc: capability, then the mask of priorities on which pauses are sent and obeyed
        "pfc_priorities": None if pfc is None else [priority for priority in range(8) if pfc[1] >> priority & 1],
        "dscp_priorities": {dscp: priority for selector, priority, dscp in rules if selector == SELECTOR_DSCP},
    }


def _kernel(name: str) -> dict[str, Any] | None:
    text = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(text), ATTR_IFNAME) + text + bytes(-len(text) % 4)
    try:
        answer = netlink.ask(GETDCB, struct.pack("=BBH", 0, IEEE_GET, 0) + attribute)
    except OSError:  # the driver knows no DCB
        return None
    return parse(answer[4:])


def _global_pause(name: str) -> bool | None:
    """As `ethtool -a` has it: pauses are sent or obeyed."""
    answer = array.array("I", [GPAUSEPARAM, 0, 0, 0])  # struct ethtool_pauseparam: cmd, autoneg, rx_pause, tx_pause
    request = struct.pack("16sP16x", name.encode(), answer.buffer_info()[0])  # struct ifreq with a pointer in it
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)
        except OSError:  # the driver knows no pauses
            return None
    return bool(answer[2] or answer[3])


def _ecn(tree: Tree, name: str) -> list[int] | None:
    """Priorities on which congestion is both notified (np) and reacted to (rp)."""
    folder = f"/sys/class/net/{name}/ecn"
    if not tree.exists(folder):
        return None
    return [
        priority
        for priority in range(8)
        if all(tree.number(f"{folder}/{point}/enable/{priority}") == 1 for point in ("roce_np", "roce_rp"))
    ]
