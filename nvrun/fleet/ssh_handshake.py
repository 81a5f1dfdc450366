"""Banner, key exchange and host key of one ssh connection, as the user's own configuration of ssh has it."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paramiko

from nvrun.fleet import known_hosts
from nvrun.fleet.link import Unreachable
from nvrun.fleet.ssh_dial import Dropped, Wire
from nvrun.fleet.ssh_settings import Settings

_adding = threading.Lock()


def handshake(
    name: str, settings: Settings, wire: Wire, words: Callable[[], str], timeout: float, deadline: float
) -> paramiko.Transport:
    """Banner, key exchange, host key. Raises Unreachable, or Dropped where the other side hung up before its banner."""
    transport = paramiko.Transport(wire)  # type: ignore[arg-type]  # anything with a socket's methods will do
    left = max(0.5, deadline - time.monotonic())
    transport.banner_timeout = left
    transport.daemon = True
    known = _known(settings)
    options = transport.get_security_options()
    kinds = {entry.kind for entry in known if not entry.marker}
    if kinds:  # ask for a key that can be compared, as ssh does
        first = [algorithm for algorithm in options.key_types if _kind(algorithm) in kinds]
        options.key_types = (*first, *(each for each in options.key_types if each not in first))
    try:
        transport.start_client(timeout=left)
        if transport.get_exception() or not transport.is_active() or time.monotonic() >= deadline:
            raise paramiko.SSHException("no answer in time")
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        said = words()
        transport.close()
        raise _no_handshake(name, settings, wire, said, timeout, error) from None
    judgement = known_hosts.judge(known, key.asbytes())
    if not _accepted(settings, judgement, key):
        transport.close()
        raise _key_trouble(name, settings, judgement, key)
    return transport


def _no_handshake(name: str, settings: Settings, wire: Wire, said: str, timeout: float, error: Exception) -> Exception:
    first = wire.first.decode(errors="replace")
    began = any(line.startswith("SSH-") for line in first.splitlines())
    ended = wire.ended or isinstance(error, EOFError | ConnectionError)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"{name}: {settings.where}: {error}", code="host-ssh-protocol", hint="--ssh openssh")
    if ended and not began and settings.proxy_command:
        return Unreachable(
            f"{name}: its ProxyCommand ended: {said or first.strip() or 'without a word'}",
            code="host-unreachable",
            hint=settings.proxy_command,
        )
    if ended and not began and (not first or "MaxStartups" in first or "Not allowed at this time" in first):
        return Dropped(
            Unreachable(
                f"{name}: {settings.where} dropped the connection before its banner {first.strip()}".rstrip(),
                code="host-ssh-hung",
                hint="too many connections at once (MaxStartups), or a ban (PerSourcePenalties, fail2ban)",
            )
        )
    if first and not began:
        return Unreachable(
            f"{name}: what listens at {settings.where} does not speak ssh: {first.splitlines()[0][:80]!r}",
            code="host-ssh-protocol",
            hint="is it the right port?",
        )
    what = "does not finish the key exchange" if began else "does not speak"
    return Unreachable(
        f"{name}: {settings.where} accepted the connection, but sshd {what} in {timeout:g} s"
        if not ended
        else f"{name}: {settings.where} ended the connection at the key exchange: {error}",
        code="host-ssh-hung",
        hint="sshd hangs or the host is overloaded: look at its console; or an MTU black hole on the way"
        if began
        else "sshd hangs or the host is overloaded: look at its console",
    )


def _known(settings: Settings) -> list[known_hosts.Entry]:
    found: list[known_hosts.Entry] = []
    for path in settings.known_hosts:
        with contextlib.suppress(OSError):  # ssh does not mind a missing file either
            found += known_hosts.entries(Path(path).read_text(errors="replace"), settings.key_name)
    return found


def _accepted(settings: Settings, judgement: known_hosts.Judgement, key: paramiko.PKey) -> bool:
    """As ssh: StrictHostKeyChecking accept-new or no of the user's own configuration takes an unknown key and adds it
    to the first known_hosts file; `no` goes on with a changed one. A revoked key is never taken."""
    if judgement == "known":
        return True
    if settings.strict == "yes" or judgement == "revoked" or (judgement == "changed" and settings.strict != "no"):
        return False
    if judgement != "changed" and settings.known_hosts[:1] not in ((), ("/dev/null",)):
        salt = os.urandom(20) if settings.hash_names else None
        line = known_hosts.new_line(settings.key_name, key.get_name(), key.asbytes(), salt)
        with _adding, contextlib.suppress(OSError), Path(settings.known_hosts[0]).open("a") as file:
            file.write(line)
    return True


def _kind(algorithm: str) -> str:
    """The type of key behind a signature algorithm: rsa-sha2-256 and rsa-sha2-512 both use ssh-rsa keys."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _key_trouble(name: str, settings: Settings, judgement: known_hosts.Judgement, key: paramiko.PKey) -> Unreachable:
    shown = f"{key.get_name()} {key.fingerprint}"
    there = shlex.quote(settings.key_name)
    again = f"ssh {shlex.quote(name)} true"
    if judgement == "revoked":
        cause, remedy = f"its host key is marked as revoked ({shown})", "ask whoever runs the host for its new key"
    elif judgement == "changed":
        cause = f"its host key is not the one in known_hosts (it shows {shown})"
        remedy = f"if the host was reinstalled: ssh-keygen -R {there} && {again}"
    elif judgement == "authority":
        cause, remedy = "its host key is vouched for by a certificate, which paramiko cannot check", "--ssh openssh"
    else:
        cause = f"its host key is not known here ({shown})"
        scan = f"ssh-keyscan -p {settings.port} {shlex.quote(settings.hostname)} >> ~/.ssh/known_hosts"
        remedy = f"compare the fingerprint, then: {again if settings.proxy_jump or settings.proxy_command else scan}"
    code = "host-key-unknown" if judgement in ("unknown", "authority") else "host-key-changed"
    return Unreachable(f"{name}: {cause}", code=code, hint=remedy)
