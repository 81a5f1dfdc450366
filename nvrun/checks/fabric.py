"""The network between hosts, named and ranked, and runs that would cross a slower one than the hosts have."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.checks.check import Results, fleet_check
from nvrun.checks.code import WARNING, declare, unread
from nvrun.checks.compare import listed
from nvrun.checks.job import Job, subnet, usable
from nvrun.facts import HostFacts, Interface
from nvrun.hosts.nodeset import fold
from nvrun.model import Frozen
from nvrun.nccl.parse import strtoll

RANKS = ("NVLink", "InfiniBand", "RoCE", "Ethernet")
"""Best first; within one kind the rate decides."""


class Fabric(Frozen, frozen=True, kw_only=True):
    """One way between two hosts."""

    kind: str
    """One of RANKS."""
    gbps: float | None = None
    """Sum over the ports of the poorer host; None where the rate is not known."""
    links: int = 1
    """Ports of the poorer host."""

    def __str__(self) -> str:
        rate = "" if self.gbps is None else f", {self.gbps:g} Gb/s" + (f" over {self.links}" if self.links > 1 else "")
        return self.kind + rate

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better."""
        return RANKS.index(self.kind), -(self.gbps or 0.0)


SLOWER = declare(
    "fabric-slower-than-possible",
    WARNING,
    "the job would cross a slower network than its hosts have",
    read="NVLink cliques, active RDMA ports, and interfaces with their subnets, of all hosts",
    why="multi-host training runs at the speed of the network it crosses",
    remedy="unset NCCL_IB_DISABLE and NCCL_NET; or NCCL_SOCKET_IFNAME of the faster interface",
    source="NCCL user guide, NCCL_IB_DISABLE, NCCL_NET, NCCL_SOCKET_IFNAME",
    depends="judged for jobs on GPUs",
    real=False,
)


def between(one: HostFacts, other: HostFacts) -> tuple[Fabric, ...]:
    """Ways between two hosts that their facts allow, the best first."""
    mine, theirs = _offers(one), _offers(other)
    shared = [max(mine[name], theirs[name], key=lambda way: way.rank) for name in mine if name in theirs]
    return tuple(sorted(shared, key=lambda way: way.rank))


def _offers(facts: HostFacts) -> dict[str, Fabric]:
    found: dict[str, Fabric] = {}
    for clique in {gpu.fabric_clique for gpu in facts.gpus or () if gpu.fabric_clique}:
        found[f"clique {clique}"] = Fabric(kind="NVLink")
    for layer, kind in (("InfiniBand", "InfiniBand"), ("Ethernet", "RoCE")):
        ports = [port for port in facts.rdma or () if port.link_layer == layer and port.state == "ACTIVE"]
        if ports:
            rates = [port.rate_gbps for port in ports if port.rate_gbps]
            found[layer] = Fabric(kind=kind, gbps=sum(rates) or None, links=len(ports))
    for interface in facts.network.interfaces if facts.network else ():
        for address in interface.addresses if usable(interface) else ():
            if address.scope == "global":
                speed = _gbps(interface)
                found[subnet(address.address, address.prefix)] = Fabric(kind="Ethernet", gbps=speed)
    return found


@fleet_check(SLOWER)
def fabric_best(fleet: Mapping[str, HostFacts], job: Job) -> Results:
    """The job crosses the best network that all its hosts have."""
    if not any(facts.gpus for facts in fleet.values()):
        return
    offers = {host: _offers(facts) for host, facts in fleet.items()}
    common = set.intersection(*(set(known) for known in offers.values()))
    planned = _planned(fleet, job)
    rdma = [name for name in common if name in ("InfiniBand", "Ethernet")]
    if rdma and not job.rdma and not any(name.startswith("clique") for name in common):
        causes = sorted({cause for facts in fleet.values() for cause in _turned_off(facts)})
        if causes:
            best = min((offers[host][name] for host in fleet for name in rdma), key=lambda way: way.rank)
            yield SLOWER.found(f"{best} is there, but {listed(causes)} sends the job over sockets", subject="network")
    elif unknown := [host for host, facts in fleet.items() if facts.rdma is None]:
        yield unread(f"RDMA ports of {fold(unknown)}: not read")
    elif not job.rdma and planned:
        slowest = min(planned.values())
        faster = [
            (min(offers[host][name].gbps or 0.0 for host in fleet), name)
            for name in common
            if all(offers[host][name].kind == "Ethernet" for host in fleet)
        ]
        rate, name = max(faster, default=(0.0, ""))
        if name and rate > slowest:
            yield SLOWER.found(
                f"the plan's interfaces run at {slowest:g} Gb/s, the hosts share {name} at {rate:g} Gb/s",
                subject="network",
            )


def _planned(fleet: Mapping[str, HostFacts], job: Job) -> dict[str, float]:
    """Rates in Gb/s of the interfaces in the plan, where they are known."""
    rates = {}
    for host, facts in fleet.items():
        interface = job.interface_of(host, facts.network) if facts.network else None
        if interface and (rate := _gbps(interface)):
            rates[host] = rate
    return rates


def _gbps(interface: Interface) -> float | None:
    """A virtual interface may say -1."""
    return interface.speed_mbit / 1000 if interface.speed_mbit and interface.speed_mbit > 0 else None


def _turned_off(facts: HostFacts) -> list[str]:
    env = facts.env or {}
    off = [f"NCCL_IB_DISABLE={env['NCCL_IB_DISABLE']}"] if strtoll(env.get("NCCL_IB_DISABLE", "")) else []
    return off + (["NCCL_NET=Socket"] if env.get("NCCL_NET", "").lower() == "socket" else [])
