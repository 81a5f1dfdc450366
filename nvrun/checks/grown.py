"""What is no longer on a host as before the job: counters that grew, links, addresses and GPUs that are gone. Pure.

Counters that a host does not show are not judged. A counter that became smaller was reset, and is not judged either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import gmtime, strftime
from typing import NamedTuple

import msgspec

from nvrun.diagnose.xid import read_sxid
from nvrun.facts import Filesystem, Gpu, HostFacts, Interface, RdmaPort
from nvrun.meanings import means
from nvrun.model import Finding, Severity

LOOKED_AT = ("gpus", "network", "rdma", "filesystems", "xids")
"""Sections of the facts that are compared."""
FULL_BYTES = 16 << 20
"""A file system with less room than this has none for a log or a checkpoint."""
CLOCK_SECONDS = 5.0
"""By which the kernel's time of boot may differ between two readings: it follows a clock that NTP slews (proc(5):
btime, whole seconds)."""
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


class _Kind(NamedTuple):
    """A kind of change."""

    severity: Severity
    summary: str
    remedy: str
    """NAME stands for the first word of the subject."""


_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
_KINDS: Mapping[str, _Kind] = {
    "gpu-lost": _Kind(_ERROR, "a GPU that was there before the job is gone",
                      "dmesg -T | grep -iE 'xid|nvrm' there (Xid 79); the host needs a reset or a reboot"),
    "gpus-unreadable": _Kind(_ERROR, "the GPU driver answered before the job, and does not any more",
                             "dmesg -T | grep -iE 'xid|nvrm' on that host; reset the GPU or reboot the host"),
    "ecc-uncorrected-grew": _Kind(_ERROR, "a GPU's memory had an error that could not be corrected",
                                  "results of this job may be wrong; nvidia-smi -q -d ECC,ROW_REMAPPER, then reset "
                                  "the GPU"),
    "nvlink-errors-grew": _Kind(_WARNING, "an NVLink had errors meanwhile",
                                "nvidia-smi nvlink -e; growing: reseat or replace, run dcgmi diag"),
    "port-errors-grew": _Kind(_WARNING, "an RDMA port had errors meanwhile", "cable, optics or switch port"),
    "port-down": _Kind(_ERROR, "an RDMA port is down that was up", "cable, optics or switch port; ibstat"),
    "interface-errors-grew": _Kind(_WARNING, "a network interface had errors meanwhile", "ethtool -S NAME"),
    "interface-flapped": _Kind(_WARNING, "a network interface lost its link meanwhile",
                               "ethtool NAME; cable or switch port"),
    "interface-down": _Kind(_ERROR, "a network interface is down that was up",
                            "ip link show NAME; cable, transceiver or switch port"),
    "address-gone": _Kind(_ERROR, "an address of the host is gone",
                          "ip address show; DHCP or a network manager took it away"),
    "disk-filled": _Kind(_ERROR, "a file system filled up meanwhile",
                         "df -h NAME; move logs, caches or checkpoints"),
    "filesystem-lost": _Kind(_ERROR, "a file system does not answer any more, or is read-only now",
                             "mount, and dmesg on that host: the kernel makes it read-only after errors"),
}  # fmt: skip

for _code, _kind in _KINDS.items():
    means(
        _code,
        _kind.summary,
        read="what the host showed before the job and after it",
        why="it slowed the job down or ended it, and may end the next one",
        remedy=_kind.remedy,
        source="facts of the host, read before and after the job",
    )


def growth(before: HostFacts, after: HostFacts) -> Iterator[Finding]:
    """What changed for the worse on one host between two readings of it."""
    host = after.host
    old = {gpu.uuid: gpu for gpu in before.gpus or ()}
    if after.gpus is not None:
        new = {gpu.uuid: gpu for gpu in after.gpus}
        for uuid, gpu in old.items():
            if uuid in new:
                yield from _of_gpu(host, gpu, new[uuid])
            else:
                yield changed("gpu-lost", host, f"GPU {gpu.index}", "present", "gone")
    elif old and after.network is not None:  # the host answers, its driver does not
        yield changed("gpus-unreadable", host, "GPUs", "readable", after.missing.get("gpus", "not read"))
    numbers = {gpu.pci: f" {gpu.index}" for gpu in before.gpus or ()}
    known: dict[tuple[int, str | None, str], list[float | None]] = {}
    for xid in before.xids or ():
        known.setdefault((xid.code, xid.pci, xid.text), []).append(xid.at)
    for xid in after.xids or () if before.xids is not None else ():
        switch = read_sxid(xid.text)
        is_old = any(_is_same(xid.at, at) for at in known.get((xid.code, xid.pci, xid.text), ()))
        if not is_old and (switch is None or switch.fatal):
            kind, device = ("SXid", "NVSwitch") if switch else ("Xid", "GPU")
            code = f"{kind.lower()}-{xid.code}"
            remedy = f"nvrun explain {code}; dmesg has the lines around it"
            subject = f"{device}{numbers.get(xid.pci or '', '')} at {xid.pci or 'unknown'}"
            found = changed(code, host, subject, "none", f"{kind} {xid.code}", remedy, (xid.text,))
            when = "" if xid.at is None else strftime(" at %H:%M:%S UTC", gmtime(xid.at))
            message = f"{host}: {subject}: {found.observed}{when}, while the job ran"
            yield msgspec.structs.replace(found, message=message)
    ports = {(port.device, port.port): port for port in before.rdma or ()}
    for port in after.rdma or ():
        if (port.device, port.port) in ports:
            yield from _of_port(host, ports[port.device, port.port], port)
    interfaces = {each.name: each for each in before.network.interfaces} if before.network else {}
    wired = {each.master for each in interfaces.values() if each.pci}
    for each in after.network.interfaces if after.network else ():
        # A bridge of containers alone has a carrier as long as one of them runs.
        if each.name in interfaces and (each.kind != "bridge" or each.name in wired):
            yield from _of_interface(host, interfaces[each.name], each)
    systems = {each.path: each for each in before.filesystems or ()}
    for system in after.filesystems or ():
        if system.path in systems:
            yield from _of_filesystem(host, systems[system.path], system)


def _is_same(one: float | None, other: float | None) -> bool:
    """Of two times of one line; both come from a time of boot by a clock that may be set between them."""
    return one is None or other is None or abs(one - other) < CLOCK_SECONDS


def _of_gpu(host: str, before: Gpu, after: Gpu) -> Iterator[Finding]:
    subject = f"GPU {after.index}"
    ecc = before.ecc_uncorrected_volatile, after.ecc_uncorrected_volatile
    yield from _grown("ecc-uncorrected-grew", host, f"{subject} uncorrected ECC errors", *ecc)
    links = {link.link: link for link in before.nvlinks}
    for link in after.nvlinks:
        old = links.get(link.link)
        if old is None:
            continue
        of_link = f"{subject} NVLink {link.link}"
        for name in ("crc_errors", "replay_errors", "recovery_errors"):
            counts = getattr(old, name), getattr(link, name)
            yield from _grown("nvlink-errors-grew", host, f"{of_link} {name.replace('_', ' ')}", *counts)
        if old.active and not link.active:  # the preflight's own code
            yield changed("nvlink-down", host, of_link, "active", "down", "nvidia-smi nvlink -s; dmesg for Xid 74")


def _of_port(host: str, before: RdmaPort, after: RdmaPort) -> Iterator[Finding]:
    port = f"{after.device} port {after.port}"
    for name, meaning in PORT_ERRORS.items():
        counts = before.counters.get(name), after.counters.get(name)
        remedy = f"{meaning}: {_KINDS['port-errors-grew'].remedy}"
        yield from _grown("port-errors-grew", host, f"{port} {name}", *counts, remedy)
    if before.state == "ACTIVE" != after.state:
        yield changed("port-down", host, port, before.state, after.state)


def _of_interface(host: str, before: Interface, after: Interface) -> Iterator[Finding]:
    if after.kind == "loopback":
        return
    for name in ("rx_errors", "tx_errors"):
        counts = before.errors.get(name), after.errors.get(name)
        yield from _grown("interface-errors-grew", host, f"{after.name} {name}", *counts)
    changes = before.carrier_changes, after.carrier_changes
    yield from _grown("interface-flapped", host, f"{after.name} carrier changes", *changes)
    if before.up and not after.up:
        yield changed("interface-down", host, after.name, "up", "down")
    for gone in {each.address for each in before.addresses} - {each.address for each in after.addresses}:
        yield changed("address-gone", host, f"{after.name} {gone}", "present", "gone")


def _of_filesystem(host: str, before: Filesystem, after: Filesystem) -> Iterator[Finding]:
    if after.error and not before.error:
        yield changed("filesystem-lost", host, after.path, "usable", after.error)
    elif after.readonly and not before.readonly:
        yield changed("filesystem-lost", host, after.path, "writable", "read-only")
    elif (
        before.free_bytes is not None
        and after.free_bytes is not None
        and after.free_bytes < FULL_BYTES <= before.free_bytes
    ):
        room = f"{before.free_bytes >> 20} MiB free", f"{after.free_bytes >> 20} MiB free"
        yield changed("disk-filled", host, after.path, *room)


def _grown(
    code: str, host: str, subject: str, before: int | None, after: int | None, remedy: str = ""
) -> Iterator[Finding]:
    if before is not None and after is not None and after > before:
        yield changed(code, host, subject, str(before), str(after), remedy)


def changed(
    code: str, host: str, subject: str, before: str, after: str, remedy: str = "", evidence: tuple[str, ...] = ()
) -> Finding:
    """One change, with the severity and, where none is given, the remedy of its kind; of no kind of these: an error."""
    kind = _KINDS.get(code)
    return Finding(
        code=code,
        severity=kind.severity if kind else Severity.ERROR,
        host=host,
        subject=subject,
        message=f"{host}: {subject}: {before} before the job, {after} after it",
        observed=after,
        expected=before,
        remedy=remedy or (kind.remedy.replace("NAME", subject.split()[0]) if kind else ""),
        evidence=evidence,
    )
