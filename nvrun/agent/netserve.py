"""The listening side of the tests between hosts: TCP on ports of the ephemeral range, UDP on one, all on one address.

What connects says a secret of the run first, then what it wants; a stranger is dropped without a word.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
from typing import Any, Dict, List, Tuple

from .standing import Say, wait

HEAD = struct.Struct(">16scQ")
"""Secret, what is wanted, and how many bytes follow."""
WHO = struct.Struct(">I")
"""The answer to a head: the host's number in the run."""
KNOCK, PUSH, ECHO, SINK = b"k", b"p", b"e", b"s"
"""Only who; bytes to be acknowledged by DONE; each read sent back; bytes until the end, then COUNT."""
DONE = b"."
COUNT = struct.Struct(">Q")
DATAGRAM = struct.Struct(">16sHH")
"""Secret, and the size in bytes; in the answer what arrived of it as well."""
_BACKLOG = 1024
_SIZE = 1 << 20


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def ephemeral_range() -> Tuple[int, int]:
    """net.ipv4.ip_local_port_range, IPv6's too; the kernel's default (ip-sysctl.rst) where it cannot be read."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = file.read().split()
    except OSError:  # a container that hides /proc/sys
        return 32768, 60999
    return int(low), int(high)


def listen(address: str, count: int) -> List[socket.socket]:
    """`count` listeners, one at a random port in each of so many equal parts of the ephemeral range.

    Raises OSError where the address is not here, or all that was tried is taken.
    """
    low, high = ephemeral_range()
    step = max(1, (high - low + 1) // count)
    found: List[socket.socket] = []
    for first in range(low, low + step * count, step):
        for attempt in range(20):
            sock = socket.socket(family_of(address), socket.SOCK_STREAM)
            try:
                sock.bind((address, random.randrange(first, min(first + step, 65536))))
                sock.listen(_BACKLOG)
            except OSError:
                sock.close()
                if attempt == 19:
                    raise
                continue
            sock.setblocking(False)
            found.append(sock)
            break
    return found


def listen_on(request: Dict[str, Any], say: Say, until: int) -> None:
    """Listens on one port of every address, as torchrun would, until `until` can be read."""
    from . import netcheck  # the launcher, which reads this module's constants, has no use for it

    held, port = netcheck.hold_port([request["port"]])
    held.listen()
    say({"port": port})
    wait(until)
    held.close()


def serve(request: Dict[str, Any], say: Say, until: int) -> None:
    """Listens, says on which ports, and answers until `until` can be read."""
    address = request["address"]
    listeners = listen(address, request["ports"])
    datagrams = socket.socket(family_of(address), socket.SOCK_DGRAM)
    datagrams.bind((address, 0))
    datagrams.setblocking(False)
    say({
        "ports": [sock.getsockname()[1] for sock in listeners],
        "udp": datagrams.getsockname()[1],
        "range": ephemeral_range(),
    })  # fmt: skip
    secret, who = bytes.fromhex(request["secret"]), WHO.pack(request["host"])
    selector = selectors.DefaultSelector()
    selector.register(until, selectors.EVENT_READ)
    selector.register(datagrams, selectors.EVENT_READ)
    for sock in listeners:
        selector.register(sock, selectors.EVENT_READ)
    buffer = bytearray(_SIZE)
    while True:
        for key, _ in selector.select():
            if key.fd == until:
                return
            if key.fileobj is datagrams:
                _answer(datagrams, secret)
            elif key.data is None:
                _accept(key.fileobj, selector)  # type: ignore[arg-type]
            else:
                try:
                    ended = key.data.read(buffer, secret, who)
                except OSError:  # reset, or it does not take the answer
                    ended = True
                if ended:
                    selector.unregister(key.fileobj)
                    key.data.sock.close()


def _accept(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    try:
        sock, _ = listener.accept()
    except OSError:  # gone again
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    selector.register(sock, selectors.EVENT_READ, _Guest(sock))


def _answer(datagrams: socket.socket, secret: bytes) -> None:
    try:
        data, sender = datagrams.recvfrom(1 << 16)
        if len(data) >= DATAGRAM.size and data[:16] == secret:
            _, size, _ = DATAGRAM.unpack_from(data)
            datagrams.sendto(DATAGRAM.pack(secret, size, min(len(data), 65535)), sender)
    except OSError:  # an ICMP error of an earlier answer, or no room for this one: the other side asks again
        return


class _Guest:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._head = b""
        self._wanted = b""
        self._left = 0
        self._count = 0

    def read(self, buffer: bytearray, secret: bytes, who: bytes) -> bool:
        """Takes what has come; true where the connection is over."""
        if not self._wanted:
            data = self.sock.recv(HEAD.size - len(self._head))
            self._head += data
            if not data or (len(self._head) >= 16 and self._head[:16] != secret):
                return True
            if len(self._head) == HEAD.size:
                _, self._wanted, self._left = HEAD.unpack(self._head)
                self.sock.send(who)
            return False
        size = self.sock.recv_into(buffer)
        if self._wanted == ECHO and size:
            self.sock.send(memoryview(buffer)[:size])
        elif self._wanted == PUSH and size:
            self._left -= size
            if self._left <= 0:
                self.sock.send(DONE)
        elif self._wanted == SINK:
            self._count += size
            if not size:
                self.sock.send(COUNT.pack(self._count))
        return not size
