"""The ssh program as transport (`--ssh openssh`): with the user's own configuration, agent, ControlPath and all."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from nvrun.fleet import ssh_settings, ssh_words
from nvrun.fleet.link import ProcessLink, Unreachable
from nvrun.fleet.start import quoted
from nvrun.model import Host

PAUSES = (0.5, 1.5)
"""Seconds before the second and the third try, where sshd refused or dropped us before its banner."""
_LOGIN_SECONDS = 3.0
"""What the login may take beyond the connect timeout, which ssh itself applies up to the key exchange."""

_OPTIONS = (
    "BatchMode=yes",  # there is nobody to ask
    "LogLevel=VERBOSE",  # says when it is authenticated; and QUIET would hide the reason of a failure
    "ServerAliveInterval=0",  # silence is judged by nvrun's own heartbeat and --lost-after
    "ClearAllForwardings=yes",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
)


def argv(host: Host, command: Sequence[str], *, timeout: float, config: str | None = None) -> list[str]:
    """The call of ssh. `timeout` in seconds."""
    options = [*_OPTIONS, f"ConnectTimeout={math.ceil(timeout)}"]
    flags = [word for option in options for word in ("-o", option)]
    return ["ssh", "-T", *flags, *ssh_settings.common(host, config), "--", host.name, "exec " + quoted(command)]


def connect(
    host: Host, command: Sequence[str], *, timeout: float, environment: Mapping[str, str], config: str | None = None
) -> ProcessLink:
    """Starts `command` on `host`; returns when ssh is let in. Raises Unreachable with the reason."""
    call = argv(host, command, timeout=timeout, config=config)
    for pause in (*PAUSES, None):
        link = ProcessLink(call, environment)
        deadline = time.monotonic() + math.ceil(timeout) + _LOGIN_SECONDS
        while time.monotonic() < deadline:
            waiting = link.waiting(0.05)
            if waiting or "Authenticated to " in link.said():
                return link
            if waiting == 0:
                break  # its output ended before it began
        else:
            link.close()
            raise Unreachable(
                f"{host.name}: connected, but not let in within {timeout:g} s",
                code="host-ssh-hung",
                hint=f"sshd there waits, perhaps for a directory service: ssh -v {host.name} true",
            )
        said = link.last_words()
        link.close()
        found = ssh_words.explain(said, host.name, f"{host.user}@{host.name}" if host.user else None)
        if found is None:
            raise Unreachable(f"{host.name}: ssh failed: {said}", code="host-no-agent", hint=f"ssh {host.name} true")
        if found.again and pause is not None:
            time.sleep(pause)
            continue
        raise Unreachable(f"{host.name}: {found.cause}", code=found.code, hint=found.hint)
    raise AssertionError("the last try has no pause behind it")
