"""What an NCCL log shows about speed and completeness. Pure: `NcclLog`, facts and what was asked for -> findings.

None of these is the cause of a failure by itself; `diagnose` reads failures. A judgement that needs facts of the host
is not made without them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from nvrun.facts import HostFacts
from nvrun.model import Finding, Severity
from nvrun.nccl.log_model import Communicator, NcclLog, NcclProcess, Route
from nvrun.nccl.parse import strtoll

SLOW_INIT_SECONDS = 30.0
"""An init that takes longer is told. A judgement: NCCL's own reports of healthy inits, also with thousands of ranks,
are seconds, and 30 s is half of the time after which its bootstrap gives up (34 tries, about 60 s)."""

_VIRTUAL = re.compile(r"^(?:lo$|docker|virbr|veth|cni|flannel|cali|tunl|tailscale|br-|usb)")


def log_findings(log: NcclLog, *, facts: Mapping[str, HostFacts] | None = None) -> list[Finding]:
    """Findings about the runs in `log`; `facts`: host name -> facts. What the plan says is `heard`'s to compare."""
    known = _by_short_name(facts or {})
    return [
        *_socket_beside_rdma(log, known),
        *_different_networks(log),
        *_versions(log),
        *_virtual_interface(log),
        *_hosts_taken_for_one(log),
        *_gdr_off(log),
        *_shm_beside_nvlink(log, known),
        *_incomplete_init(log),
        *_slow_init(log),
    ]


