"""Ports and reachability as this host sees them."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import selectors
import socket
import struct
import time
from typing import Dict, List, Mapping, Sequence, Tuple

_SIOCGIFADDR = 0x8915


def addresses() -> List[List[str]]:
    """[interface, address] of each global address: IPv4 before IPv6, loopback and link-local left out."""
    found: List[List[str]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # no IPv4 address on this interface
            found.append([name, socket.inet_ntoa(reply[20:24])])
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except OSError:  # IPv6 is switched off, or /proc/net is hidden
        rows = []
    for row in rows:
        found.append([row[5], str(ipaddress.IPv6Address(bytes.fromhex(row[0])))])
    return [[name, text] for name, text in found if _is_global(text)]


def visible_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that CUDA will show to a process, as far as device files and CUDA_VISIBLE_DEVICES tell: quick, and confirmed
    by NVML later. CUDA ends the list at the first entry it does not know."""
    try:
        count = sum(name[6:].isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
    except OSError:
        count = 0
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None or count == 0:
        return count
    seen = 0
    for entry in wanted.split(",") if wanted.strip() else []:
        entry = entry.strip()
        known = int(entry) < count if entry.isdigit() else entry.startswith(("GPU-", "MIG-"))
        if not known:
            break
        seen += 1
    return seen


def _is_global(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local)


class Held:
    """A port that is this process's until `close`."""

    def __init__(self, port: int) -> None:
        """Raises OSError (EADDRINUSE, EACCES) where the port cannot be had."""
        # Two holders could both bind it (neither listens): an abstract unix socket, which belongs to the same network
        # namespace as the port does, is had by one of them only.
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._lock.bind("\0nvrun-port-%d" % port)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.bind(("", port))
            if listening(port):  # with SO_REUSEADDR a bind beside a listener of another address can succeed
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        except OSError:
            self.close()
            raise

    def listen(self) -> None:
        self._socket.listen(128)

    def close(self) -> None:
        self._socket.close()
        self._lock.close()


def hold_port(ports: Sequence[int]) -> Tuple[Held, int]:
    """Holds the first free one of `ports`: torchrun can listen on it, nobody else is given it.

    SO_REUSEADDR without listen is the one way that allows both (measured with libuv and without on torch 2.13).
    Raises OSError where all are taken.
    """
    for port in ports:
        try:
            return Held(port), port
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    taken = "port %d is taken%s" % (ports[0], _who_has(ports[0]))
    if len(ports) == 1:
        raise OSError(taken)
    raise OSError("none of the ports %d to %d is free: %s" % (ports[0], ports[-1], taken))


def _who_has(port: int) -> str:
    """` by python3 x.py (pid 7, ada), of the nvrun run 2026...`, as far as this user may see it."""
    from .probe import processes
    from .probe.tree import Tree

    found = [each for each in processes.listeners(Tree("/"), [port]) if each["port"] == port and "pid" in each]
    if not found:
        return ""
    pid, command, user = found[0]["pid"], found[0]["command"], found[0]["user"]
    marks = {each["pid"]: each["run_mark"] for each in processes.processes(Tree("/"))}
    run = marks.get(pid)
    left = ", of the nvrun run %s" % run.rpartition(".")[0] if run else ""
    return " by %s (pid %d, %s)%s" % (" ".join(str(command).split()), pid, user, left)


def listening(port: int) -> bool:
    """Whether somebody listens on `port` in this network namespace."""
    from .probe import processes
    from .probe.tree import Tree

    return any(found == port for found, _ in processes.listening(Tree("/")))


def reach(targets: Sequence[Tuple[str, int]], timeout: float) -> Dict[str, str]:
    """Connects to all `targets` (address, port) at once: `address port` -> "" or the errno's name.

    `ETIMEDOUT` stands for silence within `timeout` seconds.
    """
    results: Dict[str, str] = {}
    with selectors.DefaultSelector() as selector:
        for address, port in targets:
            key = "%s %d" % (address, port)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            code = sock.connect_ex((address, port))
            if code in (0, errno.EINPROGRESS):
                selector.register(sock, selectors.EVENT_WRITE, key)
                results[key] = "ETIMEDOUT"
            else:
                results[key] = errno.errorcode.get(code, os.strerror(code))
                sock.close()
        deadline = time.monotonic() + timeout
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            for entry, _ in ready:
                sock = entry.fileobj  # type: ignore[assignment]
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                results[entry.data] = errno.errorcode.get(code, os.strerror(code)) if code else ""
                selector.unregister(sock)
                sock.close()
            if not ready and time.monotonic() >= deadline:
                break
        for entry in list(selector.get_map().values()):
            entry.fileobj.close()  # type: ignore[union-attr]
    return results
