"""The host network as the facts show it: interfaces of the plan, addresses, ports, tables and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from nvrun.checks.check import Results, check, fleet_check
from nvrun.checks.code import ERROR, FATAL, INFO, WARNING, declare
from nvrun.checks.compare import differing, listed, size
from nvrun.checks.job import Job, subnet, usable
from nvrun.facts import HostFacts, Interface, Listener, Network
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding

_SYSCTL = "https://docs.kernel.org/networking/ip-sysctl.html"
_SCALING = "https://docs.kernel.org/networking/scaling.html"
MIB = 1 << 20

MTU = declare(
    "mtu-differs",
    WARNING,
    "the interface of the plan has another MTU than its peers",
    read="MTU of the interface that NCCL's and Gloo's sockets use",
    why="TCP between hosts adapts to the smaller one; RoCE and everything over UDP fails or stalls",
    remedy="ip link set dev IFACE mtu N, the same on all hosts and on the switch",
    source="https://github.com/NVIDIA/nccl/issues/1524",
    depends="error where RoCE uses the interface",
)
SPEED = declare(
    "interface-slow",
    WARNING,
    "the interface of the plan is slower than its peers'",
    read="speed in sysfs",
    why="the slowest host sets the pace",
    remedy="ethtool IFACE: cable, port or auto-negotiation",
    source="ethtool(8)",
    real=False,
)
SUBNETS = declare(
    "subnet-differs",
    WARNING,
    "the interface of the plan is in another subnet, or has another mask, than its peers",
    read="addresses with their prefix lengths",
    why="traffic goes through a gateway, or nowhere where the masks disagree",
    remedy="ip address show IFACE; correct address and prefix length",
    source="ip-address(8)",
)
TWICE = declare(
    "address-twice",
    FATAL,
    "two hosts have the same address",
    read="addresses of the interfaces of the plan",
    why="packets reach now one and now the other: connections hang or are reset",
    remedy="give one of them another address",
    source="RFC 5227",
)
ONE_SUBNET = declare(
    "subnet-twice",
    WARNING,
    "two interfaces are in the same subnet",
    read="addresses of all interfaces; net.ipv4.conf.*.arp_ignore",
    why="answers come from the wrong interface (ARP flux): NCCL's connections through one of them hang",
    remedy="sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2, or separate subnets",
    source="https://github.com/NVIDIA/nccl/issues/1581",
    depends="warning where arp_ignore is 0 and one of them is the plan's",
)
EPHEMERAL = declare(
    "port-ephemeral",
    WARNING,
    "the rendezvous port lies in the range of short-lived ports",
    read="net.ipv4.ip_local_port_range and ip_local_reserved_ports of the rendezvous host",
    why="any outgoing connection may take the port first: `address already in use`, now and then",
    remedy="sysctl -w net.ipv4.ip_local_reserved_ports=PORT, or another --port-range",
    source=_SYSCTL,
)
TAKEN = declare(
    "port-taken",
    FATAL,
    "another process listens on the rendezvous port",
    read="/proc/net/tcp and the process that has the socket open",
    why="torchrun ends with `address already in use`, or joins another job's rendezvous",
    remedy="end the process named; or another port, alike on all nodes: --master-port, --rdzv-endpoint, --port-range",
    source="https://github.com/pytorch/pytorch/issues/85604",
    depends="listeners of this run are not judged",
)
NEIGHBOURS = declare(
    "neighbour-table-small",
    WARNING,
    "the neighbour table is too small for the job's hosts",
    read="net.ipv4.neigh.default.gc_thresh3",
    why="`neighbour table overflow`: connections fail at random",
    remedy="sysctl -w net.ipv4.neigh.default.gc_thresh3=N (and gc_thresh2), at least twice hosts x interfaces",
    source=_SYSCTL,
)
BACKLOG = declare(
    "somaxconn-small",
    WARNING,
    "the listen backlog of the rendezvous host is smaller than the job",
    read="net.core.somaxconn",
    why="when all ranks connect at once some are reset: `connection reset by peer` while the job starts",
    remedy="sysctl -w net.core.somaxconn=4096",
    source="https://github.com/pytorch/pytorch/pull/129261",
    depends="warning below the number of ranks, error below a quarter of it",
)
DROPS = declare(
    "packets-dropped",
    WARNING,
    "the kernel drops received packets because its queue is full",
    read="column 2 of /proc/net/softnet_stat since boot; net.core.netdev_max_backlog and netdev_budget",
    why="TCP resends and slows down: NCCL over sockets stalls",
    remedy="sysctl -w net.core.netdev_max_backlog=30000 net.core.netdev_budget=600",
    source="https://docs.kernel.org/admin-guide/sysctl/net.html",
    depends="where the job runs over sockets: information from 1000 packets on, warning from 100000 (nothing says when"
    " it was); these settings alone are never a fault",
)
QUEUES = declare(
    "receive-on-one-cpu",
    INFO,
    "one CPU receives all packets of a fast interface",
    read="receive queues and rps_cpus in sysfs",
    why="that CPU is the limit for NCCL over sockets",
    remedy="more queues: ethtool -L IFACE combined N; or RPS: echo MASK > /sys/class/net/IFACE/queues/rx-0/rps_cpus",
    source=_SCALING,
    depends="physical interfaces from 10 Gb/s on, for a job over sockets",
    real=False,
)
BUFFERS = declare(
    "socket-buffers-small",
    WARNING,
    "socket buffers are small for a fast network",
    read="net.ipv4.tcp_rmem and tcp_wmem",
    why="a connection cannot fill the network: NCCL over sockets stays below its rate",
    remedy="sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' net.ipv4.tcp_wmem='4096 65536 16777216'",
    source="https://fasterdata.es.net/host-tuning/linux/",
    depends="for a job over sockets on an interface from 25 Gb/s on",
    real=False,
)
CONNTRACK = declare(
    "conntrack-full",
    WARNING,
    "the connection tracking table is nearly full",
    read="net.netfilter.nf_conntrack_count against nf_conntrack_max",
    why="new connections are dropped without a word once it is full",
    remedy="sysctl -w net.netfilter.nf_conntrack_max=N, or leave the job's interface out of tracking",
    source="https://docs.kernel.org/networking/nf_conntrack-sysctl.html",
)


@fleet_check(MTU, SPEED, SUBNETS, TWICE)
def interfaces_agree(network: Mapping[str, Network], fleet: Mapping[str, HostFacts], job: Job) -> Results:
    """The interfaces of the plan have one MTU, speed and subnet, and addresses of their own."""
    planned = {host: one for host, there in network.items() if (one := job.interface_of(host, there))}
    roce = any(
        port.netdev == planned[host].name and port.link_layer == "Ethernet"
        for host in planned
        for port in job.ports_of(host, fleet[host].rdma or ())
    )
    mtus = {host: one.mtu for host, one in planned.items()}
    yield from _named(differing(MTU, mtus, "MTU", severity=ERROR if roce else None), planned)
    speeds = {host: one.speed_mbit for host, one in planned.items()}
    fastest = max((speed for speed in speeds.values() if speed), default=0)
    slower = differing(SPEED, speeds, "speed", shown=lambda speed: f"{speed / 1000:g} Gb/s")
    yield from _named((one for one in slower if one.host is None or (speeds[one.host] or 0) < fastest), planned)
    networks = {host: listed(sorted(_subnets(one))) or None for host, one in planned.items()}
    yield from _named(differing(SUBNETS, networks, "subnet"), planned)
    owners: dict[str, list[str]] = {}
    for host, one in planned.items():
        for address in one.addresses:
            if address.scope == "global":
                owners.setdefault(address.address, []).append(host)
    machines = {host: fleet[host].identity for host in planned}
    for text, hosts in owners.items():
        identities = {who.nccl_host_hash for host in hosts if (who := machines[host])}
        if len(hosts) > 1 and len(identities) > 1:  # else they are one host under two names
            yield TWICE.found(f"{fold(hosts)} have the address {text}", subject=text)


def _named(found: Iterable[Finding], planned: Mapping[str, Interface]) -> Iterator[Finding]:
    """The remedy with the interface's name, where it is one."""
    for finding in found:
        names = {one.name for host, one in planned.items() if finding.host in (host, None)}
        yield replace(finding, remedy=finding.remedy.replace("IFACE", names.pop())) if len(names) == 1 else finding