def _socket_beside_rdma(log: NcclLog, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    if not spans_hosts(log):
        return
    for host, members in _by_host(log.processes).items():
        on_sockets = [p for p in members if p.network == "Socket"]
        rdma = facts[host].rdma if host in facts else None
        active = [f"{port.device}:{port.port}" for port in rdma or () if port.state.upper() == "ACTIVE"]
        if on_sockets and active:
            yield Finding(
                code="nccl-sockets-beside-rdma",
                severity=Severity.WARNING,
                message=f"NCCL talks over TCP sockets although this host has RDMA ports ({', '.join(active)})",
                host=host,
                subject=_ranks(on_sockets),
                observed="Socket",
                expected="IB",
                remedy=why_no_rdma(on_sockets[0]),
                evidence=(on_sockets[0].network_line,),
            )


def why_no_rdma(process: NcclProcess) -> str:
    """What to do, by what a process says of its RDMA devices."""
    if strtoll(process.variables.get("NCCL_IB_DISABLE", "")):
        return "Unset NCCL_IB_DISABLE"
    if process.no_ib_device and "NCCL_IB_HCA" in process.variables:
        return "NCCL_IB_HCA leaves no active port: compare it with `rdma link`"
    if process.no_ib_device:
        return "NCCL saw no active RDMA port: pass /dev/infiniband into the container, check `rdma link`"
    return "Check libibverbs and /dev/infiniband in the job's environment; NCCL_NET=IB turns the fallback into an error"


def _different_networks(log: NcclLog) -> Iterator[Finding]:
    users: dict[str, list[NcclProcess]] = defaultdict(list)
    for process in log.processes:
        if process.network is not None:
            users[process.network].append(process)
    if len(users) > 1:
        rarest = min(users, key=lambda network: len(users[network]))
        yield Finding(
            code="nccl-networks-differ",
            severity=Severity.ERROR,
            message=f"The ranks use different networks: {', '.join(f'{n} ({len(p)})' for n, p in users.items())}",
            host=users[rarest][0].host or None,
            subject=_ranks(users[rarest]),
            remedy=f"Find why that host chose {rarest}: {why_no_rdma(users[rarest][0])}",
            evidence=tuple(processes[0].network_line for processes in users.values()),
        )


def _versions(log: NcclLog) -> Iterator[Finding]:
    if len({version.partition("+")[0] for version in log.versions}) > 1:  # `+cuda12.8` says how it was built
        yield Finding(
            code="nccl-versions-differ",
            severity=Severity.ERROR,
            message=f"The ranks loaded different NCCL versions: {', '.join(log.versions)}",
            remedy="Use one environment everywhere; look for a second libnccl in LD_LIBRARY_PATH or LD_PRELOAD",
            evidence=tuple(f"{p.host}:{p.pid} NCCL version {p.version}" for p in log.processes if p.version)[:8],
        )


def _virtual_interface(log: NcclLog) -> Iterator[Finding]:
    if not spans_hosts(log):
        return
    for host, members in _by_host(log.processes).items():
        for process in members:
            name = (process.bootstrap or "").partition(":")[0]
            if _VIRTUAL.match(name):
                yield Finding(
                    code="nccl-virtual-interface",
                    severity=Severity.WARNING,
                    message=f"NCCL's bootstrap goes over {name}, which other hosts can hardly reach",
                    host=host or None,
                    subject=name,
                    remedy="NCCL_SOCKET_IFNAME==<interface all hosts share>",
                    evidence=(f"Bootstrap: Using {process.bootstrap}",),
                )
                break


def _hosts_taken_for_one(log: NcclLog) -> Iterator[Finding]:
    for communicator in log.communicators:
        if communicator.nodes is not None and len(communicator.hosts) > communicator.nodes:
            yield Finding(
                code="nccl-hosts-taken-for-one",
                severity=Severity.ERROR,
                message=f"NCCL counts {communicator.nodes} host(s) where {len(communicator.hosts)} wrote: equal host "
                "names and boot ids, or one NCCL_HOSTID for several hosts",
                subject=communicator.id,
                observed=str(communicator.nodes),
                expected=str(len(communicator.hosts)),
                remedy="Give every host its own name, and NCCL_HOSTID its own value on each",
            )


def _gdr_off(log: NcclLog) -> Iterator[Finding]:
    staged: dict[str, list[Route]] = defaultdict(list)
    for communicator in log.communicators:
        for route in communicator.routes:
            if route.gdr is False and route.via not in ("NET/Socket", "NET/FastSocket"):
                staged[_host_of(route.line)].append(route)
    disabled = {
        process.host: [hca for hca, on in process.gdr_by_hca.items() if not on]
        for process in log.processes
        if process.gdr_by_hca and not any(process.gdr_by_hca.values())
    }
    for host, routes in staged.items():
        if host in disabled:
            why = f"the driver does not allow it on {', '.join(disabled[host])}"
            remedy = "modprobe nvidia_peermem (or the open kernel modules, which bring DMA-BUF); some GPUs have none"
        else:
            why = "GPU and NIC are too far apart, or it is turned off"
            remedy = "`nvidia-smi topo -m`: each GPU needs a NIC at PIX or PXB; look for NCCL_NET_GDR_LEVEL"
        yield Finding(
            code="nccl-gdr-off",
            severity=Severity.WARNING,
            message=f"Data between hosts is copied through host memory ({routes[0].via} without GPUDirect RDMA): {why}",
            host=host or None,
            observed=f"{len(routes)} routes",
            remedy=remedy,
            evidence=tuple(route.line for route in routes[:3]),
        )


def _shm_beside_nvlink(log: NcclLog, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    for communicator in log.communicators:
        shm: dict[str, list[Route]] = defaultdict(list)
        for route in communicator.routes:
            if route.via == "SHM":
                shm[_host_of(route.line)].append(route)
        for host, routes in shm.items():
            gpus = facts[host].gpus if host in facts else None
            if not any(link.active for gpu in gpus or () for link in gpu.nvlinks):
                continue
            refused = [line for process in log.processes if process.host == host for line in process.p2p_refused]
            yield Finding(
                code="nccl-shm-beside-nvlink",
                severity=Severity.WARNING,
                message="GPUs of one host exchange data through host memory although they have NVLink",
                host=host,
                observed=f"{len(routes)} pairs over SHM",
                expected="P2P/CUMEM or P2P/IPC",
                remedy="Unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; containers of one host need --ipc=host and all GPUs",
                evidence=(*(route.line for route in routes[:2]), *refused[:2]),
            )


def _incomplete_init(log: NcclLog) -> Iterator[Finding]:
    for communicator in log.communicators:
        waiting = sorted(set(communicator.started) - set(communicator.completed))
        if not waiting:
            continue
        missing = sorted(set(range(communicator.nranks)) - set(communicator.started))
        if missing:
            what = f"{_numbers(missing)} never began it, and {len(waiting)} waited"
            remedy = "Look at these ranks' own logs: they failed or hang before, or their logs are not among those read"
        else:
            what = f"all began it, {_numbers(waiting)} did not get through"
            remedy = "The way between the hosts: ports, interface, RDMA. Look at the WARN lines of these ranks"
        yield Finding(
            code="nccl-init-incomplete",
            severity=Severity.WARNING,
            message=f"A communicator of {communicator.nranks} ranks was not complete when the log ended: {what}",
            subject=_numbers(missing or waiting),
            remedy=remedy,
            confidence=0.8,
        )


def _slow_init(log: NcclLog) -> Iterator[Finding]:
    for communicator in log.communicators:
        if not communicator.init_seconds:
            continue
        rank, seconds = max(communicator.init_seconds.items(), key=lambda item: item[1])
        if seconds > SLOW_INIT_SECONDS:
            yield Finding(
                code="nccl-init-slow",
                severity=Severity.INFO,
                message=f"Making a communicator took {seconds:.0f} s, most of it in {communicator.slowest_phase} s",
                subject=f"rank {rank}",
                observed=f"{seconds:.1f} s",
                expected=f"below {SLOW_INIT_SECONDS:.0f} s",
                remedy="A long bootstrap waits for late ranks or name lookups, a long topo for slow sysfs or NVML",
            )


def rejected(process: NcclProcess) -> Iterator[Finding]:
    """Values that NCCL says it did not take as they are."""
    for name, line in process.rejected.items():
        yield Finding(
            code="nccl-value-rejected",
            severity=Severity.WARNING,
            message=f"NCCL did not take the value of {name} as it is: {line}",
            subject=name,
            remedy="Correct or unset it",
            evidence=(line,),
        )


def spans_hosts(log: NcclLog) -> bool:
    """Whether some communicator does."""
    return any(_communicator_spans_hosts(communicator) for communicator in log.communicators) or len(log.hosts) > 1


def _communicator_spans_hosts(communicator: Communicator) -> bool:
    return (communicator.nodes or 1) > 1 or any(route.via.startswith("NET/") for route in communicator.routes)


def _by_host(processes: tuple[NcclProcess, ...]) -> dict[str, list[NcclProcess]]:
    hosts: dict[str, list[NcclProcess]] = defaultdict(list)
    for process in processes:
        hosts[process.host].append(process)
    return hosts


def _by_short_name(facts: Mapping[str, HostFacts]) -> dict[str, HostFacts]:
    """NCCL writes host names up to the first dot."""
    named = dict(facts)
    for host in facts.values():
        for name in (host.host, host.identity.hostname if host.identity else ""):
            named.setdefault(name.partition(".")[0], host)
    return named


def _host_of(line: str) -> str:
    found = re.search(r"([^\s:<>\[\]()]+):\d+:\d+ \[", line)
    return found[1] if found else ""


def _ranks(processes: list[NcclProcess]) -> str:
    return _numbers(sorted(p.rank for p in processes if p.rank is not None))


def _numbers(ranks: list[int]) -> str:
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
