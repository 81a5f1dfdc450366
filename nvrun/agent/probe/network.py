"""Interfaces, routes and the kernel's network settings."""

from __future__ import annotations

import socket
import struct
from typing import Any

from . import dcb, netlink, pci
from .tree import Tree

NET = "/sys/class/net"
SYSCTLS = (
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.rps_sock_flow_entries",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
)
ERRORS = ("rx_errors", "rx_dropped", "rx_missed_errors", "tx_errors", "tx_dropped", "tx_carrier_errors")


def network(tree: Tree) -> dict[str, Any]:
    """The `Network` of the schema."""
    ports = (tree.text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    values = {name: tree.text("/proc/sys/" + name.replace(".", "/")) for name in SYSCTLS}
    dropped, squeezed = _softnet(tree)
    return {
        "interfaces": interfaces(tree),
        "routes": _routes4(tree) + _routes6(tree),
        "ephemeral_range": [int(port) for port in ports] or None,
        "somaxconn": tree.number("/proc/sys/net/core/somaxconn"),
        "sysctls": {name: " ".join(value.split()) for name, value in values.items() if value is not None},
        "softnet_dropped": dropped,
        "softnet_squeezed": squeezed,
        "neighbours": _neighbours(tree),
    }


def interfaces(tree: Tree) -> list[dict[str, Any]]:
    """The `Interface`s: of this namespace from the kernel; of a recorded tree, without IPv4, from its files."""
    if tree.live:
        links, addresses = netlink.links(), netlink.addresses()
    else:
        links, addresses = [_recorded(tree, name) for name in tree.entries(NET)], _addresses6(tree)
    return [
        {
            **{key: link[key] for key in ("name", "up", "mtu", "mac", "kind", "master")},
            "addresses": addresses.get(link["index"], []),
            **(_hardware(tree, link["name"]) if _shown(tree, link) else {}),
        }
        for link in links
    ]


def _shown(tree: Tree, link: dict[str, Any]) -> bool:
    """/sys shows this very interface, and not one of the same name in the namespace that /sys was mounted in."""
    folder = f"{NET}/{link['name']}"
    return bool(
        tree.number(f"{folder}/ifindex") == link["index"] and (tree.text(f"{folder}/address") or "") == link["mac"]
    )


def _hardware(tree: Tree, name: str) -> dict[str, Any]:
    folder = f"{NET}/{name}"
    queues = [queue for queue in tree.entries(f"{folder}/queues") if queue.startswith("rx-")]
    speed = tree.number(f"{folder}/speed")
    address = pci.address_of(tree, f"{folder}/device")
    counted = {counter: tree.number(f"{folder}/statistics/{counter}") for counter in ERRORS}
    rdma = next(iter(tree.entries(f"{folder}/device/infiniband")), None)
    changes = tree.number(f"{folder}/carrier_changes")
    return {
        "speed_mbit": speed if speed and 0 < speed < 0xFFFFFFFF else None,
        "pci": address,
        "numa_node": pci.numa_node(tree, f"{pci.DEVICES}/{address}") if address else None,
        "rdma_device": rdma,
        "rx_queues": len(queues) or None,
        "rps_cpus": tree.text(f"{folder}/queues/{queues[0]}/rps_cpus") if queues else None,
        "errors": {counter: value for counter, value in counted.items() if value is not None},
        "carrier_changes": changes,
        **(dcb.lossless(tree, name) if rdma else {}),  # only RoCE asks for it
    }


def _recorded(tree: Tree, name: str) -> dict[str, Any]:
    folder = f"{NET}/{name}"
    hardware = tree.number(f"{folder}/type")
    uevent = dict(line.partition("=")[::2] for line in (tree.text(f"{folder}/uevent") or "").splitlines())
    master = tree.realpath(f"{folder}/master").rpartition("/")[2] if tree.exists(f"{folder}/master") else None
    return {
        "name": name,
        "index": tree.number(f"{folder}/ifindex"),
        "up": bool((tree.number(f"{folder}/flags") or 0) & netlink.IFF_UP and tree.number(f"{folder}/carrier")),
        "mtu": tree.number(f"{folder}/mtu"),
        "mac": tree.text(f"{folder}/address") or "",
        "kind": uevent.get("DEVTYPE") or netlink.ARPHRD.get(hardware or 0, ""),
        "master": master,
    }


def _addresses6(tree: Tree) -> dict[int, list[dict[str, Any]]]:
    """/proc/net/if_inet6: address, index, prefix, scope (hex), flags, name."""
    found: dict[int, list[dict[str, Any]]] = {}
    for line in (tree.text("/proc/net/if_inet6") or "").splitlines():
        raw, index, prefix, scope, *_ = line.split()
        kind = {0x20: "link", 0x10: "host"}.get(int(scope, 16) & 0xF0, "global")
        address = {"address": _v6(raw), "prefix": int(prefix, 16), "scope": kind}
        found.setdefault(int(index, 16), []).append(address)
    return found


def _routes4(tree: Tree) -> list[dict[str, Any]]:
    """/proc/net/route, the main table; addresses are words in the host's byte order."""
    routes = []
    for line in (tree.text("/proc/net/route") or "").splitlines()[1:]:
        name, destination, gateway, _, _, _, metric, mask, *_ = line.split()
        prefix = bin(int(mask, 16)).count("1")
        routes.append(
            {
                "destination": f"{_v4(destination)}/{prefix}",
                "interface": name,
                "gateway": None if gateway == "00000000" else _v4(gateway),
                "metric": int(metric),
            }
        )
    return routes


def _routes6(tree: Tree) -> list[dict[str, Any]]:
    """/proc/net/ipv6_route without the local and multicast entries that every interface has."""
    routes = []
    for line in (tree.text("/proc/net/ipv6_route") or "").splitlines():
        destination, prefix, _, _, gateway, metric, _, _, _, name = line.split()
        if name == "lo" or destination.startswith("ff"):
            continue
        routes.append(
            {
                "destination": f"{_v6(destination)}/{int(prefix, 16)}",
                "interface": name,
                "gateway": _v6(gateway) if int(gateway, 16) else None,
                "metric": int(metric, 16),
            }
        )
    return routes


def _softnet(tree: Tree) -> tuple[int | None, int | None]:
    """Packets dropped and budgets used up, over all CPUs: columns 2 and 3 of /proc/net/softnet_stat, in hex."""
    rows = [line.split() for line in (tree.text("/proc/net/softnet_stat") or "").splitlines()]
    if not rows:
        return None, None
    return sum(int(row[1], 16) for row in rows), sum(int(row[2], 16) for row in rows)


def _neighbours(tree: Tree) -> dict[str, str]:
    """Address -> `aa:bb:cc:dd:ee:ff 0x2 eth0` (flags 0x0: not answered)."""
    rows = [line.split() for line in (tree.text("/proc/net/arp") or "").splitlines()[1:]]
    return {row[0]: f"{row[3]} {row[2]} {row[5]}" for row in rows if len(row) >= 6}


def _v4(word: str) -> str:
    return socket.inet_ntoa(struct.pack("=I", int(word, 16)))


def _v6(digits: str) -> str:
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
