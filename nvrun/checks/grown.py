"""What is no longer on a host as before the job: counters that grew, links, addresses and GPUs that are gone. Pure.

Counters that a host does not show are not judged. A counter that became smaller was reset, and is not judged either.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvrun.facts import Filesystem, Gpu, HostFacts, Interface, RdmaPort
from nvrun.meanings import means
from nvrun.model import Finding, Severity

LOOKED_AT = ("gpus", "network", "rdma", "filesystems", "xids")
"""Sections of the facts that are compared."""
FULL_BYTES = 16 << 20
"""A file system with less room than this has none for a log or a checkpoint."""
PORT_ERRORS = {
    "symbol_error": "bit errors on the wire",
    "link_error_recovery": "the link had to recover",
    "link_downed": "the link went down",
    "port_rcv_errors": "broken packets came in",
    "local_link_integrity_errors": "bit errors on the wire",
    "excessive_buffer_overrun_errors": "flow control failed",
    "packet_seq_err": "packets were lost or came out of order",
    "local_ack_timeout_err": "the other side did not acknowledge",
    "rnr_nak_retry_err": "the receiver was not ready",
}
"""Counters of an RDMA port that stand still on a healthy one. Discards, waits and congestion notices grow under load
on a healthy network as well, and are left out."""


for _code, _summary, _remedy in (
    ("gpu-lost", "a GPU that was there before the job is gone", "dmesg for Xid 79; reset or power-cycle the host"),
    (
        "ecc-uncorrected-grew",
        "a GPU's memory had an error that could not be corrected",
        "nvidia-smi -q -d ECC; reset it",
    ),
    (
        "nvlink-errors-grew",
        "an NVLink had errors meanwhile",
        "nvidia-smi nvlink -e; have the GPU or its board looked at",
    ),
    ("nvlink-down", "an NVLink is down that was up", "nvidia-smi nvlink --status; reset the GPU"),
    ("port-errors-grew", "an RDMA port had errors meanwhile", "cable, optics or switch port"),
    ("port-down", "an RDMA port is down that was up", "cable, optics or switch port; ibstat"),
    ("interface-errors-grew", "a network interface had errors meanwhile", "ethtool -S NAME"),
    ("interface-flapped", "a network interface lost its link meanwhile", "ethtool NAME; cable or switch port"),
    (
        "gpus-unreadable",
        "the GPU driver answered before the job, and does not any more",
        "dmesg -T | grep -iE 'xid|nvrm' on that host; reset the GPU or reboot the host",
    ),
    ("interface-down", "a network interface is down that was up", "ip link show NAME; cable or switch port"),
    ("address-gone", "an address of the host is gone", "ip address show; DHCP or a network manager took it away"),
    ("disk-filled", "a file system filled up meanwhile", "df -h PATH; move logs, caches or checkpoints"),
    ("filesystem-lost", "a file system does not answer any more, or is read-only now", "mount; dmesg on that host"),
):
    means(
        _code,
        _summary,
        read="counters of the host before and after the job",
        why="it slowed the job down or ended it, and may end the next one",
        remedy=_remedy,
        source="facts of the host, read before and after the job",
    )


def growth(before: HostFacts, after: HostFacts) -> Iterator[Finding]:
    """What grew on one host between two readings of it."""
    old = {gpu.uuid: gpu for gpu in before.gpus or ()}
    new = {gpu.uuid: gpu for gpu in after.gpus or ()} if after.gpus is not None else None
    if old and new is None and after.network is not None:  # the host answers, its driver does not
        remedy = "dmesg -T | grep -iE 'xid|nvrm' on that host; reset the GPU or reboot the host"
        reason = after.missing.get("gpus", "not read")
        yield _finding("gpus-unreadable", Severity.ERROR, after.host, "GPUs", "readable", reason, remedy)
    for uuid, gpu in old.items():
        if new is not None and uuid not in new:
            yield _finding(
                "gpu-lost",
                Severity.ERROR,
                after.host,
                f"GPU {gpu.index}",
                "present",
                "gone",
                "it was there before the job: see dmesg for Xid 79; the host needs a reset or a reboot",
            )
        elif new is not None:
            yield from _of_gpu(after.host, gpu, new[uuid])
    seen = {(xid.code, xid.pci, xid.at, xid.text) for xid in before.xids or ()}
    if before.xids is not None:
        for xid in after.xids or ():
            if (xid.code, xid.pci, xid.at, xid.text) not in seen:
                yield _finding(
                    f"xid-{xid.code}",
                    Severity.ERROR,
                    after.host,
                    f"GPU at {xid.pci or 'unknown'}",
                    "none",
                    f"Xid {xid.code}",
                    f"nvrun explain xid-{xid.code}; dmesg has the lines around it",
                    (xid.text,),
                )
    ports = {(port.device, port.port): port for port in before.rdma or ()}
    for port in after.rdma or ():
        if (port.device, port.port) in ports:
            yield from _of_port(after.host, ports[port.device, port.port], port)
    interfaces = {each.name: each for each in before.network.interfaces} if before.network else {}
    for each in after.network.interfaces if after.network else ():
        if each.name in interfaces:
            yield from _of_interface(after.host, interfaces[each.name], each)
    systems = {each.path: each for each in before.filesystems or ()}
    for system in after.filesystems or ():
        if system.path in systems:
            yield from _of_filesystem(after.host, systems[system.path], system)


def _of_gpu(host: str, before: Gpu, after: Gpu) -> Iterator[Finding]:
    subject = f"GPU {after.index}"
    yield from _grown(
        host,
        "ecc-uncorrected-grew",
        Severity.ERROR,
        f"{subject} uncorrected ECC errors",
        before.ecc_uncorrected_volatile,
        after.ecc_uncorrected_volatile,
        "results of this job may be wrong; nvidia-smi -q -d ECC,ROW_REMAPPER, then reset the GPU",
    )
    links = {link.link: link for link in before.nvlinks}
    for link in after.nvlinks:
        old = links.get(link.link)
        if old is None:
            continue
        for name in ("crc_errors", "replay_errors", "recovery_errors"):
            yield from _grown(
                host,
                "nvlink-errors-grew",
                Severity.WARNING,
                f"{subject} NVLink {link.link} {name.replace('_', ' ')}",
                getattr(old, name),
                getattr(link, name),
                "nvidia-smi nvlink -e; growing: reseat or replace, run dcgmi diag",
            )
        if old.active and not link.active:
            yield _finding(
                "nvlink-down",
                Severity.ERROR,
                host,
                f"{subject} NVLink {link.link}",
                "active",
                "down",
                "nvidia-smi nvlink -s; dmesg for Xid 74",
            )


def _of_port(host: str, before: RdmaPort, after: RdmaPort) -> Iterator[Finding]:
    port = f"{after.device} port {after.port}"
    for name, meaning in PORT_ERRORS.items():
        yield from _grown(
            host,
            "port-errors-grew",
            Severity.WARNING,
            f"{port} {name}",
            before.counters.get(name),
            after.counters.get(name),
            f"{meaning}: cable, optics or switch port",
        )
    if before.state == "ACTIVE" != after.state:
        yield _finding(
            "port-down", Severity.ERROR, host, port, before.state, after.state, "cable, optics or switch port; ibstat"
        )


def _of_interface(host: str, before: Interface, after: Interface) -> Iterator[Finding]:
    if after.kind == "loopback":
        return
    for name in ("rx_errors", "tx_errors"):
        yield from _grown(
            host,
            "interface-errors-grew",
            Severity.WARNING,
            f"{after.name} {name}",
            before.errors.get(name),
            after.errors.get(name),
            f"ethtool -S {after.name}",
        )
    yield from _grown(
        host,
        "interface-flapped",
        Severity.WARNING,
        f"{after.name} carrier changes",
        before.carrier_changes,
        after.carrier_changes,
        f"the link went down meanwhile: ethtool {after.name}",
    )

    if before.up and not after.up:
        yield _finding("interface-down", Severity.ERROR, host, after.name, "up", "down", f"ip link show {after.name}")
    for gone in {each.address for each in before.addresses} - {each.address for each in after.addresses}:
        yield _finding(
            "address-gone", Severity.ERROR, host, f"{after.name} {gone}", "present", "gone", "ip address show"
        )


def _of_filesystem(host: str, before: Filesystem, after: Filesystem) -> Iterator[Finding]:
    if after.error and not before.error:
        remedy = "mount and dmesg on that host"
        yield _finding("filesystem-lost", Severity.ERROR, host, after.path, "usable", after.error, remedy)
    elif after.readonly and not before.readonly:
        remedy = "dmesg on that host: the kernel does so after errors"
        yield _finding("filesystem-lost", Severity.ERROR, host, after.path, "writable", "read-only", remedy)
    elif (
        before.free_bytes is not None
        and after.free_bytes is not None
        and after.free_bytes < FULL_BYTES <= before.free_bytes
    ):
        room = f"{before.free_bytes >> 20} MiB free", f"{after.free_bytes >> 20} MiB free"
        yield _finding("disk-filled", Severity.ERROR, host, after.path, *room, f"df -h {after.path}")


def _grown(
    host: str, code: str, severity: Severity, subject: str, before: int | None, after: int | None, remedy: str
) -> Iterator[Finding]:
    if before is not None and after is not None and after > before:
        yield _finding(code, severity, host, subject, str(before), str(after), remedy)


def _finding(
    code: str,
    severity: Severity,
    host: str,
    subject: str,
    before: str,
    after: str,
    remedy: str,
    evidence: tuple[str, ...] = (),
) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        host=host,
        subject=subject,
        message=f"{host}: {subject}: {before} before the job, {after} after it",
        observed=after,
        expected=before,
        remedy=remedy,
        evidence=evidence,
    )
