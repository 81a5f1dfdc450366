"""The network interface of one host through which the job's other hosts are reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from nvrun.facts import HostFacts, Interface, Network
from nvrun.model import Frozen

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpInterface: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class SocketInterface(Frozen, frozen=True, kw_only=True):
    """The interface for NCCL's and Gloo's sockets on one host."""

    name: str | None
    """None where none was found, or none is needed."""
    why: str
    unreached: tuple[str, ...] = ()
    """Peers that no address of this interface's network, and no route through it, leads to."""

    @property
    def nccl(self) -> str | None:
        """Value of NCCL_SOCKET_IFNAME: `=eth0`, exactly this name, not every name that begins so."""
        return f"={self.name}" if self.name else None

    @property
    def gloo(self) -> str | None:
        """Value of GLOO_SOCKET_IFNAME, which takes exact names only."""
        return self.name


def addresses(facts: HostFacts) -> tuple[str, ...]:
    """Global addresses of a host's interfaces that are up, as its peers may know it by."""
    interfaces = facts.network.interfaces if facts.network else ()
    return tuple(str(ip.ip) for interface in interfaces for ip in _networks(interface))


class _Reach(Frozen, frozen=True, kw_only=True):
    """The peers that one interface leads to."""

    interface: Interface
    near: frozenset[str]
    """By an address of one of its subnets."""
    routed: frozenset[str]
    """By the longest route to one of their addresses."""

    @property
    def all(self) -> frozenset[str]:
        return self.near | self.routed


def socket_interface(facts: HostFacts, peers: Mapping[str, Sequence[str]]) -> SocketInterface:
    """The interface that reaches most peers: by an address of the same subnet, else by the route to them.

    `peers`: other host -> its addresses (`addresses`). An address that this host has as well (docker0's, the same on
    every host) leads to no peer. Among equals: more peers by subnet, the interface of the default route, the faster.
    """
    network = facts.network
    if network is None:
        return SocketInterface(
            name=None, why=f"interfaces could not be read: {facts.missing.get('network', 'unknown')}"
        )
    if not peers:
        return SocketInterface(name=None, why="the job has one host")
    own = set(addresses(facts))
    there = {host: [ip for ip in map(_ip, known) if ip and str(ip) not in own] for host, known in peers.items()}
    default = {route.interface for route in network.routes if route.destination in ("0.0.0.0/0", "::/0")}
    reaches = [_reach(network, interface, there) for interface in network.interfaces if _networks(interface)]
    best = max(
        reaches,
        key=lambda r: (len(r.all), len(r.near), r.interface.name in default, r.interface.speed_mbit or 0),
        default=None,
    )
    if best is None or not best.all:
        return SocketInterface(name=None, why="no interface has a subnet or a route to a peer", unreached=tuple(peers))
    count = f"{len(best.all)} of {len(peers)} peers" if len(peers) > 1 else next(iter(peers))
    subnets = ", ".join(str(network.network) for network in _networks(best.interface))
    why = f"subnet {subnets} has {count}" if best.near == best.all else f"the route to {count} goes through it"
    return SocketInterface(
        name=best.interface.name, why=why, unreached=tuple(host for host in peers if host not in best.all)
    )


def _reach(network: Network, interface: Interface, peers: Mapping[str, Sequence[IpAddress]]) -> _Reach:
    subnets = [network.network for network in _networks(interface)]
    near = (host for host, ips in peers.items() if any(ip in subnet for ip in ips for subnet in subnets))
    routed = (host for host, ips in peers.items() if any(_route(network, ip) == interface.name for ip in ips))
    return _Reach(interface=interface, near=frozenset(near), routed=frozenset(routed))


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


def _ip(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _route(network: Network, ip: IpAddress) -> str | None:
    """The interface of the longest route to an address, the lowest metric first."""
    routes = list(_routes(network, ip))
    return max(routes)[2] if routes else None


def _routes(network: Network, ip: IpAddress) -> Iterator[tuple[int, int, str]]:
    for route in network.routes:
        try:
            destination = ipaddress.ip_network(route.destination, strict=False)
        except ValueError:
            continue
        if ip.version == destination.version and ip in destination:
            yield destination.prefixlen, -(route.metric or 0), route.interface
