"""What hosts measured between each other, judged."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun.checks import connections
from nvrun.checks.blame import Edge
from nvrun.checks.connections import Latency, Rate, Tried
from nvrun.model import Severity

HOSTS = ("a", "b", "c", "d")
ADDRESSES = {host: f"10.0.0.{number}" for number, host in enumerate(HOSTS, start=1)}
RANGES = dict.fromkeys(HOSTS, (32768, 60999))
PORTS = ("33000", "40000", "47000", "55000")
WELL = Tried(ports=dict.fromkeys(PORTS, ""), push=("", 0.001), mtu=(1500, 1500, ""))


def mesh(changed: Mapping[Edge, Tried] | None = None) -> dict[Edge, Tried]:
    return {(a, b): (changed or {}).get((a, b), WELL) for a in HOSTS for b in HOSTS if a != b}


def to_b(tried: Tried) -> dict[Edge, Tried]:
    return mesh({(host, "b"): tried for host in HOSTS})


def around(host: str, tried: Tried) -> dict[Edge, Tried]:
    return mesh({edge: tried for other in HOSTS for edge in ((host, other), (other, host))})


def test_healthy_hosts_give_nothing() -> None:
    tried = mesh()
    assert connections.ports(tried, ADDRESSES, RANGES) == []
    assert [*connections.stalls(tried), *connections.path_mtu(tried)] == []
    assert connections.without_udp(tried) == []


def test_a_closed_range_names_the_host_its_ports_and_the_range_to_open() -> None:
    (found,) = connections.ports(to_b(Tried(ports=dict.fromkeys(PORTS, "ETIMEDOUT"))), ADDRESSES, RANGES)
    assert (found.code, found.host) == ("port-dropped", "b")
    assert "10.0.0.2, on any of its ports 33000, 40000, 47000, 55000" in found.message
    assert "--add-port=32768-60999/tcp" in found.remedy


def test_a_range_that_is_open_in_part_says_which_ports_are_closed() -> None:
    part = Tried(ports={**dict.fromkeys(PORTS, ""), "55000": "ECONNREFUSED"})
    (found,) = connections.ports(to_b(part), ADDRESSES, RANGES)
    assert (found.code, found.host) == ("port-rejected", "b")
    assert "port 55000 (of 33000, 40000, 47000, 55000)" in found.message


def test_another_machine_at_the_address_is_told_as_that() -> None:
    (found,) = connections.ports(to_b(Tried(ports={"33000": "WRONGHOST"})), ADDRESSES, RANGES)
    assert (found.code, found.host) == ("address-answered-by-other", "b")
    assert "two machines have the address" in found.remedy


def test_a_full_neighbour_table_is_its_hosts_and_no_firewall() -> None:
    """b has no room for c and d, so that what they send it is not answered either."""
    failing = {
        ("b", "c"): "NEIGHBOURSFULL",
        ("b", "d"): "NEIGHBOURSFULL",
        ("c", "b"): "ETIMEDOUT",
        ("d", "b"): "ETIMEDOUT",
    }
    tried = {(a, b): Tried(ports=dict.fromkeys(PORTS, failing.get((a, b), ""))) for a in HOSTS for b in HOSTS if a != b}
    (found,) = connections.ports(tried, ADDRESSES, RANGES)
    assert (found.code, found.host) == ("neighbour-table-full", "b")
    assert "no answer from c,d" in found.message or "no answer from [c-d]" in found.message, found.message
    assert "gc_thresh3" in found.remedy
    tried["a", "c"] = Tried(ports=dict.fromkeys(PORTS, "ETIMEDOUT"))
    assert {each.code for each in connections.ports(tried, ADDRESSES, RANGES)} == {
        "neighbour-table-full",
        "port-dropped",
    }


def test_a_full_neighbour_table_tells_nothing_of_another_subnet() -> None:
    """d lies behind a gateway, which a has in its table; b has not even room for that."""
    subnets = {**dict.fromkeys(HOSTS, "10.0.0.0/24"), "d": "10.0.1.0/24"}
    failing = {("a", "d"): "NEIGHBOURSFULL"}
    tried = {(a, b): Tried(ports=dict.fromkeys(PORTS, failing.get((a, b), ""))) for a in HOSTS for b in HOSTS if a != b}
    assert [each.code for each in connections.ports(tried, ADDRESSES, RANGES, subnets)] == ["no-route"]
    for edge in (("b", "a"), ("b", "d")):
        tried[edge] = Tried(ports=dict.fromkeys(PORTS, "NEIGHBOURSFULL"))
    tried["d", "b"] = Tried(ports=dict.fromkeys(PORTS, "ETIMEDOUT"))
    found = connections.ports(tried, ADDRESSES, RANGES, subnets)
    assert [each.code for each in found] == ["neighbour-table-full", "no-route"]
    assert "no answer from a" in found[0].message
    assert "a cannot reach d" in found[1].message


def test_a_black_hole_is_one_finding_with_its_size() -> None:
    hole = Tried(ports=WELL.ports, push=("STALLED", 1.5), mtu=(1500, 1400, ""))
    tried = around("b", hole)
    (stalls,) = connections.stalls(tried)
    assert (stalls.code, stalls.host, stalls.severity) == ("connection-stalls", "b", Severity.FATAL)
    assert "packets over 1400 bytes vanish" in stalls.message
    assert list(connections.path_mtu(tried)) == []


def test_a_black_hole_for_datagrams_only_is_a_warning() -> None:
    tried = around("b", Tried(ports=WELL.ports, push=("", 0.01), mtu=(9000, 1500, "")))
    (found,) = connections.path_mtu(tried)
    assert (found.code, found.host, found.severity) == ("mtu-black-hole", "b", Severity.WARNING)
    assert list(connections.stalls(tried)) == []


def test_a_size_that_the_own_kernel_refuses_is_told_as_that() -> None:
    own = Tried(ports=WELL.ports, push=("", 0.01), mtu=(1500, 1280, "EMSGSIZE"))
    (found,) = connections.path_mtu(mesh({("c", host): own for host in HOSTS}))
    assert found.host == "c"
    assert "refused by the sender's own kernel" in found.message


def test_no_udp_at_all_is_not_a_fault_but_unknown() -> None:
    deaf = around("b", Tried(ports=WELL.ports, push=("", 0.01), mtu=(1500, 0, "")))
    assert list(connections.path_mtu(deaf)) == []
    assert len(connections.without_udp(deaf)) == 6


def pairs(values: Mapping[str, float], least: Mapping[str, float] | None = None) -> list[Latency]:
    """Medians and quick round trips of all pairs, by the worse of their hosts."""
    quick = least or {}
    return [
        Latency(
            pair=(a, b),
            p10=max(quick.get(a, 5.0), quick.get(b, 5.0)),
            p50=max(values.get(a, 12.0), values.get(b, 12.0)),
            p99=5000.0,
        )
        for at, a in enumerate(HOSTS)
        for b in HOSTS[at + 1 :]
    ]


def test_latency_outlier_is_named_and_healthy_pairs_are_not() -> None:
    assert list(connections.latency(pairs({}), {}, bare_metal=True)) == []
    (found,) = connections.latency(pairs({"c": 180.0}, {"c": 140.0}), {}, bare_metal=False)
    assert (found.code, found.host, found.severity) == ("latency-outlier", "c", Severity.WARNING)
    assert found.observed == "140 µs"
    assert list(connections.latency(pairs({"c": 180.0}), {}, bare_metal=False)) == [], "it waited for a CPU there"


def test_a_cloud_is_refused_only_where_bare_metal_was_asked_for() -> None:
    cloud = pairs(dict.fromkeys(HOSTS, 90.0))
    assert list(connections.latency(cloud, {}, bare_metal=False)) == []
    found = list(connections.latency(cloud, {}, bare_metal=True))
    assert {each.code for each in found} == {"latency-high"}
    assert {each.severity for each in found} == {Severity.ERROR}


def test_what_waited_for_a_cpu_is_not_judged_on_a_busy_host() -> None:
    busy = {"c": "9 processes want its 2 CPUs"}
    assert list(connections.latency(pairs({"c": 4000.0}), busy, bare_metal=True)) == []
    assert list(connections.bandwidth([Rate(pair=("a", "c"), gbps=0.1)], busy, {"a": 10.0, "c": 10.0})) == []


def test_one_slow_cable_names_its_host() -> None:
    rates = [Rate(pair=(a, b), gbps=0.9 if "d" in (a, b) else 9.4) for a in HOSTS for b in HOSTS if a != b]
    (found,) = connections.bandwidth(rates, {}, {})
    assert (found.code, found.host) == ("bandwidth-low", "d")


def test_an_interface_that_promises_more_than_it_gives() -> None:
    speeds = {"a": 100.0, "b": 100.0}
    assert list(connections.bandwidth([Rate(pair=("a", "b"), gbps=9.0)], {}, speeds)) == []
    (found,) = connections.bandwidth([Rate(pair=("a", "b"), gbps=0.9)], {}, speeds)
    assert found.code == "bandwidth-low"


def test_silence_after_words_tells_a_black_hole_from_a_hung_host() -> None:
    hole = connections.fallen_silent("b", 5.0, {"here": (1500, 1400)})
    hung = connections.fallen_silent("b", 5.0, {"here": (1500, 1500)})
    cut = connections.fallen_silent("b", 5.0, {"here": (1500, 0)})
    assert [each.code for each in (hole, hung, cut)] == ["connection-stalls", "host-falls-silent", "host-falls-silent"]
    assert "over 1400 bytes" in hole.message
    assert hung.message != cut.message
