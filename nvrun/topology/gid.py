"""Which entry of a RoCE port's GID table NCCL is to use, where it does not find it itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nvrun.facts import HostFacts
from nvrun.nccl import parse
from nvrun.topology.model import NicPlace

_FINDS_IT = (2, 21)
"""NCCL that looks for the GID itself (net_ib.cc); before, it takes index 0, which is RoCE v1 on most hosts."""
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


def gid_index(facts: HostFacts, chosen: Sequence[NicPlace]) -> int | None:
    """The lowest index at which all RoCE ports among the chosen ones have a RoCE v2 GID of an IPv4 address.

    None where NCCL needs none (from 2.21, InfiniBand, a network plugin), where it is 0, NCCL's own choice, and where
    tables or versions were not read. Tables differ between hosts: the answer is this host's alone.
    """
    software = facts.software
    nccl = parse.version(software.nccl or "") if software else ()
    if software is None or software.nccl_net_plugins or not nccl or nccl >= _FINDS_IT:
        return None
    names = {(nic.name, nic.port) for nic in chosen}
    ports = [p for p in facts.rdma or () if (p.device, p.port) in names and p.link_layer == "Ethernet"]
    usable = [{gid.index for gid in port.gids if gid.type == "RoCE v2" and gid.gid.startswith(_IPV4)} for port in ports]
    common = set.intersection(*usable) if usable else set()
    return min(common, default=0) or None
