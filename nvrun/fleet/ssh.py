"""ssh by paramiko: one connection and one channel a host; hosts behind a jump host share the connection to it."""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import paramiko

from nvrun.fleet import ssh_auth, ssh_dial, ssh_settings
from nvrun.fleet.link import Unreachable
from nvrun.fleet.openssh import PAUSES
from nvrun.fleet.ssh_dial import Dropped, Wire
from nvrun.fleet.ssh_handshake import handshake
from nvrun.fleet.ssh_settings import Settings
from nvrun.fleet.ssh_words import FORWARD
from nvrun.fleet.start import quoted
from nvrun.model import Host

_LOGIN_SECONDS = 3.0
"""What the login may take at least, however late the key exchange was."""
_KEPT = 16384

# Its threads log what they then raise; with no handler configured that would be printed.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class ChannelLink:
    """A command's channel over a paramiko transport that is this link's own."""

    def __init__(self, transport: paramiko.Transport, channel: paramiko.Channel, undo: Callable[[], None]) -> None:
        self._transport, self._channel, self._undo = transport, channel, undo
        self._said = bytearray()

    def read(self) -> bytes:
        try:
            while True:
                if self._channel.recv_stderr_ready():
                    self._note()
                with contextlib.suppress(TimeoutError):
                    return self._channel.recv(1 << 16)
        except (OSError, EOFError, paramiko.SSHException):
            return b""

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                with _as_broken_pipe():
                    sent = self._channel.send(rest)  # type: ignore[arg-type]  # any bytes-like will do
            except TimeoutError:  # a full window: the other side may take it later
                continue
            if sent == 0:
                raise BrokenPipeError("the channel is closed")
            rest = rest[sent:]

    def close_write(self) -> None:
        with _as_broken_pipe():
            self._channel.shutdown_write()

    def close(self) -> None:
        self._undo()

    def said(self) -> str:
        self._note()
        return self._said.decode(errors="replace").strip()

    def last_words(self) -> str:
        deadline = time.monotonic() + 1.0
        while not self._channel.exit_status_ready() and time.monotonic() < deadline and self._transport.is_active():
            time.sleep(0.01)
        return f"{self.said()} {self._end()}".strip()

    def _end(self) -> str:
        """How the command ended, as far as known. paramiko passes over exit-signal (RFC 4254, 6.10): what closes in
        order without a status was ended by one, and a connection that was cut closes nothing in order."""
        code = self._channel.recv_exit_status() if self._channel.exit_status_ready() else -1  # -1: none was told
        if code == -1:
            return "(ended by a signal)" if self._channel.eof_received and self._channel.closed else ""
        return f"(ended with {code})"

    def _note(self) -> None:
        while self._channel.recv_stderr_ready():
            self._said += self._channel.recv_stderr(4096)
            del self._said[:-_KEPT]


@contextlib.contextmanager
def _as_broken_pipe() -> Iterator[None]:
    """What paramiko raises where the connection ends meanwhile, as any other link says it."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise BrokenPipeError(f"the connection is closed {error}") from None


class Jumps:
    """Connections to jump hosts, each made once, held while a host behind it is, and shared by all of these."""

    def __init__(self, config: str | None, timeout: float) -> None:
        self._config, self._timeout = config, timeout
        self._lock = threading.Lock()
        self._made: dict[tuple[str, ...], Future[tuple[paramiko.Transport, Callable[[], None]]]] = {}
        self._holders: dict[tuple[str, ...], int] = {}

    def hold(self, hops: tuple[str, ...]) -> tuple[paramiko.Transport, Callable[[], None]]:
        """The transport to the last of `hops`, and how to let go of it. Raises Unreachable of the hop at fault."""
        with self._lock:
            future = self._made.get(hops)
            first = future is None
            if future is None:
                future = self._made[hops] = Future()
            self._holders[hops] = self._holders.get(hops, 0) + 1
        if first:
            try:
                future.set_result(self._open(hops))
            except Unreachable as trouble:
                future.set_exception(trouble)
            except BaseException as error:
                future.set_exception(error)
                raise
        try:
            transport, _ = future.result()
        except Unreachable:
            self._let_go(hops)
            raise
        return transport, lambda: self._let_go(hops)

    def _open(self, hops: tuple[str, ...]) -> tuple[paramiko.Transport, Callable[[], None]]:
        passed, before = {hops}, self._before(hops)
        while before:  # followed to its start, or two threads would wait for each other's half of a circle
            if before in passed:
                raise Unreachable(
                    f"{hops[-1]}: its ProxyJump comes back to {before[-1]}",
                    code="host-ssh-config",
                    hint=f"in ~/.ssh/config, before the general lines: Host {before[-1]} / ProxyJump none",
                )
            passed.add(before)
            before = self._before(before)
        host = ssh_settings.jump_host(hops[-1])
        settings = ssh_settings.read(host, self._config, self._timeout)
        return _login(host, settings, self._timeout, self._before(hops), self)

    def _before(self, hops: tuple[str, ...]) -> tuple[str, ...]:
        """The way to the last of `hops`: a hop's own ProxyJump counts for the first one only, as with ssh -J."""
        if hops[1:]:
            return hops[:-1]
        return ssh_settings.read(ssh_settings.jump_host(hops[0]), self._config, self._timeout).proxy_jump

    def _let_go(self, hops: tuple[str, ...]) -> None:
        with self._lock:
            self._holders[hops] -= 1
            future = None if self._holders[hops] else self._made.pop(hops, None)
        if future and not future.exception():
            future.result()[1]()


