"""Sockets to sshd: by TCP, by ProxyCommand, and a wrapper that remembers what the other side said first."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from nvrun.fleet.link import Unreachable
from nvrun.fleet.ssh_settings import Settings

_KEPT = 300
_LOOK_UP_SECONDS = 1.0


class Dropped(Exception):
    """Refused, or closed before sshd's banner: another try may succeed. Holds the Unreachable for the last one."""

    def __init__(self, trouble: Unreachable) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


class Wire:
    """A socket, or a channel through a jump host, without the two waits of delayed acknowledgement: 42 ms at
    authentication, 41 ms at the channel's opening (measured on a loopback sshd)."""

    def __init__(self, sock: Any, undo: Callable[[], None] = lambda: None) -> None:
        self._sock, self._undo = sock, undo
        self._tcp = isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX
        self.first = b""
        """What came first, up to a few hundred bytes."""
        self.ended = False
        if self._tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._sock.recv(size)
        except ConnectionError:
            self.ended = True
            raise
        self.ended = not data
        if len(self.first) < _KEPT:
            self.first += data[:_KEPT]
        if self._tcp:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data

    def settimeout(self, seconds: float | None) -> None:
        """paramiko looks up from each connection ten times a second, to see whether it was closed: with 64 hosts a
        third of a CPU. `close` wakes its reader by itself."""
        self._sock.settimeout(seconds and max(seconds, _LOOK_UP_SECONDS))

    def close(self) -> None:
        """Both sides see the end, whatever a writer waits for."""
        with contextlib.suppress(OSError, EOFError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        undo, self._undo = self._undo, lambda: None
        undo()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def tcp(name: str, settings: Settings, timeout: float) -> Wire:
    """Connects to the host's addresses, one after the other, within `timeout` seconds in all.

    Raises Unreachable, or Dropped where it was refused.
    """
    deadline = time.monotonic() + timeout
    try:
        found = socket.getaddrinfo(settings.hostname, settings.port, settings.family, socket.SOCK_STREAM)
    except OSError as error:
        temporary = error.errno == socket.EAI_AGAIN
        raise Unreachable(
            f"{name}: {settings.hostname} has no address: {error.strerror or error}",
            code="host-name-unknown",
            hint="the name server does not answer: see /etc/resolv.conf"
            if temporary
            else f"getent hosts {settings.hostname}; add it to DNS, /etc/hosts, or a HostName line in ~/.ssh/config",
        ) from None
    except UnicodeError:
        raise Unreachable(f"{name}: {settings.hostname!r} is no host name", code="host-name-unknown") from None
    last: OSError = TimeoutError()
    for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, (deadline - time.monotonic()) / left))  # a dead one leaves time for the others
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
        else:
            return Wire(sock)
    raise _tcp_trouble(name, settings, last, timeout)


def _tcp_trouble(name: str, settings: Settings, error: OSError, timeout: float) -> Exception:
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"{name}: no answer from {settings.where} in {timeout:g} s",
            code="host-silent",
            hint="is the host up, and does a firewall drop its ssh port? (--connect-timeout to wait longer)",
        )
    if error.errno in (errno.ECONNREFUSED, errno.ECONNRESET):
        return Dropped(
            Unreachable(
                f"{name}: {settings.where} refused the connection",
                code="host-refused",
                hint="is sshd running there, and is this its port? (systemctl status ssh)",
            )
        )
    return Unreachable(
        f"{name}: cannot reach {settings.where}: {error.strerror or error}",
        code="host-unreachable",
        hint=f"ip route get {settings.hostname}; is the host up and in this network?",
    )


def proxied(command: str) -> tuple[Wire, Callable[[], str]]:
    """A socket whose other end is a ProxyCommand's input and output, and what it says on standard error so far."""
    ours, theirs = socket.socketpair()
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`; a pipe would fill when nobody reads it
    with theirs:
        process = subprocess.Popen(  # as ssh does: by the user's shell, in its place
            [os.environ.get("SHELL") or "/bin/sh", "-c", "exec " + command],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=said,
            start_new_session=True,
        )

    last = ""

    def words() -> str:
        if said.closed:
            return last
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # its last words may follow the end of its output
        said.seek(0)
        return said.read()[-2000:].decode(errors="replace").strip()

    def end() -> None:
        nonlocal last
        last = words()
        process.kill()
        process.wait()
        said.close()

    return Wire(ours, end), words