def _subnets(interface: Interface) -> set[str]:
    """IPv4 subnets, else those of IPv6."""
    found = {subnet(a.address, a.prefix) for a in interface.addresses if a.scope == "global"}
    return {text for text in found if ":" not in text} or found


@check(ONE_SUBNET)
def subnets_apart(host: str, network: Network, job: Job) -> Results:
    """No other interface is in the subnet of the plan's interface."""
    planned = job.interface_of(host, network)
    if planned is None or network.sysctls.get("net.ipv4.conf.all.arp_ignore", "0") != "0":
        return
    own = {text for text in _subnets(planned) if ":" not in text}
    for other in network.interfaces:
        if other is not planned and usable(other) and own & _subnets(other):
            yield ONE_SUBNET.found(
                f"{planned.name} and {other.name} are both in {listed(own & _subnets(other))}", subject=other.name
            )


@check(EPHEMERAL, BACKLOG)
def rendezvous_settings(host: str, network: Network, job: Job) -> Results:
    """The rendezvous port is safe from short-lived connections, and the listen backlog takes all ranks."""
    if host != job.first:
        return
    if job.port is not None and network.ephemeral_range is not None:
        low, high = network.ephemeral_range
        reserved = network.sysctls.get("net.ipv4.ip_local_reserved_ports", "")
        if low <= job.port <= high and not _in_ranges(job.port, reserved):
            yield EPHEMERAL.found(
                f"port {job.port} lies in the ephemeral range {low} to {high}",
                subject=f"port {job.port}",
                remedy=EPHEMERAL.remedy.replace("PORT", str(job.port)),
            )
    if network.somaxconn is not None and network.somaxconn < job.world:
        yield BACKLOG.found(
            f"somaxconn is {network.somaxconn} for {job.world} ranks",
            severity=ERROR if job.world > 4 * network.somaxconn else WARNING,
            subject="net.core.somaxconn",
        )


