"""Networks between two hosts, the best first."""

from __future__ import annotations

from nvrun.checks import fabric
from tests.checks.fleets import fleet, gpu, with_


def test_ways_are_ranked() -> None:
    one, other = fleet("h100x8", 2).values()
    ways = fabric.between(one, other)
    assert [way.kind for way in ways] == ["InfiniBand", "RoCE", "Ethernet", "Ethernet"]
    assert str(ways[0]) == "InfiniBand, 3200 Gb/s over 8"


def test_the_poorer_host_gives_the_rate() -> None:
    one, other = fleet("h100x8", 2).values()
    half = with_(other, rdma=tuple(port for port in other.rdma or () if port.device in ("mlx5_0", "mlx5_3")))
    assert str(fabric.between(one, half)[0]) == "InfiniBand, 800 Gb/s over 2"


def test_nvlink_goes_before_all_within_one_clique() -> None:
    one, other = (gpu(0, fabric_clique="ab.1")(facts) for facts in fleet("gh200", 2).values())
    assert fabric.between(one, other)[0].kind == "NVLink"


def test_hosts_that_share_nothing_have_no_way() -> None:
    one, other = fleet("h100x8", 2).values()
    assert fabric.between(one, with_(other, rdma=(), network=None)) == ()
