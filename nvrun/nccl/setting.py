"""One variable as somebody wrote it, and what lint says about it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nvrun.facts import HostFacts, RdmaPort
from nvrun.model import Finding, Frozen, Severity
from nvrun.nccl import parse

Syntax = Literal["shell", "conf", "docker", "yaml", "python", "csh"]


_PROCESS = ("environment", "host", "forwarded")
"""Places that are the environment of a process."""


class Setting(Frozen, frozen=True, kw_only=True):
    """NAME=VALUE and where it stands."""

    name: str
    value: str
    where: str
    """`environment`, `/etc/nccl.conf:3`, `train.sh:12`, `preset hopper`."""
    syntax: Syntax = "shell"
    known: bool = True
    """False where the value holds something that only running the script would tell (`$(...)`, `$X`)."""

    def line(self, value: str) -> str:
        """The line that sets this variable to `value`, in the language it was found in."""
        return {
            "shell": f"export {self.name}={shlex.quote(value)}",
            "conf": f"{self.name}={value}",
            "docker": f"ENV {self.name}={shlex.quote(value)}",
            "yaml": f'{{name: {self.name}, value: "{value}"}}',
            "python": f'os.environ["{self.name}"] = "{value}"',
            "csh": f"setenv {self.name} {shlex.quote(value)}",
        }[self.syntax]

    @property
    def removal(self) -> str:
        """How to be rid of it."""
        return f"unset {self.name}" if self.where in _PROCESS else f"remove {self.name} from {self.where}"


@dataclass(frozen=True)
class Given:
    """What the rules judge: the settings that hold, and what is known of the library and the host."""

    settings: Mapping[str, Setting]
    nccl: parse.Version = ()
    """() where it is not known which NCCL will be loaded."""
    facts: HostFacts | None = None
    shared: bool = False
    """True where one text serves several hosts: a preset, a job script."""

    def text(self, name: str) -> str | None:
        """The value; None where it is unset, empty (NCCL takes the default) or not known."""
        setting = self.settings.get(name)
        return setting.value if setting and setting.known and setting.value else None

    def number(self, name: str) -> int | None:
        """The integer NCCL reads; None where it takes the default."""
        text = self.text(name)
        return None if text is None else parse.strtoll(text)

    def before(self, release: str) -> bool:
        """True where the loaded NCCL is known to be older."""
        return bool(self.nccl) and self.nccl < parse.version(release)

    def from_(self, release: str) -> bool:
        """True where the loaded NCCL is known to be that release or newer."""
        return bool(self.nccl) and self.nccl >= parse.version(release)

    @property
    def torch(self) -> parse.Version:
        """() where it is not known."""
        return parse.version(self.facts.software.torch or "") if self.facts and self.facts.software else ()

    @property
    def active_ports(self) -> tuple[RdmaPort, ...] | None:
        """RDMA ports NCCL itself would consider (src/transport/net_ib): ACTIVE, and InfiniBand or Ethernet, which EFA
        is not. None where nobody read them."""
        if self.facts is None or self.facts.rdma is None:
            return None
        layers = ("InfiniBand", "Ethernet")
        return tuple(port for port in self.facts.rdma if port.state == "ACTIVE" and port.link_layer in layers)

    @property
    def ports(self) -> tuple[RdmaPort, ...] | None:
        """Of the active ports those that this job may open and that NCCL_IB_HCA leaves; None where nobody read them."""
        wanted = parse.device_list(self.text("NCCL_IB_HCA") or "^")
        active = self.active_ports
        return active and tuple(
            port for port in active if port.uverbs_openable is not False and wanted.takes(port.device, port.port)
        )

    @property
    def plugin(self) -> str | None:
        """The network plugin that would be loaded, and which has rules of its own; None where none is known of."""
        plugins = self.facts.software.nccl_net_plugins if self.facts and self.facts.software else ()
        return self.text("NCCL_NET_PLUGIN") or (plugins[0] if plugins else None)

    @property
    def nvswitch(self) -> bool | None:
        """True where a GPU has an NVLink to a switch; None where nobody could tell."""
        gpus = self.facts.gpus if self.facts else None
        if not gpus:
            return None
        remotes = [link.remote_type for gpu in gpus for link in gpu.nvlinks]
        if "switch" in remotes:
            return True
        unread = None in remotes or any("nvlinks" in gpu.unread for gpu in gpus)
        return None if unread else False


def found(
    setting: Setting,
    code: str,
    severity: Severity,
    message: str,
    *,
    right: str | None = None,
    remedy: str | None = None,
    expected: str = "",
    host: str | None = None,
) -> Finding:
    """A finding about one setting. `right` is the corrected value: the remedy is then the line to paste. Without it,
    and unless another remedy is given, the remedy is to be rid of the setting."""
    if right is not None:
        remedy = setting.line(right)
    return Finding(
        code=code,
        severity=severity,
        message=message,
        host=host,
        subject=setting.name,
        observed=f"{setting.name}={setting.value}",
        expected=expected if right is None or expected else f"{setting.name}={right}",
        remedy=setting.removal if remedy is None else remedy,
        evidence=(f"{setting.where}: {setting.name}={setting.value}",),
    )