def _in_ranges(port: int, text: str) -> bool:
    """`29500,30000-30010`."""
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        if low.strip().isdigit() and int(low) <= port <= int(high or low):
            return True
    return False


@check(TAKEN)
def rendezvous_port_free(host: str, facts: HostFacts, listeners: tuple[Listener, ...], job: Job) -> Results:
    """Nothing else listens on the rendezvous port."""
    if host != job.first or job.port is None:
        return
    ours = job.pids(facts)
    for one in listeners:
        if one.port == job.port and one.pid not in ours:
            who = (
                f"{one.command or 'a process'} (pid {one.pid}, {one.user or 'unknown user'})" if one.pid else "someone"
            )
            left = next((p.run_mark for p in facts.processes or () if p.pid == one.pid and p.run_mark), None)
            run = f", of the nvrun run {left}" if left else ""
            yield TAKEN.found(f"port {job.port} is taken by {who}{run}", subject=f"port {job.port}")


@check(NEIGHBOURS, CONNTRACK)
def kernel_tables(network: Network, job: Job) -> Results:
    """Neighbour and connection tables have room for the job."""
    room = _number(network, "net.ipv4.neigh.default.gc_thresh3")
    cards = sum(1 for one in network.interfaces if usable(one) and _subnets(one)) or 1
    needed = 2 * len(job.hosts) * cards
    if room is not None and len(job.hosts) > 1 and room < needed:
        yield NEIGHBOURS.found(f"gc_thresh3 is {room}, {len(job.hosts)} hosts need {needed}", expected=str(needed))
    count, most = (_number(network, f"net.netfilter.nf_conntrack_{what}") for what in ("count", "max"))
    if count is not None and most and count >= 0.8 * most:
        yield CONNTRACK.found(f"{count} of {most} tracked connections are in use")


@check(DROPS, QUEUES, BUFFERS)
def sockets_fast(host: str, network: Network, job: Job) -> Results:
    """Packets are not dropped, and queues and buffers fit a fast network, where the job runs over sockets."""
    planned = job.interface_of(host, network)
    if planned is None or job.uses_rdma(host):
        return
    if network.softnet_dropped and network.softnet_dropped >= 1000:
        backlog = network.sysctls.get("net.core.netdev_max_backlog", "unknown")
        yield DROPS.found(
            f"{network.softnet_dropped} received packets were dropped since boot (netdev_max_backlog is {backlog})",
            severity=WARNING if network.softnet_dropped >= 100_000 else INFO,
        )
    speed = planned.speed_mbit or 0
    idle = not (planned.rps_cpus or "").strip("0,")
    if speed >= 10_000 and planned.rx_queues == 1 and idle and planned.pci:
        yield QUEUES.found(
            f"{planned.name} has one receive queue and no RPS",
            subject=planned.name,
            remedy=QUEUES.remedy.replace("IFACE", planned.name),
        )
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        most = (network.sysctls.get(name) or "").split()[-1:]
        if speed >= 25_000 and most and most[0].isdigit() and int(most[0]) < 16 * 10**6:
            yield BUFFERS.found(f"{name} allows {size(int(most[0]))}, {size(16 * MIB)} are wanted", subject=name)


def _number(network: Network, name: str) -> int | None:
    text = network.sysctls.get(name, "")
    return int(text) if text.isdigit() else None
