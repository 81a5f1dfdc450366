"""What ssh would use for a host, by `ssh -G`: that knows Include, Match and the system's file; paramiko does not."""

from __future__ import annotations

import getpass
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from nvrun.fleet.link import Unreachable
from nvrun.model import Frozen, Host


class Settings(Frozen, frozen=True, kw_only=True):
    """One host's settings, `%` and `~` already replaced."""

    hostname: str
    port: int = 22
    user: str
    family: socket.AddressFamily = socket.AF_UNSPEC
    identity_files: tuple[str, ...] = ()
    certificate_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    """A socket, `none`, or None for SSH_AUTH_SOCK."""
    known_hosts: tuple[str, ...] = ()
    """Files, the user's first: ssh adds new keys to the first one."""
    host_key_alias: str | None = None
    strict: Literal["yes", "accept-new", "no"] = "yes"
    """StrictHostKeyChecking. `ask` is `yes` here: there is nobody to ask."""
    hash_names: bool = False
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str | None = None
    control_path: str | None = None
    gssapi: bool = False

    @property
    def where(self) -> str:
        return f"{self.hostname} port {self.port}"

    @property
    def key_name(self) -> str:
        """How known_hosts calls this host."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


def read(host: Host, config: str | None, timeout: float) -> Settings:
    """The settings of one host. Raises Unreachable where ssh refuses its configuration."""
    home, user = str(Path.home()), getpass.getuser()
    program = shutil.which("ssh")
    if program is None:
        return without_ssh(host, home, user)
    done = None
    try:
        done = subprocess.run(
            arguments(program, host, config),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        said = f"no answer in {timeout:g} s"
    if done is None or done.returncode:
        said = said if done is None else " ".join(done.stderr.split())
        raise Unreachable(
            f"{host.name}: its ssh configuration cannot be used: {said}",
            code="host-ssh-config",
            hint=f"ssh{f' -F {config}' if config else ''} -G {host.name}",
        )
    return parse(done.stdout, host.name, home, user)


def arguments(program: str, host: Host, config: str | None) -> list[str]:
    """`ssh -G` for this host."""
    return [program, "-G", *common(host, config), "--", host.name]


def common(host: Host, config: str | None) -> list[str]:
    """What every call of ssh for this host begins with."""
    argv = ["-F", config] if config else []
    argv += ["-l", host.user] if host.user else []
    argv += ["-p", str(host.port)] if host.port else []
    return argv


def parse(text: str, name: str, home: str, local_user: str) -> Settings:
    """What `ssh -G` printed."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)

    def one(key: str, default: str = "") -> str:
        return found.get(key, [default])[0]

    def optional(key: str) -> str | None:
        value = one(key, "none")
        return None if value == "none" else value

    tokens = {
        "%": "%", "n": name, "h": one("hostname", name), "p": one("port", "22"), "r": one("user", local_user),
        "u": local_user, "d": home, "L": socket.gethostname().partition(".")[0], "l": socket.gethostname(),
        "k": one("hostkeyalias", name),
    }  # fmt: skip

    def path(value: str) -> str:
        return expand(value, tokens, home)

    strict = one("stricthostkeychecking", "ask")
    jump = optional("proxyjump")
    command = optional("proxycommand")
    known = [path(word) for kind in ("user", "global") for word in one(f"{kind}knownhostsfile").split()]
    agent = one("identityagent", "SSH_AUTH_SOCK")
    control = optional("controlpath")
    return Settings(
        hostname=tokens["h"],
        port=int(tokens["p"]),
        user=tokens["r"],
        family={"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(one("addressfamily"), socket.AF_UNSPEC),
        identity_files=tuple(path(value) for value in found.get("identityfile", []) if value != "none"),
        certificate_files=tuple(path(value) for value in found.get("certificatefile", []) if value != "none"),
        identities_only=one("identitiesonly") == "yes",
        identity_agent=None if agent == "SSH_AUTH_SOCK" else path(agent),
        known_hosts=tuple(file for file in known if file != "none"),
        host_key_alias=optional("hostkeyalias"),
        strict="no" if strict in ("no", "off", "false") else "accept-new" if strict == "accept-new" else "yes",
        hash_names=one("hashknownhosts") == "yes",
        proxy_jump=tuple(jump.split(",")) if jump else (),
        proxy_command=expand(command, tokens, None) if command else None,
        control_path=path(control) if control else None,
        gssapi=one("gssapiauthentication") == "yes",
    )


def without_ssh(host: Host, home: str, user: str) -> Settings:
    """ssh's own defaults, where there is no ssh to ask."""
    return Settings(
        hostname=host.name,
        port=host.port or 22,
        user=host.user or user,
        identity_files=tuple(f"{home}/.ssh/{name}" for name in ("id_rsa", "id_ecdsa", "id_ed25519")),
        known_hosts=(f"{home}/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"),
    )


def expand(text: str, tokens: Mapping[str, str], home: str | None) -> str:
    """Replaces ssh's `%` tokens (an unknown one stays) and, where `home` is given, a leading `~/`."""
    if home is not None and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def jump_host(text: str) -> Host:
    """One hop of ProxyJump: `[user@]host[:port]` or `ssh://[user@]host[:port]`; an IPv6 address stands in brackets."""
    found = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(\[[^\]]+\]|[^:]+)(?::(\d+))?/?", text)
    if not found:
        raise Unreachable(f"ProxyJump {text}: expected [user@]host[:port]", code="host-ssh-config")
    user, name, port = found.groups()
    return Host(name=name.strip("[]"), user=user, port=int(port) if port else None)
