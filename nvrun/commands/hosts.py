"""`nvrun hosts`: which hosts a job would have, in which mode, and what that was told from."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import job
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.hosts.nodeset import fold


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    found = job.read(invocation, environ)
    detected = job.detected(environ)
    lines = [f"mode     {found.mode.kind}: {found.mode.why}", f"hosts    from {found.hosts_from}"]
    numbered = [*map(str, range(len(found.hosts))), *["spare"] * len(found.spares)]
    pairs = zip((*found.hosts, *found.spares), (*found.kinds, *found.spare_kinds), strict=True)
    for number, (host, kind) in zip(numbered, pairs, strict=True):
        details = [f"{host.slots} rank{'s'[: host.slots > 1]}"] if host.slots else []
        details += [f"user {host.user}"] if host.user else []
        details += [f"port {host.port}"] if host.port else []
        lines.append(f"  {number:<6} {host.name} by {kind}" + (f" ({', '.join(details)})" if details else ""))
    if found.not_listed:
        lines.append(f"excluded and no host anyway: {fold(found.not_listed)}")
    lines.append(f"inside   {detected.kind}")
    lines += [f"         {line}" for line in detected.why]
    return Said("\n".join(lines) + "\n")
