"""Interfaces, addresses and listeners of this network namespace from the kernel itself (rtnetlink(7), sock_diag(7)).

/sys/class/net belongs to the namespace in which /sys was mounted, which need not be this one.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

GETLINK, GETADDR = 18, 22
SOCK_DIAG, SOCK_DIAG_BY_FAMILY, TCP_LISTEN = 4, 20, 10
REQUEST, REQUEST_DUMP = 0x1, 0x301
DONE, ERROR = 3, 2
IFF_UP, IFF_RUNNING = 0x1, 0x40
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_LINKINFO = 1, 3, 4, 10, 18
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
SCOPES = {0: "global", 253: "link", 254: "host"}
ARPHRD = {1: "ether", 32: "infiniband", 772: "loopback", 65534: "tun"}
"""Hardware types of if_arp.h; what else there is comes as `arphrd N`."""


def links() -> list[dict[str, Any]]:
    """Name, index, up, mtu, mac, kind, master (name) of each interface."""
    found = []
    for body, told in _dump(GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0), 16):
        _, hardware, index, flags, _ = struct.unpack("=BxHiII", body)
        info = dict(attributes(told.get(IFLA_LINKINFO, b"")))
        kind = info.get(IFLA_INFO_KIND, b"").rstrip(b"\0").decode()
        found.append(
            {
                "name": told[IFLA_IFNAME].rstrip(b"\0").decode(errors="replace"),
                "index": index,
                "up": bool(flags & IFF_UP and flags & IFF_RUNNING),
                "mtu": struct.unpack("=I", told[IFLA_MTU])[0] if IFLA_MTU in told else None,
                "mac": told.get(IFLA_ADDRESS, b"").hex(":"),
                "kind": kind or ARPHRD.get(hardware, f"arphrd {hardware}"),
                "master": struct.unpack("=I", told[IFLA_MASTER])[0] if IFLA_MASTER in told else None,
            }
        )
    names = {link["index"]: link["name"] for link in found}
    return [{**link, "master": names.get(link["master"])} for link in found]


def addresses() -> dict[int, list[dict[str, Any]]]:
    """Interface index -> its addresses, IPv4 and IPv6."""
    found: dict[int, list[dict[str, Any]]] = {}
    for body, told in _dump(GETADDR, struct.pack("=BBBBi", 0, 0, 0, 0, 0), 8):
        family, prefix, _, scope, index = struct.unpack("=BBBBi", body)
        raw = told.get(IFA_LOCAL) or told.get(IFA_ADDRESS)
        if raw and family in (socket.AF_INET, socket.AF_INET6):
            address = {"address": socket.inet_ntop(family, raw), "prefix": prefix, "scope": SCOPES.get(scope, "global")}
            found.setdefault(index, []).append(address)
    return found


def listeners() -> list[tuple[int, str]]:
    """Port and inode of each TCP socket that listens. OSError where the kernel has no inet_diag.

    /proc/net/tcp knows them too, but goes through the table of all connections for it: 5 ms a read, more on hosts with
    much memory."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        body = struct.pack("=BBxxI48x", family, socket.IPPROTO_TCP, 1 << TCP_LISTEN)
        for told in _messages(SOCK_DIAG_BY_FAMILY, body, REQUEST_DUMP, SOCK_DIAG):
            found.append((struct.unpack_from(">H", told, 4)[0], str(struct.unpack_from("=I", told, 68)[0])))
    return found


def ask(kind: int, body: bytes) -> bytes:
    """The answer to a request that has one; OSError where the kernel refuses it."""
    return next(_messages(kind, body, REQUEST))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute; what is cut off is left out."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if not 4 <= length <= len(data):
            return
        yield kind & 0x3FFF, data[4:length]
        data = data[(length + 3) & ~3 :]


def _dump(kind: int, body: bytes, header: int) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Fixed part and attributes of each message of a dump."""
    for payload in _messages(kind, body, REQUEST_DUMP):
        yield payload[:header], dict(attributes(payload[header:]))


def _messages(kind: int, body: bytes, flags: int, protocol: int = 0) -> Iterator[bytes]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as link:
        link.settimeout(2)
        link.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        while True:
            data = link.recv(1 << 18)
            while len(data) >= 16:
                length, message, _, _, _ = struct.unpack_from("=IHHII", data)
                if message == DONE:
                    return
                if message == ERROR:
                    number = -struct.unpack_from("=i", data, 16)[0]
                    raise OSError(number, os.strerror(number))
                yield data[16:length]
                data = data[(length + 3) & ~3 :]
