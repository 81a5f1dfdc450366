"""Which hosts failed while a job ran: what was read of them before the launch, and again after the job's end.

Pure. A host counts as failed by a finding of `HOST_FAILED` that was not there before the launch: hardware and its
driver, nothing that a program can bring about, so that a failing script is never taken for a failing host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from nvrun.checks import gpu_health
from nvrun.checks.compare import groups_of, listed
from nvrun.checks.gpu import label
from nvrun.checks.grown import changed
from nvrun.checks.job import Job, complete
from nvrun.checks.run import run
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.xid import SERIOUS, XIDS, read_xid
from nvrun.facts import Gpu, HostFacts
from nvrun.model import Finding, RankEnd, Severity, worst_first

HOST_FAILED: Mapping[str, str] = {
    "gpu-lost": "Xid 79, or a driver that gave it up; also in a rank's own words",
    "gpu-off-bus": "the same, where NVML's list was short before",
    "gpu-driver-fails": "every CUDA call fails or hangs",
    "gpu-xid": "of a class that asks for service, a reboot or a reset, or of NVLink; nvrun/diagnose/xid.py",
    "gpu-ecc-errors": "uncorrectable: the program was ended, or its results are wrong",
    "gpu-remap-failed": "NVIDIA's criterion for a replacement",
    "gpu-recovery-needed": "the driver's own verdict",
    "nvlink-down": "collectives fail or crawl",
    "fabric-not-ready": "CUDA error 802",
    "nvswitch-error": "an NVSwitch's own word, fatal",
    "fabric-unhealthy": "routes of the NVSwitches fail",
    "rdma-port-down": "`port error`, or a queue pair that ends with error 12",
    "interface-down": "sockets time out",
    "gpu-ecc": "a rank's own words: CUDA's uncorrectable ECC error",
    "nvlink-error": "a rank's own words: CUDA's uncorrectable NVLink error",
}
"""Codes by which a host is bad, and why; of warnings and notes only `gpu-xid`, since a driver that asks for no recovery
has ended the program all the same."""


def failed(
    before: Mapping[str, HostFacts],
    after: Mapping[str, HostFacts],
    job: Job,
    known: Collection[Finding] = (),
    ends: Iterable[RankEnd] = (),
) -> dict[str, Finding]:
    """Host -> the worst that shows that it failed. `known`: what was found before the launch; `ends`: of all ranks."""
    job = complete(job, before, groups_of(before))
    told = {(each.code, each.host, each.subject, each.message) for each in known}
    found = [
        *(each for host, now in after.items() if host in before for each in _changed(before[host], now, job)),
        *run(after, job).findings,
        *_said(ends),
    ]
    return {
        finding.host: finding
        for finding in reversed(worst_first(found))
        if finding.host
        and _counts(finding)
        and (finding.code, finding.host, finding.subject, finding.message) not in told
    }


def _counts(finding: Finding) -> bool:
    return finding.code in HOST_FAILED and (finding.severity >= Severity.ERROR or finding.code == gpu_health.XID.code)


def _changed(before: HostFacts, after: HostFacts, job: Job) -> Iterator[Finding]:
    """What no look at `after` alone can show."""
    host = before.host
    planned = job.gpus_of(host, before.gpus or ())
    if after.gpus is not None:
        there = {gpu.uuid for gpu in after.gpus}
        if lost := [label(gpu) for gpu in planned if gpu.uuid not in there]:
            yield changed("gpu-lost", host, f"{listed(lost)} of the job", "present", "gone")
    yield from _xids(before, after, planned)
    if before.network and after.network and (interface := job.interface_of(host, before.network)) and interface.up:
        now = job.interface_of(host, after.network)
        if now is None or not now.up:
            yield changed("interface-down", host, interface.name, "up", "gone" if now is None else "down")


def _xids(before: HostFacts, after: HostFacts, planned: Iterable[Gpu]) -> Iterator[Finding]:
    """Those that came meanwhile; on a GPU that fell off the bus they are all that is left of it."""
    gpus = {gpu.pci: gpu for gpu in planned}
    old = Counter(xid.text for xid in before.xids or ())
    for xid in after.xids or ():
        old[xid.text] -= 1
        event = read_xid(xid.text)
        if old[xid.text] >= 0 or xid.pci not in gpus or event is None or event.stage is Stage.NOTE:
            continue
        if xid.code in XIDS and event.xid.action in SERIOUS:
            found = gpus[xid.pci]
            yield gpu_health.XID.found(
                f"{label(found)}: Xid {xid.code}: {event.xid.meaning}",
                host=before.host,
                subject=label(found),
                remedy=event.xid.action.value.format(gpu=found.index),
                evidence=(xid.text,),
            )


def _said(ends: Iterable[RankEnd]) -> Iterator[Finding]:
    """What ranks that failed by themselves say of their own GPUs."""
    from nvrun.diagnose.judge import diagnose  # all its rules come with it, and every start imports the checks
    from nvrun.diagnose.scan import Source

    for end in ends:
        if end.failed:
            yield from diagnose([Source(f"rank {end.rank}", end.tail, host=end.host, rank=end.rank)])