def connect(host: Host, command: Sequence[str], *, timeout: float, jumps: Jumps, config: str | None) -> ChannelLink:
    """Starts `command` on `host`. Raises Unreachable with the reason in words and what to do about it."""
    settings = ssh_settings.read(host, config, timeout)
    transport, undo = _login(host, settings, timeout, settings.proxy_jump, jumps)
    try:
        channel = transport.open_session(timeout=timeout)
        channel.settimeout(1.0)
        channel.exec_command("exec " + quoted(command))
    except (paramiko.SSHException, EOFError, OSError) as error:
        undo()
        raise Unreachable(
            f"{host.name}: logged in, but it runs no command: {error or 'connection closed'}",
            code="host-no-agent",
            hint=f"a full process table, or an account without a shell: ssh {shlex.quote(host.name)} true",
        ) from None
    return ChannelLink(transport, channel, undo)


def _login(
    host: Host, settings: Settings, timeout: float, hops: tuple[str, ...], jumps: Jumps
) -> tuple[paramiko.Transport, Callable[[], None]]:
    """An authenticated transport, and how to end it with all that carries it."""
    for pause in (*PAUSES, None):
        deadline = time.monotonic() + timeout
        with contextlib.ExitStack() as undo:
            try:
                wire, words = _dial(host, settings, timeout, hops, jumps, undo)
                undo.callback(wire.close)
                transport = handshake(host.name, settings, wire, words, timeout, deadline)
            except Dropped as dropped:
                if pause is None:
                    raise dropped.trouble from None
            else:
                undo.callback(transport.close)
                undo.callback(wire.close)  # first: Transport.close() waits for a writer that a dead network holds
                transport.auth_timeout = max(_LOGIN_SECONDS, deadline - time.monotonic())
                ssh_auth.authenticate(transport, host.name, settings)
                return transport, undo.pop_all().close
        assert pause is not None
        time.sleep(pause)
    raise AssertionError("the last try has no pause behind it")


def _dial(
    host: Host, settings: Settings, timeout: float, hops: tuple[str, ...], jumps: Jumps, undo: contextlib.ExitStack
) -> tuple[Wire, Callable[[], str]]:
    """A wire to the host's sshd, and what its proxy says."""
    if hops:
        try:
            transport, let_go = jumps.hold(hops)
        except Unreachable as trouble:
            raise Unreachable(
                f"{host.name}: its jump host cannot be used: {trouble.message}", code=trouble.code, hint=trouble.hint
            ) from None
        undo.callback(let_go)
        return Wire(_through(transport, host.name, settings, hops[-1], timeout)), str
    if settings.proxy_command:
        return ssh_dial.proxied(settings.proxy_command)
    return ssh_dial.tcp(host.name, settings, timeout), str


def _through(
    transport: paramiko.Transport, name: str, settings: Settings, jump: str, timeout: float
) -> paramiko.Channel:
    target = (settings.hostname, settings.port)
    try:
        return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=timeout)
    except paramiko.ChannelException as refused:
        raise Unreachable(
            f"{name}: jump host {jump} cannot connect to {settings.where}: {refused.text.lower()}",
            code="host-unreachable",
            hint=FORWARD,
        ) from None
    except (paramiko.SSHException, EOFError, OSError):
        gone = not transport.is_active()
        raise Unreachable(
            f"{name}: the connection to jump host {jump} ended"
            if gone
            else f"{name}: jump host {jump} gets no answer from {settings.where} in {timeout:g} s",
            code="host-unreachable" if gone else "host-silent",
            hint=f"from {jump}: is the host up, and does a firewall drop its ssh port?",
        ) from None
