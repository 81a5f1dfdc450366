"""The most that links can carry, from the facts: what a measured bus bandwidth is a percentage of. Pure.

Per rank and direction. Reductions inside the switch (NVLS, SHARP) send less than nccl-tests counts, and may pass 100 %.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvrun.bench.model import Collective, Scope
from nvrun.facts import Gpu, HostFacts
from nvrun.model import Frozen
from nvrun.topology.from_facts import from_facts
from nvrun.topology.interface import Peers, addresses, socket_interface
from nvrun.topology.nics import compute_nics

# GT/s a lane and what the line code leaves of it (PCI Express Base Specification).
_PCIE = {1: 2.5 * 8 / 10, 2: 5.0 * 8 / 10, 3: 8.0 * 128 / 130, 4: 16.0 * 128 / 130, 5: 32.0 * 128 / 130, 6: 64.0}


class Limit(Frozen, frozen=True, kw_only=True):
    """What the hardware allows one rank in one direction."""

    bytes_per_second: float | None
    """Bus bandwidth; None where it is not known."""
    why: str
    """`18 NVLinks x 26.6 GB/s`, or why there is none."""


def limit(collective: Collective, scope: Scope, hosts: Sequence[HostFacts], ranks_per_host: int) -> Limit:
    """The bus bandwidth that no algorithm without reductions in the switch can pass.

    `ranks_per_host` on each of `hosts`. Where the links differ, the slowest counts.
    """
    inside = _slowest([_inside(facts, ranks_per_host) for facts in hosts])
    if scope == "node" or len(hosts) == 1:
        return inside
    outside = _slowest([_outside(facts, hosts) for facts in hosts])
    if outside.bytes_per_second is None:
        return outside
    across = scope == "across"
    share = _rank_share(collective, len(hosts), 1 if across else ranks_per_host)
    node = outside.bytes_per_second / (ranks_per_host if across else 1)
    network = Limit(bytes_per_second=node * share, why=outside.why)
    return network if across or ranks_per_host == 1 else _slowest([network, inside], unknown_counts=False)


def _rank_share(collective: Collective, nodes: int, local: int) -> float:
    """Bus bandwidth of a rank when its node's network is full: what nccl-tests counts for a rank over what must cross
    the node's border, both for one byte of the message."""
    world = nodes * local
    if collective in ("all_reduce", "all_gather", "reduce_scatter"):
        return ((world - 1) / world) / ((nodes - 1) / nodes)
    if collective == "all_to_all":
        return ((world - 1) / world) / (local * (world - local) / world)
    return 1.0


def _inside(facts: HostFacts, ranks: int) -> Limit:
    """Between the GPUs of one host: NVLink, else PCIe."""
    if ranks < 2:
        return Limit(bytes_per_second=None, why="one rank a host")
    if facts.gpus is None:
        return Limit(bytes_per_second=None, why=f"{facts.host}: GPUs not read ({facts.missing.get('gpus', 'unknown')})")
    if not facts.gpus:
        return Limit(bytes_per_second=None, why="ranks of a host meet in its memory: no link")
    return _slowest([_gpu(gpu) for gpu in facts.gpus])


def _gpu(gpu: Gpu) -> Limit:
    links = [link for link in gpu.nvlinks if link.active and link.remote_type in ("switch", "gpu", None)]
    if links:
        rates = [link.speed_mb_s for link in links if link.speed_mb_s]
        if len(rates) < len(links):
            return Limit(bytes_per_second=None, why=f"GPU {gpu.index}: the rate of its NVLinks was not read")
        return Limit(
            bytes_per_second=sum(rates) * 1e6, why=f"{len(rates)} NVLinks x {max(rates) / 1e3:.1f} GB/s a direction"
        )
    generation, width = gpu.pcie_gen_max, gpu.pcie_width
    if generation not in _PCIE or not width:
        return Limit(bytes_per_second=None, why=f"GPU {gpu.index}: its PCIe link was not read")
    return Limit(bytes_per_second=_PCIE[generation] * width / 8 * 1e9, why=f"PCIe gen {generation} x{width}")


def _outside(facts: HostFacts, hosts: Sequence[HostFacts]) -> Limit:
    """Out of one host: the sum of its RDMA ports for NCCL, else the interface of the sockets."""
    nics = compute_nics(from_facts(facts)).chosen if facts.rdma else ()
    rates = [nic.rate_gbps for nic in nics if nic.rate_gbps]
    if nics:
        if len(rates) < len(nics):
            return Limit(bytes_per_second=None, why=f"{facts.host}: the rate of a port was not read")
        why = f"{len(rates)} port{'s'[: len(rates) > 1]} x {max(rates):g} Gb/s a host"
        return Limit(bytes_per_second=sum(rates) * 1e9 / 8, why=why)
    name = socket_interface(facts, Peers({each.host: addresses(each) for each in hosts})).name
    there = facts.network.interfaces if facts.network else ()
    interface = next((each for each in there if each.name == name), None)
    if interface is None:
        return Limit(bytes_per_second=None, why=f"{facts.host}: which interface is used is not known")
    if interface.kind == "veth":
        return Limit(bytes_per_second=None, why=f"{name} is a veth pair: no wire, no rate")
    if not interface.speed_mbit or interface.speed_mbit < 1:
        return Limit(bytes_per_second=None, why=f"{facts.host}: {name} does not tell its rate")
    return Limit(
        bytes_per_second=interface.speed_mbit * 1e6 / 8, why=f"{name}, {interface.speed_mbit / 1e3:g} Gb/s a host"
    )


def _slowest(limits: Sequence[Limit], *, unknown_counts: bool = True) -> Limit:
    """The least; what is not known makes the whole not known, unless it is left out."""
    unknown = next((each for each in limits if each.bytes_per_second is None), None)
    if unknown is not None and unknown_counts:
        return unknown
    known = [each for each in limits if each.bytes_per_second is not None]
    return min(known, key=lambda each: each.bytes_per_second or 0.0) if known else limits[0]
