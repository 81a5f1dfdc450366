"""RDMA ports in the plan: up, at full rate, with addresses, keys and devices that NCCL can use. Others are not judged.

Software RDMA (rxe, siw) and virtual functions are judged like others where the plan uses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median

from nvrun.checks import pcie
from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, FATAL, INFO, WARNING, declare
from nvrun.checks.compare import differing, listed
from nvrun.checks.job import VERBS, Job, name_of
from nvrun.facts import Gid, HostFacts, PciDevice, RdmaPort, Software
from nvrun.model import Skipped

DOWN = declare(
    "rdma-port-down",
    FATAL,
    "an RDMA port of the plan is not active",
    read="state and phys_state in /sys/class/infiniband",
    why="NCCL leaves the port out: this host has fewer rails than the others, and NCCL aborts or hangs",
    remedy="ibstat PORT; cable, transceiver and switch port",
    source="https://github.com/linux-rdma/rdma-core, ibstat(8); NCCL user guide, NCCL_IB_HCA",
    depends="judged for ports in the plan only",
    real=False,
)
RATE = declare(
    "rdma-rate-low",
    ERROR,
    "an RDMA port runs below the rate of its like",
    read="rate in /sys/class/infiniband, against ports of the same kind in the plan",
    why="the slowest rail sets the pace of every collective",
    remedy="reseat or replace cable and transceiver; look at the switch port's speed",
    source="https://github.com/NVIDIA/nccl/issues/307",
    real=False,
)
MTU = declare(
    "rdma-mtu-differs",
    ERROR,
    "RDMA ports of the plan have different active MTUs",
    read="active_mtu from libibverbs",
    why="queue pairs between unlike MTUs fail: `local access violation`, LOC_LEN_ERR, or hang",
    remedy="set one MTU on switches and interfaces (InfiniBand 4096; RoCE: interface MTU 9000 gives 4096)",
    source="https://github.com/NVIDIA/nccl/issues/1524",
    real=False,
)
MTU_LOW = declare(
    "rdma-mtu-low",
    WARNING,
    "RDMA runs with small packets",
    read="active_mtu from libibverbs",
    why="more packets, more work, less bandwidth",
    remedy="InfiniBand: mtu 4096 in the subnet manager's partition; RoCE: interface and switch MTU 9000",
    source="ibv_query_port(3)",
    real=False,
)
COUNT = declare(
    "rdma-ports-differ",
    FATAL,
    "hosts bring different numbers of RDMA ports",
    read="active ports of the plan on each host",
    why="NCCL refuses mixed numbers of NICs, or its rings use the fewest",
    remedy="find the missing port: ibstat; or name the same number on all hosts with NCCL_IB_HCA",
    source="https://github.com/NVIDIA/nccl/issues/2428",
    depends="not judged where rdma-port-down has named the host",
    real=False,
)
GID = declare(
    "roce-gid-missing",
    FATAL,
    "a RoCE port of the plan has no routable RoCE v2 address",
    read="gids and gid_attrs/types in /sys/class/infiniband",
    why="connections fail with work completion error 12 or time out in ibv_modify_qp",
    remedy="give the port's interface an IPv4 address: its RoCE v2 GID appears by itself (show_gids)",
    source="https://github.com/NVIDIA/nccl/issues/426; NCCL user guide, NCCL_IB_GID_INDEX",
    depends="RoCE ports in the plan only; not judged where NCCL_IB_GID_INDEX names another entry",
    real=False,
)
PKEY = declare(
    "pkey-not-shared",
    FATAL,
    "the InfiniBand ports of the plan share no partition as full members",
    read="pkeys in /sys/class/infiniband; bit 15 = full member",
    why="two limited members, or members of different partitions, cannot talk",
    remedy="let the subnet manager put the ports into one partition as full members",
    source="InfiniBand specification 10.9; NCCL user guide, NCCL_IB_PKEY",
    depends="InfiniBand ports in the plan only",
    real=False,
)
FIRMWARE = declare(
    "rdma-firmware-differs",
    WARNING,
    "NICs of one kind have different firmware",
    read="fw_ver of NICs with the same board id",
    why="known faults and defaults (congestion control, MTU) differ",
    remedy="bring the firmware to one version (mlxfwmanager, as root)",
    source="mlxfwmanager --query",
    real=False,
)
GUID = declare(
    "rdma-guid-twice",
    FATAL,
    "two NICs have the same GUID",
    read="node_guid in /sys/class/infiniband",
    why="the subnet manager routes to one of them only",
    remedy="reset the GUIDs of the cloned card or virtual machine",
    source="InfiniBand specification 14.2.5: NodeInfo",
    real=False,
)
COUNTERS = declare(
    "rdma-errors",
    INFO,
    "a port has far more link errors than others",
    read="error counters in /sys/class/infiniband since the driver was loaded",
    why="a link that flaps or corrupts is retrained under load: NCCL sees timeouts",
    remedy="clean or replace cable and transceiver; watch link_downed during a job",
    source="perfquery(8); ten times the median of the plan's ports",
    real=False,
)
UVERBS = declare(
    "rdma-device-closed",
    FATAL,
    "the device file of an RDMA port cannot be opened",
    read="open(2) of /dev/infiniband/uverbsN as the job's user",
    why="NCCL falls back to sockets without an error, at a fraction of the speed",
    remedy="docker --device=/dev/infiniband (or --privileged); on the host the rdma group or udev's mode",
    source="https://github.com/NVIDIA/nccl/issues/1925",
    real=False,
)
GPUDIRECT = declare(
    "gpudirect-differs",
    ERROR,
    "GPUDirect RDMA's kernel module is loaded on some hosts only",
    read="nvidia_peermem or nv_peer_mem in /sys/module",
    why="this host copies through main memory (unless dma-buf works there): it slows all others",
    remedy="modprobe nvidia_peermem as root, and load it at boot",
    source="https://github.com/NVIDIA/nccl-tests/issues/152",
    real=False,
)
PCIE = declare(
    "nic-pcie-narrow",
    ERROR,
    "a NIC of the plan, or a bridge above it, has lost PCIe lanes or speed, or has too few for its rate",
    read="current and max link width and speed in sysfs, of the NIC and of the slot's own port",
    why="the NIC cannot carry its network rate",
    remedy="reseat the card or riser; lspci -vv -s ADDRESS | grep LnkSta as root",
    source="https://github.com/NVIDIA/nccl/issues/428",
    depends="error for lanes and bridges, warning for speed and for a slot that has no more",
    real=False,
)
_PHYS = {
    "Polling": ("no signal from the other side", "cable, transceiver or switch port: ibstat PORT"),
    "Disabled": ("switched off on this host", "ip link set dev IFACE up; mlxlink -d PORT -a EN as root"),
    "Sleep": ("asleep", "ip link set dev IFACE up"),
    "LinkErrorRecovery": ("retraining after errors", "replace cable or transceiver"),
}


@check(DOWN, UVERBS)
def rdma_ports_up(host: str, rdma: tuple[RdmaPort, ...], job: Job) -> Results:
    """RDMA ports of the plan are active and can be opened."""
    ports = job.ports_of(host, rdma)
    for port in ports:
        name = name_of(port)
        if port.state and port.state != "ACTIVE":
            cause, remedy = _PHYS.get(port.phys_state, (port.phys_state or "no reason given", DOWN.remedy))
            if port.state == "INIT":
                cause, remedy = "no subnet manager has set it up", "start opensm or UFM; is the port in its fabric?"
            yield DOWN.found(
                f"{name} is {port.state}: {cause}",
                subject=name,
                observed=f"{port.state}/{port.phys_state}",
                expected="ACTIVE/LinkUp",
                remedy=remedy.replace("PORT", port.device).replace("IFACE", port.netdev or port.device),
            )
        if port.uverbs_openable is False:
            yield UVERBS.found(f"{port.uverbs or name} cannot be opened", subject=name)
    yield from _untold("the state", [port for port in ports if not port.state])
    closed = [port for port in ports if port.uverbs_openable is None]
    yield from _untold("the uverbs device (is ib_uverbs loaded?)", closed)


def _untold(what: str, ports: Sequence[RdmaPort], host: str | None = None) -> Results:
    """What is not known must not look like healthy."""
    if ports:
        yield Skipped(code="", host=host, reason=f"{what} of {listed(map(name_of, ports))} is not known")


@fleet_check(RATE, MTU, MTU_LOW, COUNT, FIRMWARE)
def rdma_ports_agree(
    rdma: Mapping[str, tuple[RdmaPort, ...]],
    fleet: Mapping[str, HostFacts],
    groups: tuple[tuple[str, ...], ...],
    job: Job,
) -> Results:
    """RDMA ports of the plan have one number, rate, MTU and firmware."""
    planned = {host: job.ports_of(host, ports) for host, ports in rdma.items()}
    active = {host: [port for port in ports if port.state == "ACTIVE"] for host, ports in planned.items()}
    # Without PCI nothing tells a compute port from storage's: that host's number is another thing.
    apart = [host for host in planned if not fleet[host].pci and any(facts.pci for facts in fleet.values())]
    for host in apart:
        if active[host]:
            yield Skipped(code="", host=host, reason="which RDMA ports are near a GPU is not known")
    whole = {host: len(there) for host, there in active.items() if len(there) == len(planned[host])}
    whole = {host: number for host, number in whole.items() if host not in apart}
    if any(whole.values()):
        yield from differing(COUNT, whole, "RDMA ports in use:", subject="RDMA ports")
    rates = {host: _one([port.rate_gbps or None for port in ports]) for host, ports in active.items()}
    highest = max((rate for rate in rates.values() if rate), default=0.0)
    for finding in differing(RATE, rates, "all RDMA ports:", groups=groups, shown=lambda rate: f"{rate:g} Gb/s"):
        if finding.host is None or (rates[finding.host] or 0.0) < highest:
            yield finding
    mtus = {host: min((p.active_mtu for p in ports if p.active_mtu), default=None) for host, ports in active.items()}
    yield from differing(MTU, mtus, "smallest RDMA MTU", subject="MTU")
    for host, ports in active.items():
        yield from _untold("the active MTU (from libibverbs)", [port for port in ports if not port.active_mtu], host)
        yield from _untold("the rate", [port for port in ports if not port.rate_gbps], host)
    smallest = _one([mtu for mtu in mtus.values() if mtu])
    if smallest is not None and smallest < 4096:
        yield MTU_LOW.found(f"the active MTU of all hosts' RDMA ports is {smallest:g}, not 4096", subject="MTU")
    boards = {port.board or port.hca_type for ports in active.values() for port in ports}
    for board in sorted(board for board in boards if board):
        versions = {
            host: listed(sorted({p.firmware for p in ports if p.firmware and (p.board or p.hca_type) == board})) or None
            for host, ports in active.items()
        }
        yield from differing(FIRMWARE, versions, f"firmware of {board}", subject=board)


def _one(values: Sequence[float | None]) -> float | None:
    """The value that all have; None where they differ or have none."""
    return values[0] if len(set(values)) == 1 else None


@check(RATE, GID, PCIE)
def rdma_ports_fit(
    host: str, rdma: tuple[RdmaPort, ...], pci: tuple[PciDevice, ...], facts: HostFacts, job: Job
) -> Results:
    """RDMA ports of the plan run at full rate, with an address and all their PCIe lanes."""
    ports = [port for port in job.ports_of(host, rdma) if port.state == "ACTIVE"]
    if not ports:
        return
    best: dict[str, float] = {}
    for port in ports:
        best[port.hca_type or ""] = max(best.get(port.hca_type or "", 0.0), port.rate_gbps or 0.0)
    devices = {device.address: device for device in pci}
    pinned = job.env.get(host, facts.env or {}).get("NCCL_IB_GID_INDEX", "").strip()
    untyped: list[RdmaPort] = []
    for port in ports:
        name = name_of(port)
        if port.rate_gbps and port.rate_gbps < best[port.hca_type or ""]:
            yield RATE.found(
                f"{name}: {port.rate_gbps:g} Gb/s, others of this host have {best[port.hca_type or '']:g}", subject=name
            )
        chosen = any(str(gid.index) == pinned for gid in port.gids)  # by the user: lint says what it is
        if port.link_layer == "Ethernet" and not chosen and not any(map(_routable, port.gids)):
            if any(_far(gid) and not gid.type for gid in port.gids):
                untyped.append(port)
            else:
                seen = "only link-local ones" if any(map(_is_v2, port.gids)) else "none"
                yield GID.found(f"{name} has no routable RoCE v2 GID, {seen}", subject=name)
        if port.pci in devices and port.link_layer in VERBS:  # nothing tells what an EFA's link is by design
            yield from _lanes(port, devices[port.pci], devices)
    yield from _untold("the RoCE version of the GIDs", untyped)
    yield from _untold("the PCIe link", [p for p in ports if p.pci not in devices and p.link_layer in VERBS])


def _routable(gid: Gid) -> bool:
    return _is_v2(gid) and _far(gid)


def _is_v2(gid: Gid) -> bool:
    return "v2" in gid.type.lower()


def _far(gid: Gid) -> bool:
    return not gid.gid.startswith("fe80")


def _lanes(port: RdmaPort, device: PciDevice, devices: Mapping[str, PciDevice]) -> Results:
    name, link, could = name_of(port), pcie.now(device), pcie.possible(device, devices)
    reseat = PCIE.remedy.replace("ADDRESS", device.address)
    if link.lanes and could.lanes and link.lanes < could.lanes:
        yield PCIE.found(f"{name} has {link.lanes} PCIe lanes of {could.lanes}", subject=name, remedy=reseat)
        return
    if link.gt_s and could.gt_s and link.gt_s < could.gt_s:
        words = f"{name} runs at {link.gt_s:g} GT/s a lane of {could.gt_s:g}"
        yield PCIE.found(words, severity=WARNING, subject=name, remedy=reseat)
        return
    if link.gbps and port.rate_gbps and link.gbps < port.rate_gbps:
        yield PCIE.found(
            f"{name} has a slot of {link.lanes} lanes at {link.gt_s:g} GT/s: it carries {link.gbps:.0f} Gb/s of"
            f" {port.rate_gbps:g}",
            severity=WARNING,
            subject=name,
            remedy="another slot, if the host has one with more lanes",
        )
        return
    needed = min(filter(None, (link.gbps, port.rate_gbps)), default=None)
    for address in device.path[1:-1]:
        above = pcie.now(devices[address]) if address in devices else None
        # A bridge with fewer lanes that are faster, or that still carries the port's rate, is no bottleneck.
        if above and needed and above.gbps and above.gbps < needed:
            yield PCIE.found(
                f"the bridge {address} above {name} has {above.lanes} lanes at {above.gt_s:g} GT/s: {above.gbps:.0f}"
                f" Gb/s, the NIC needs {needed:.0f}",
                subject=name,
                remedy=PCIE.remedy.replace("ADDRESS", address),
            )


@fleet_check(PKEY, GUID)
def rdma_fabric_shared(rdma: Mapping[str, tuple[RdmaPort, ...]], job: Job) -> Results:
    """InfiniBand ports of the plan share a partition, and no two NICs have one GUID."""
    keys: dict[str, set[int]] = {}
    keyless: dict[str, list[RdmaPort]] = {}
    owners: dict[str, set[str]] = {}
    for host, ports in rdma.items():
        for port in job.ports_of(host, ports):
            if port.link_layer == "InfiniBand" and port.state == "ACTIVE":
                numbers = [int(key, 16) for key in port.pkeys if _PKEY.fullmatch(key)]
                full = {number & 0x7FFF for number in numbers if number & 0x8000}
                if numbers:
                    keys[host] = keys.get(host, full) & full
                else:
                    keyless.setdefault(host, []).append(port)
            if port.node_guid and port.node_guid.strip("0:"):
                owners.setdefault(port.node_guid, set()).add(host)
    for host, unknown in keyless.items():
        yield from _untold("any P_Key", unknown, host)
    if keys and not set.intersection(*keys.values()):
        shown = {host: listed(f"{key | 0x8000:#06x}" for key in sorted(full)) or "none" for host, full in keys.items()}
        found = list(differing(PKEY, shown, "full-member P_Keys:", subject="P_Key"))
        yield from found or [PKEY.found("no port is a full member of a partition", subject="P_Key")]
    for guid, hosts in owners.items():
        if len(hosts) > 1:
            yield GUID.found(f"{listed(sorted(hosts))} have NICs with the GUID {guid}", subject=guid)


_PKEY = re.compile(r"0x[0-9a-fA-F]{1,4}")
_ERRORS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "local_link_integrity_errors")
_OUTLIER, _FEW = 10, 100
"""An error count stands out above ten times the median, and never below a hundred: a link counts some at its start."""


@fleet_check(COUNTERS)
def rdma_errors_usual(rdma: Mapping[str, tuple[RdmaPort, ...]], job: Job) -> Results:
    """No port of the plan has far more link errors than the others."""
    planned = [(host, port) for host, ports in rdma.items() for port in job.ports_of(host, ports)]
    for counter in _ERRORS:
        values = [port.counters[counter] for _, port in planned if counter in port.counters]
        usual = median(values) if values else 0
        for host, port in planned:
            value = port.counters.get(counter, 0)
            if value > max(_FEW, _OUTLIER * usual):
                yield COUNTERS.found(
                    f"{name_of(port)}: {counter} {value}, the usual is {usual:g}", host=host, subject=name_of(port)
                )


@fleet_check(GPUDIRECT)
def gpudirect_agrees(software: Mapping[str, Software], job: Job) -> Results:
    """GPUDirect RDMA's kernel module is loaded on all hosts that use RDMA, or on none."""
    modules = {host: there.nvidia_peermem for host, there in software.items() if job.uses_rdma(host)}
    if len({value for value in modules.values() if value is not None}) > 1:
        for host, loaded in modules.items():
            if loaded is False:
                yield GPUDIRECT.found("nvidia_peermem is not loaded, on other hosts it is", host=host)
