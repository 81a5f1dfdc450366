"""ssh by paramiko: one connection and one channel a host."""

from __future__ import annotations

import contextlib
import getpass
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paramiko

from nvrun.fleet.link import Unreachable
from nvrun.model import Host

_PAUSES = (0.5, 1.5)
"""Seconds before the second and the third try, where sshd refused or dropped us before its banner."""
_KEPT = 16384


class PromptSocket:
    """A socket without the two waits of delayed acknowledgement: 42 ms at authentication, 41 ms at the channel's
    opening (measured on a loopback sshd)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def recv(self, size: int) -> bytes:
        data = self._sock.recv(size)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class ChannelLink:
    """A command's channel over a paramiko transport that is this link's own."""

    def __init__(self, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        self._transport, self._channel = transport, channel
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
        self._channel.sendall(data)

    def close_write(self) -> None:
        self._channel.shutdown_write()

    def close(self) -> None:
        # The socket first: Transport.close() waits for a writer that a silent network may hold for ever.
        with contextlib.suppress(OSError):
            self._transport.sock.shutdown(socket.SHUT_RDWR)
        self._transport.close()

    def last_words(self) -> str:
        deadline = time.monotonic() + 1.0
        while not self._channel.exit_status_ready() and time.monotonic() < deadline and self._transport.is_active():
            time.sleep(0.01)
        self._note()
        ended = f"(ended with {self._channel.recv_exit_status()})" if self._channel.exit_status_ready() else ""
        return f"{self._said.decode(errors='replace').strip()} {ended}".strip()

    def _note(self) -> None:
        while self._channel.recv_stderr_ready():
            self._said += self._channel.recv_stderr(4096)
            del self._said[:-_KEPT]


def connect(host: Host, command: Sequence[str], *, timeout: float, config: str | None = None) -> ChannelLink:
    """Starts `command` on `host`. Raises Unreachable with the reason in words and what to do about it."""
    settings = _settings(host, config)
    with contextlib.ExitStack() as undo:
        transport = _transport(host, settings, timeout, config)
        undo.callback(transport.close)
        _authenticate(transport, host, settings)
        channel = transport.open_session(timeout=timeout)
        channel.settimeout(1.0)
        channel.exec_command("exec " + shlex.join(command))
        undo.pop_all()
    return ChannelLink(transport, channel)


def _settings(host: Host, config: str | None) -> Mapping[str, list[str]]:
    """What ssh itself would use, by `ssh -G`: that knows Include, Match and the system's file; paramiko does not."""
    program = shutil.which("ssh")
    if program is None:
        home = str(Path.home() / ".ssh")
        names = ("id_ed25519", "id_ecdsa", "id_rsa")
        return {
            "hostname": [host.name],
            "user": [host.user or getpass.getuser()],
            "port": [str(host.port or 22)],
            "identityfile": [f"{home}/{name}" for name in names],
            "userknownhostsfile": [f"{home}/known_hosts"],
            "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts"],
        }
    argv = [program, "-G"]
    argv += ["-F", config] if config else []
    argv += ["-l", host.user] if host.user else []
    argv += ["-p", str(host.port)] if host.port else []
    done = subprocess.run([*argv, "--", host.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unreachable(f"ssh -G {host.name}: {done.stderr.strip()}", code="host-ssh-config")
    settings: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        values = value.split() if key.endswith("hostsfile") else [value]
        settings.setdefault(key, []).extend(values)
    return settings


def _transport(host: Host, settings: Mapping[str, list[str]], timeout: float, config: str | None) -> paramiko.Transport:
    """An open transport whose host key is known."""
    for pause in (*_PAUSES, None):
        try:
            sock = _socket(host, settings, timeout, config)
            prompt: Any = PromptSocket(sock) if isinstance(sock, socket.socket) else sock
            transport = paramiko.Transport(prompt)
            transport.banner_timeout = timeout
            transport.daemon = True
            break
        except TimeoutError:
            raise Unreachable(
                f"{host.name}: no answer from {_where(settings)} in {timeout:g} s",
                code="host-silent",
                hint="is the host up, and does a firewall drop its ssh port? (--connect-timeout to wait longer)",
            ) from None
        except ConnectionRefusedError:
            trouble = Unreachable(
                f"{host.name}: {_where(settings)} refused the connection",
                code="host-refused",
                hint="is sshd running there, and is this its port? (systemctl status ssh)",
            )
        except OSError as error:
            raise Unreachable(
                f"{host.name}: cannot reach {_where(settings)}: {error.strerror or error}", code="host-unreachable"
            ) from None
        if pause is None:
            raise trouble
        time.sleep(pause)
    known = _known_keys(settings, host)
    options = transport.get_security_options()
    if known:  # ask for a key that can be compared, as ssh does
        first = [name for name in options.key_types if _kind(name) in {key.get_name() for key in known}]
        options.key_types = tuple(first) + tuple(name for name in options.key_types if name not in first)
    try:
        transport.start_client(timeout=timeout)
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport.close()
        raise Unreachable(
            f"{host.name}: {_where(settings)} accepted the connection but did not speak ssh in {timeout:g} s: "
            f"{error or 'closed by the host'}",
            code="host-ssh-hung",
            hint="sshd hangs, is overloaded (MaxStartups), or something else listens on that port",
        ) from None
    key = transport.get_remote_server_key()
    if key not in known:
        transport.close()
        raise _key_trouble(host, settings, key, bool(known))
    return transport


def _kind(algorithm: str) -> str:
    """The type of key behind a signature algorithm: rsa-sha2-256 and rsa-sha2-512 both use ssh-rsa keys."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _socket(host: Host, settings: Mapping[str, list[str]], timeout: float, config: str | None) -> Any:
    jump, proxy = settings.get("proxyjump"), settings.get("proxycommand")
    if jump and jump[0] != "none":
        hops = jump[0].split(",")
        argv = ["ssh", *(["-F", config] if config else []), "-o", "BatchMode=yes",
                *(["-J", ",".join(hops[:-1])] if hops[1:] else []),
                "-W", f"[{settings['hostname'][0]}]:{settings['port'][0]}", hops[-1]]  # fmt: skip
        return paramiko.ProxyCommand(shlex.join(argv))
    if proxy and proxy[0] != "none":
        return paramiko.ProxyCommand(proxy[0])
    return socket.create_connection((settings["hostname"][0], int(settings["port"][0])), timeout)


def _where(settings: Mapping[str, list[str]]) -> str:
    return f"{settings['hostname'][0]} port {settings['port'][0]}"


def _known_keys(settings: Mapping[str, list[str]], host: Host) -> list[paramiko.PKey]:
    """Keys of this host from all known_hosts files, read line by line: one line that paramiko cannot read
    (@cert-authority, @revoked) must not cost all the others."""
    address, port = settings.get("hostkeyalias", settings["hostname"])[0], settings["port"][0]
    wanted = address if port == "22" or "hostkeyalias" in settings else f"[{address}]:{port}"
    keys: list[paramiko.PKey] = []
    revoked: list[paramiko.PKey] = []
    for path in settings.get("userknownhostsfile", []) + settings.get("globalknownhostsfile", []):
        try:
            lines = Path(path).expanduser().read_text(errors="replace").splitlines()
        except OSError:
            continue  # ssh does not mind a missing file either
        for line in lines:
            marker, text = line.split(None, 1) if line.startswith("@") else ("", line)
            if marker not in ("", "@revoked"):
                continue
            try:
                entry = paramiko.hostkeys.HostKeyEntry.from_line(text)
            except paramiko.SSHException:
                continue
            if entry is None or entry.key is None:
                continue
            table = paramiko.HostKeys()
            table._entries.append(entry)  # type: ignore[attr-defined]
            if table.lookup(wanted):
                (revoked if marker else keys).append(entry.key)
    return [key for key in keys if key not in revoked]


def _key_trouble(host: Host, settings: Mapping[str, list[str]], key: paramiko.PKey, known: bool) -> Unreachable:
    address, port = settings["hostname"][0], settings["port"][0]
    name = address if port == "22" else f"[{address}]:{port}"
    shown = f"{key.get_name()} {key.fingerprint}"
    if known:
        return Unreachable(
            f"{host.name}: its host key is not the one in known_hosts (it shows {shown})",
            code="host-key-changed",
            hint=f"if the host was reinstalled: ssh-keygen -R {shlex.quote(name)} && ssh {shlex.quote(host.name)} true",
        )
    return Unreachable(
        f"{host.name}: its host key is not known here ({shown})",
        code="host-key-unknown",
        hint=f"compare the fingerprint, then: ssh-keyscan -p {port} {shlex.quote(address)} >> ~/.ssh/known_hosts",
    )


def _authenticate(transport: paramiko.Transport, host: Host, settings: Mapping[str, list[str]]) -> None:
    user = settings["user"][0]
    tried: list[str] = []
    for label, key in _keys(settings):
        tried.append(label)
        if key is None:
            continue
        try:
            transport.auth_publickey(user, key)
        except paramiko.AuthenticationException:
            continue
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise Unreachable(
                f"{host.name}: the connection broke at authentication: {error}", code="host-auth"
            ) from None
        if transport.is_authenticated():
            return
    raise Unreachable(
        f"{host.name}: none of the keys tried is accepted for user {user} ({', '.join(tried) or 'no key found'})",
        code="host-auth",
        hint=f"ssh-copy-id {shlex.quote(user)}@{shlex.quote(host.name)}, or load the key: ssh-add; "
        "for GSSAPI, certificates or security keys: --ssh openssh",
    )


def _keys(settings: Mapping[str, list[str]]) -> Any:
    """(label, key): the agent's first, then the files', those that need a passphrase left out."""
    if settings.get("identitiesonly", ["no"])[0] != "yes":
        for key in paramiko.Agent().get_keys():
            yield f"agent {key.get_name()}", key
    for path in settings.get("identityfile", []):
        file = Path(path).expanduser()
        try:
            yield str(file), paramiko.PKey.from_path(file)
        except FileNotFoundError:
            continue
        except (paramiko.SSHException, OSError, TypeError, ValueError) as error:
            yield f"{file} (unusable: {error})", None
