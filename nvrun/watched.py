"""What the monitors of a run's hosts wrote, as it lies in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvrun import monitor
from nvrun.checks.in_run import in_run
from nvrun.model import Finding, Severity
from nvrun.monitor import HostSamples
from nvrun.plan import Plan
from nvrun.rundir import file_name

MOST_HOSTS = 128
"""At the end of a run samples of more hosts than this are not gone through: `nvrun report` does that."""


def samples_of(folder: Path, plan: Plan) -> dict[str, HostSamples]:
    """Host -> its samples; hosts without any are absent."""
    found = {host.host.name: monitor.read(folder / "logs" / file_name(host.host.name)) for host in plan.hosts}
    return {host: samples for host, samples in found.items() if samples is not None}


def used_gpus(plan: Plan) -> Mapping[str, frozenset[int]] | None:
    """Host -> NVML indices of the job's GPUs there; None where no rank is known to have one."""
    used = {
        host.host.name: frozenset(
            rank.binding.gpu_index for rank in host.ranks if rank.binding and rank.binding.gpu_index is not None
        )
        for host in plan.hosts
    }
    return used if any(used.values()) else None


def watched(folder: Path, plan: Plan | None) -> tuple[Finding, ...]:
    """What the user should know at the end of a run: warnings and worse."""
    if plan is None or len(plan.hosts) > MOST_HOSTS:
        return ()
    found = in_run(samples_of(folder, plan), used_gpus(plan))
    return tuple(finding for finding in found if finding.severity >= Severity.WARNING)
