"""The interface that reaches the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nvrun.facts import Address, HostFacts, Interface, Network, Route
from nvrun.topology.interface import Peers, SocketInterface, addresses, socket_interface


def card(name: str, *cidrs: str, up: bool = True, kind: str = "ether", speed: int | None = 10000) -> Interface:
    pairs = (cidr.split("/") for cidr in cidrs)
    found = tuple(Address(address=address, prefix=int(prefix)) for address, prefix in pairs)
    return Interface(name=name, addresses=found, up=up, kind=kind, speed_mbit=speed)


def host(interfaces: Sequence[Interface], routes: Sequence[tuple[str, str]] = ()) -> HostFacts:
    found = tuple(Route(destination=destination, interface=name) for destination, name in routes)
    return HostFacts(host="a", network=Network(interfaces=tuple(interfaces), routes=found))


def chosen(facts: HostFacts, others: Mapping[str, Sequence[str]]) -> SocketInterface:
    return socket_interface(facts, Peers({facts.host: addresses(facts), **others}))


LOOPBACK = card("lo", "127.0.0.1/8", kind="loopback")


def test_the_interface_in_the_peers_subnet() -> None:
    facts = host([LOOPBACK, card("eth0", "192.168.1.5/24"), card("bond0", "10.0.0.5/16")])
    found = chosen(facts, {"b": ["10.0.3.9"], "c": ["10.0.4.9", "172.17.0.1"]})
    assert found.name == "bond0"
    assert found.why == "subnet 10.0.0.0/16 has 2 of 2 peers"
    assert found.unreached == ()


def test_docker0_leads_nowhere() -> None:
    facts = host([card("docker0", "172.17.0.1/16", kind="bridge"), card("eth0", "10.0.0.5/24")])
    assert addresses(facts) == ("172.17.0.1", "10.0.0.5")
    assert chosen(facts, {"b": ["172.17.0.1", "10.0.0.6"]}).name == "eth0"
    assert chosen(facts, {"b": ["172.17.0.1"]}).name is None


def test_among_equals_the_default_route_then_the_faster() -> None:
    cards = [card("ens1", "10.1.0.5/24", speed=400000), card("ens2", "10.0.0.5/24", speed=1000)]
    peers = {"b": ["10.0.0.6", "10.1.0.6"]}
    assert chosen(host(cards), peers).name == "ens1"
    assert chosen(host(cards, [("0.0.0.0/0", "ens2")]), peers).name == "ens2"


def test_by_route_where_no_subnet_fits() -> None:
    facts = host(
        [card("eth0", "10.0.0.5/24"), card("eth1", "10.9.0.5/24")],
        [("0.0.0.0/0", "eth0"), ("10.8.0.0/16", "eth1"), ("not a route", "eth0")],
    )
    found = chosen(facts, {"b": ["10.8.3.1"]})
    assert (found.name, found.why) == ("eth1", "the route to b goes through it")
    assert chosen(facts, {"b": ["10.7.0.1"]}).name == "eth0"


def test_who_is_not_reached_is_said() -> None:
    found = chosen(host([card("eth0", "10.0.0.5/24")]), {"b": ["10.0.0.6"], "c": ["10.5.0.6"], "d": ["junk"]})
    assert (found.name, found.unreached) == ("eth0", ("c", "d"))


def test_ipv6() -> None:
    facts = host([card("eth0", "fd00:1::5/64"), card("eth1", "fd00:2::5/64")])
    assert chosen(facts, {"b": ["fd00:2::6"]}).name == "eth1"


def test_interfaces_that_are_down_do_not_count() -> None:
    assert chosen(host([card("eth0", "10.0.0.5/24", up=False)]), {"b": ["10.0.0.6"]}).name is None


def test_one_host_and_unread_interfaces() -> None:
    assert chosen(host([]), {}).why == "the job has one host"
    unread = HostFacts(host="a", missing={"network": "no /sys"})
    assert chosen(unread, {"b": ["10.0.0.6"]}).why == "interfaces could not be read: no /sys"
