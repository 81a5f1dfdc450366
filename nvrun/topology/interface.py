"""The network interface of one host through which the job's other hosts are reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from nvrun.facts import HostFacts, Interface, Route
from nvrun.model import Frozen

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
IpInterface: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class SocketInterface(Frozen, frozen=True, kw_only=True):
    """The interface for NCCL's and Gloo's sockets on one host."""

    name: str | None
    """None where none was found, or none is needed."""
    why: str
    unreached: tuple[str, ...] = ()
    """Peers that no address of this interface's network, and no route through it, leads to."""


def addresses(facts: HostFacts) -> tuple[str, ...]:
    """Global addresses of a host's interfaces that are up, as its peers may know it by."""
    interfaces = facts.network.interfaces if facts.network else ()
    return tuple(str(ip.ip) for interface in interfaces for ip in _networks(interface))


class Peers:
    """All hosts of a job by their addresses. Answers are kept, since of a thousand hosts most ask the same. An address
    that several hosts have (docker0's, the same on every host) leads to none of them."""

    def __init__(self, known: Mapping[str, Sequence[str]]) -> None:
        """`known`: host -> its addresses (`addresses`)."""
        self.hosts = tuple(known)
        owners: dict[IpAddress, set[str]] = {}
        for host, texts in known.items():
            for text in texts:
                if ip := ip_address(text):
                    owners.setdefault(ip, set()).add(host)
        self._owner = {ip: next(iter(hosts)) for ip, hosts in owners.items() if len(hosts) == 1}
        self._within: dict[IpNetwork, frozenset[str]] = {}
        self._routed: dict[tuple[tuple[int, int, str, str], ...], Mapping[str, frozenset[str]]] = {}

    def within(self, subnet: IpNetwork) -> frozenset[str]:
        """Hosts with an address in it."""
        if subnet not in self._within:
            self._within[subnet] = frozenset(host for ip, host in self._owner.items() if ip in subnet)
        return self._within[subnet]

    def routed(self, routes: Sequence[Route]) -> Mapping[str, frozenset[str]]:
        """Interface -> hosts to one of whose addresses it is the longest route, the lowest metric first."""
        best_first = sorted(((_length(r), -(r.metric or 0), r.interface, r.destination) for r in routes), reverse=True)
        table = tuple(best_first)
        if table not in self._routed:
            networks = [(_network(destination), interface) for _, _, interface, destination in table]
            found: dict[str, set[str]] = {}
            for ip, host in self._owner.items():
                for network, interface in networks:
                    if network is not None and ip in network:
                        found.setdefault(interface, set()).add(host)
                        break
            self._routed[table] = {interface: frozenset(hosts) for interface, hosts in found.items()}
        return self._routed[table]


class _Reach(Frozen, frozen=True, kw_only=True):
    """The peers that one interface leads to."""

    interface: Interface
    near: frozenset[str]
    """By an address of one of its subnets."""
    all: frozenset[str]
    """By that, or by the longest route to one of their addresses."""


def socket_interface(facts: HostFacts, peers: Peers) -> SocketInterface:
    """The interface that reaches most of the other hosts: by an address of the same subnet, else by the route to them.

    Among equals: more peers by subnet, the interface of the default route, the faster.
    """
    network = facts.network
    if network is None:
        return SocketInterface(
            name=None, why=f"interfaces could not be read: {facts.missing.get('network', 'unknown')}"
        )
    others = [host for host in peers.hosts if host != facts.host]
    if not others:
        return SocketInterface(name=None, why="the job has one host")
    default = {route.interface for route in network.routes if route.destination in ("0.0.0.0/0", "::/0")}
    routed, own = peers.routed(network.routes), {facts.host}
    reaches: list[_Reach] = []
    for interface in network.interfaces:
        if subnets := _networks(interface):
            near = frozenset().union(*(peers.within(subnet.network) for subnet in subnets)) - own
            by_route = routed.get(interface.name, frozenset()) - own
            reaches.append(_Reach(interface=interface, near=near, all=near | by_route))
    best = max(
        reaches,
        key=lambda r: (len(r.all), len(r.near), r.interface.name in default, r.interface.speed_mbit or 0),
        default=None,
    )
    if best is None or not best.all:
        return SocketInterface(name=None, why="no interface has a subnet or a route to a peer", unreached=tuple(others))
    count = f"{len(best.all)} of {len(others)} peers" if len(others) > 1 else others[0]
    subnets_named = ", ".join(str(address.network) for address in _networks(best.interface))
    why = f"subnet {subnets_named} has {count}" if best.near == best.all else f"the route to {count} goes through it"
    return SocketInterface(
        name=best.interface.name, why=why, unreached=tuple(host for host in others if host not in best.all)
    )


def _networks(interface: Interface) -> list[IpInterface]:
    """Global addresses of an interface with their prefixes; none of one that is down, a loopback or part of a bond."""
    if not interface.up or interface.kind == "loopback" or interface.master is not None:
        return []
    found = (_ip_interface(f"{a.address}/{a.prefix}") for a in interface.addresses if a.scope == "global")
    return [address for address in found if address is not None]


def _ip_interface(text: str) -> IpInterface | None:
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def ip_address(text: str) -> IpAddress | None:
    """None where the text is a name or nothing that is known."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _network(text: str) -> IpNetwork | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _length(route: Route) -> int:
    """Prefix length; the address family is told by the network itself."""
    _, _, length = route.destination.partition("/")
    return int(length) if length.isdigit() else 0
