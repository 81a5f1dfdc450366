"""Traps of job scripts, judged over the hosts of a job."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

import msgspec

from nvrun.facts import HostFacts
from nvrun.hosts.slurm_traps import Seen, traps
from nvrun.job import Job
from nvrun.model import Finding


def found(job: Job, environ: Mapping[str, str], facts: Iterable[HostFacts]) -> list[Finding]:
    """What holds for the job as a whole, by this process's environment; then what its hosts show, as far as known."""
    of_job = traps(environ, job.detected, job.args, Seen(hostname=socket.gethostname()))
    told = {finding.code for finding in of_job}
    of_hosts = [
        msgspec.structs.replace(finding, host=each.host)
        for each in facts
        for finding in traps({**environ, **(each.env or {})}, job.detected, job.args, seen(each))
        if finding.code not in told
    ]
    return [*of_job, *of_hosts]


def seen(facts: HostFacts) -> Seen:
    """A host as the traps want to know it."""
    limits = facts.limits
    return Seen(
        cpus=len(facts.cpus.allowed) if facts.cpus else None,
        online=len(facts.cpus.online) if facts.cpus else None,
        gpus=_gpus(facts),
        pci_gpus=None if facts.gpus_on_pci is None else len(facts.gpus_on_pci),
        memlock_bytes=limits.memlock_bytes if limits else None,
        rdma=None if facts.rdma is None else bool(facts.rdma),
    )


def _gpus(facts: HostFacts) -> int | None:
    """GPUs a process of the job sees: NVML shows those too that CUDA_VISIBLE_DEVICES leaves out."""
    visible = (facts.env or {}).get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() and entry != "NoDevFiles"])
    return None if facts.gpus is None else len(facts.gpus)
