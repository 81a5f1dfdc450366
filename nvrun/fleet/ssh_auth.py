"""Login by public key: the agent's keys and those of files, in ssh's own order."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH

from nvrun.fleet.link import Unreachable
from nvrun.fleet.ssh_settings import Settings

_AGENT_SECONDS = 5.0
"""An agent that waits for somebody to touch a key or confirm must not hold the launch for ever."""


class Candidate:
    """A key to try, or one that cannot be used, with what to do about it."""

    def __init__(self, label: str, key: paramiko.PKey | None, remedy: str = "") -> None:
        self.label, self.key, self.remedy = label, key, remedy


class _Agent(AgentSSH):
    """The ssh agent behind a socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(_AGENT_SECONDS)
        self._sock.connect(path)
        self._connect(self._sock)  # type: ignore[attr-defined]  # the stubs leave it out

    def close(self) -> None:
        self._sock.close()


def authenticate(transport: paramiko.Transport, name: str, settings: Settings) -> None:
    """The user is let in. Raises Unreachable."""
    tried: list[Candidate] = []
    takes: list[str] = []
    with contextlib.ExitStack() as stack:
        for candidate in _candidates(settings, stack):
            tried.append(candidate)
            if candidate.key is None:
                continue
            try:
                more = transport.auth_publickey(settings.user, candidate.key)
            except paramiko.BadAuthenticationType as refused:
                takes = list(refused.allowed_types)
                break
            except (paramiko.AuthenticationException, paramiko.SSHException, EOFError, OSError, ValueError) as error:
                if not transport.is_active():
                    raise _ended(name, settings, tried) from None
                if "timeout" in str(error).lower():
                    raise _stalled(name) from None
                if not isinstance(error, paramiko.AuthenticationException):
                    candidate.remedy = f"{candidate.label} cannot be used ({error}): --ssh openssh"
                continue
            if transport.is_authenticated():
                return
            takes = list(more)  # the key is right, and not enough
            break
    takes = takes or _ways(transport, settings.user)
    raise Unreachable(
        f"{name}: {_cause(settings, tried, takes)}", code="host-auth", hint=_remedy(name, settings, tried, takes)
    )


def _ways(transport: paramiko.Transport, user: str) -> list[str]:
    """The ways to log in that sshd names when nothing is offered."""
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as refused:
        return list(refused.allowed_types)
    except (paramiko.SSHException, EOFError, OSError):
        return []
    return []


def _stalled(name: str) -> Unreachable:
    return Unreachable(
        f"{name}: connected, but sshd does not answer the login",
        code="host-ssh-hung",
        hint=f"it waits, perhaps for a directory service: ssh -v {shlex.quote(name)} true",
    )


def _ended(name: str, settings: Settings, tried: list[Candidate]) -> Unreachable:
    count = sum(candidate.key is not None for candidate in tried)
    if count > 4:  # sshd's MaxAuthTries is 6, and every key is one
        return Unreachable(
            f"{name}: {settings.where} ended the connection after {count} keys",
            code="host-auth",
            hint="too many before the right one: IdentitiesOnly yes and IdentityFile for this host in ~/.ssh/config",
        )
    return Unreachable(
        f"{name}: {settings.where} ended the connection at login",
        code="host-auth",
        hint="its log says why: journalctl -u ssh; account locked, no home folder, AllowUsers?",
    )


def _cause(settings: Settings, tried: list[Candidate], takes: list[str]) -> str:
    labels = ", ".join(candidate.label for candidate in tried) or "no key found"
    if takes and "publickey" not in takes:
        return f"user {settings.user} is let in only by {' or '.join(takes)}, not by a key alone"
    return f"none of the keys tried is accepted for user {settings.user} ({labels})"


def _remedy(name: str, settings: Settings, tried: list[Candidate], takes: list[str]) -> str:
    """The nearest way in: a key that only lacks its passphrase, a way that the ssh program knows, a new key."""
    own = next((candidate.remedy for candidate in tried if candidate.remedy), "")
    if settings.control_path and Path(settings.control_path).exists():
        return f"--ssh openssh uses the connection that is open at {settings.control_path} (ControlPath)"
    if own:
        return own
    if settings.gssapi and any(way.startswith("gssapi") for way in takes):
        return "--ssh openssh logs in by Kerberos (GSSAPIAuthentication is on for this host)"
    if takes and "publickey" not in takes:
        return "--ssh openssh, with a connection opened before: ssh -fNM -o ControlPath=PATH"
    return f"ssh-copy-id {shlex.quote(f'{settings.user}@{name}')}, or load the key: ssh-add"


def _candidates(settings: Settings, stack: contextlib.ExitStack) -> Iterator[Candidate]:
    """Keys of the agent that are configured, the agent's others (unless IdentitiesOnly), then files."""
    loaded = list(_agent_keys(settings, stack))
    configured = {blob for path in settings.identity_files if (blob := _public(path))}
    named = [key for key in loaded if key.blob in configured]
    others = [] if settings.identities_only else [key for key in loaded if key.blob not in configured]
    for key in (*named, *others):
        security = key.get_name().startswith("sk-")
        remedy = "the agent's security key: --ssh openssh" if security else ""
        yield Candidate(f"agent: {key.comment or key.get_name()}", key, remedy)
    held = {key.blob for key in loaded}
    for path in settings.identity_files:
        if _public(path) not in held:
            yield from _from_file(path, settings)


def _from_file(path: str, settings: Settings) -> Iterator[Candidate]:
    try:
        key = paramiko.PKey.from_path(path)  # with its PATH-cert.pub, where there is one
        for certificate in settings.certificate_files:
            with contextlib.suppress(OSError, ValueError, paramiko.SSHException):
                key.load_certificate(certificate)
    except FileNotFoundError:
        return
    except paramiko.PasswordRequiredException:
        yield _locked(path)
    except TypeError:  # cryptography's own word for a key whose passphrase is missing
        yield _locked(path)
    except (paramiko.SSHException, OSError, ValueError) as error:
        if Path(path).name.endswith("_sk") or (_public(path) or b"")[4:7] == b"sk-":
            yield Candidate(f"{path}: a security key", None, f"{path} is a security key: --ssh openssh")
        else:
            yield Candidate(f"{path}: unusable ({error})", None)
    else:
        yield Candidate(path, key)


def _locked(path: str) -> Candidate:
    return Candidate(f"{path}: locked by a passphrase", None, f"ssh-add {shlex.quote(path)}")


def _agent_keys(settings: Settings, stack: contextlib.ExitStack) -> Iterator[paramiko.AgentKey]:
    path = settings.identity_agent or os.environ.get("SSH_AUTH_SOCK", "")
    if path.startswith("$"):
        path = os.environ.get(path[1:].strip("{}"), "")
    if not path or path == "none":
        return
    with contextlib.suppress(OSError, paramiko.SSHException):  # ssh, too, goes on without its agent
        agent = _Agent(path)
        stack.callback(agent.close)
        yield from agent.get_keys()


def _public(path: str) -> bytes | None:
    """The public key beside a private one."""
    import base64

    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(Path(f"{path}.pub").read_text(errors="replace").split()[1])
    return None
