"""Messages between nvruns: four bytes of length, then so many bytes. Nobody can make the other side keep more than it
expects or wait longer than it likes. Sockets are non-blocking throughout: one thread may read and another write."""

from __future__ import annotations

import select
import socket
import struct
import time

_LENGTH = struct.Struct("!I")


class Strange(Exception):
    """What came is no message of nvrun's, too long, or too late."""


def send(sock: socket.socket, data: bytes, seconds: float) -> None:
    """Strange where the other side does not take it in time."""
    deadline = time.monotonic() + seconds
    sock.setblocking(False)
    left = memoryview(_LENGTH.pack(len(data)) + data)
    try:
        while left:
            _wait(sock, select.POLLOUT, deadline)
            left = left[sock.send(left) :]
    except OSError as error:
        raise Strange(f"sending failed: {error.strerror or error}") from None


def receive(sock: socket.socket, limit: int, seconds: float | None) -> bytes:
    """The next message of at most `limit` bytes, whole within `seconds` (None: whenever it comes).

    Empty at the end of the connection, between two messages.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    sock.setblocking(False)
    head = _exactly(sock, _LENGTH.size, deadline)
    if not head:
        return b""
    (length,) = _LENGTH.unpack(head)
    if not 0 < length <= limit:
        raise Strange(f"a message of {length} bytes, where at most {limit} are expected")
    body = _exactly(sock, length, deadline)
    if not body:
        raise Strange("the connection ended within a message")
    return body


def _exactly(sock: socket.socket, wanted: int, deadline: float | None) -> bytes:
    """`wanted` bytes; empty where the connection ends before the first of them."""
    parts = bytearray()
    while len(parts) < wanted:
        try:
            _wait(sock, select.POLLIN, deadline)
            data = sock.recv(min(65536, wanted - len(parts)))
        except OSError as error:
            raise Strange(f"the connection failed: {error.strerror or error}") from None
        if not data and parts:
            raise Strange("the connection ended within a message")
        if not data:
            return b""
        parts += data
    return bytes(parts)


def _wait(sock: socket.socket, event: int, deadline: float | None) -> None:
    """Until the socket is ready. Strange at the deadline."""
    poll = select.poll()
    poll.register(sock, event)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise Strange("nothing whole came in time")
