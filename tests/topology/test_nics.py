"""The NICs nearest to each GPU, and when NCCL must be told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nvrun.facts import HostFacts, RdmaPort, from_json
from nvrun.topology import Topology, from_facts
from nvrun.topology.model import GpuPlace, NicPlace, both_ways
from nvrun.topology.nics import compute_nics, hca_lists, nearest_nics, port_name

FACTS = Path(__file__).parents[1] / "data" / "facts"


def host(ways: dict[tuple[str, str], str], nics: Sequence[NicPlace], gpus: int = 2) -> Topology:
    return Topology(
        source="facts",
        gpus=tuple(GpuPlace(name=f"GPU{index}", index=index) for index in range(gpus)),
        nics=tuple(nics),
        paths=both_ways(ways),
    )


def nic(
    name: str, rate: float = 400, layer: str = "InfiniBand", *, active: bool = True, vf: bool = False, port: int = 1
) -> NicPlace:
    pci = f"0000:{int(name[5:]):02x}:00.0"
    return NicPlace(name=name, port=port, pci=pci, link_layer=layer, active=active, rate_gbps=rate, is_vf=vf)


BESIDE = {("GPU0", "mlx5_0"): "PIX", ("GPU1", "mlx5_1"): "PIX", ("GPU0", "mlx5_1"): "NODE", ("GPU1", "mlx5_0"): "NODE"}


def test_compute_ports_are_told_from_the_others() -> None:
    ways = BESIDE | {(g, f"mlx5_{n}"): way for n, way in {2: "NODE", 3: "PIX", 4: "PXB", 5: "PIX", 6: "PIX"}.items()
                     for g in ("GPU0", "GPU1")}  # fmt: skip
    others = [nic("mlx5_2"), nic("mlx5_3", 100), nic("mlx5_4", 400, "Ethernet"), nic("mlx5_5", active=False)]
    nics = compute_nics(host(ways, [nic("mlx5_1"), nic("mlx5_0"), *others, nic("mlx5_6", vf=True)]))
    assert [port_name(found) for found in nics.chosen] == ["mlx5_0:1", "mlx5_1:1"]
    assert nics.left_out == {
        "mlx5_2:1": "shares no PCIe switch with a GPU",
        "mlx5_3:1": "its rate is 100 Gb/s, that of the others 400",
        "mlx5_4:1": "its link layer is Ethernet, that of the others InfiniBand",
        "mlx5_5:1": "the port is not active",
        "mlx5_6:1": "a virtual function, and physical functions are here too",
    }
    assert nics.certain


def test_the_list_is_exact_and_only_where_nccl_would_go_wrong() -> None:
    good = host(BESIDE, [nic("mlx5_0"), nic("mlx5_1")])
    stray = host(BESIDE | {("GPU0", "mlx5_2"): "NODE"}, [nic("mlx5_0"), nic("mlx5_1"), nic("mlx5_2", 100)])
    assert hca_lists({"a": good, "b": good})["a"].value is None
    mixed = hca_lists({"a": good, "b": stray})
    assert mixed["a"].value == mixed["b"].value == "=mlx5_0:1,mlx5_1:1"
    assert mixed["a"].why == "as on b, where NCCL would take mlx5_2:1 too"
    assert mixed["b"].why == "NCCL would take mlx5_2:1 too: shares no PCIe switch with a GPU"


def test_hosts_with_unlike_numbers_of_ports_get_lists() -> None:
    two = host(BESIDE, [nic("mlx5_0"), nic("mlx5_1")])
    one = host(BESIDE, [nic("mlx5_0"), nic("mlx5_1", active=False)])
    lists = hca_lists({"a": two, "b": one})
    assert [lists[name].value for name in "ab"] == ["=mlx5_0:1,mlx5_1:1", "=mlx5_0:1"]
    assert lists["a"].why == "hosts have unlike numbers of compute ports: 1 and 2"


def test_nothing_is_set_where_nothing_tells_ports_apart() -> None:
    vague = host({("GPU0", "mlx5_0"): "PHB", ("GPU0", "mlx5_1"): "PHB"}, [nic("mlx5_0"), nic("mlx5_1", 100)])
    assert not compute_nics(vague).certain
    stated = host(BESIDE, [NicPlace(name="mlx5_0"), NicPlace(name="mlx5_1")])
    assert hca_lists({"a": stated})["a"].why == "which ports are active is not known"
    same = host({("GPU0", "mlx5_0"): "PHB", ("GPU0", "mlx5_1"): "PHB"}, [nic("mlx5_0"), nic("mlx5_1")])
    listed = hca_lists({"a": same})["a"]
    assert listed.value is None
    assert "nothing tells compute ports from others" in listed.why
    assert hca_lists({"a": host({}, [])})["a"].why == "no InfiniBand or RoCE port for NCCL"


def test_gpus_that_share_devices_spread_over_them() -> None:
    ways = {(f"GPU{g}", f"mlx5_{n}"): "PIX" for g in range(4) for n in range(4)}
    four = nearest_nics(host(ways, [nic(f"mlx5_{n}") for n in range(4)], gpus=4))
    assert [names[0] for names in four.values()] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    three = nearest_nics(host(ways, [nic(f"mlx5_{n}") for n in range(3)], gpus=4))
    assert [names[0] for names in three.values()] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_0"]


def test_a_gpu_without_a_near_device_takes_the_nearest() -> None:
    ways = {("GPU0", "mlx5_0"): "PIX", ("GPU1", "mlx5_0"): "NODE", ("GPU1", "mlx5_1"): "SYS", ("GPU0", "mlx5_1"): "PXB"}
    assert nearest_nics(host(ways, [nic("mlx5_0"), nic("mlx5_1")])) == {"GPU0": ("mlx5_0",), "GPU1": ("mlx5_0",)}
    shared = {("GPU0", "mlx5_0"): "PIX", ("GPU2", "mlx5_1"): "PIX"}
    shared |= {(f"GPU{g}", f"mlx5_{n}"): "NODE" for g in range(4) for n in range(2) if (g, n) not in ((0, 0), (2, 1))}
    assert nearest_nics(host(shared, [nic("mlx5_0"), nic("mlx5_1")], gpus=4))["GPU3"] == ("mlx5_0", "mlx5_1")
    assert nearest_nics(host({}, [nic("mlx5_0")])) == {"GPU0": (), "GPU1": ()}


def recorded(name: str) -> HostFacts:
    (facts,) = from_json((FACTS / f"{name}.json").read_bytes())
    return facts


def test_recorded_h100_has_eight_rails_and_storage_apart() -> None:
    topology = from_facts(recorded("h100x8"))
    assert nearest_nics(topology) == {
        f"GPU{gpu}": (f"mlx5_{device}",) for gpu, device in enumerate([0, 3, 4, 5, 6, 9, 10, 11])
    }
    listed = hca_lists({"a": topology})["a"]
    assert listed.value == "=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_9:1,mlx5_10:1,mlx5_11:1"
    assert "mlx5_1:1 and mlx5_7:1" in listed.why


def test_recorded_efa_is_left_to_its_plugin() -> None:
    topology = from_facts(recorded("efa_h100x8"))
    assert len(topology.nics) == 32
    assert hca_lists({"a": topology})["a"].value is None
    assert len(nearest_nics(topology)["GPU7"]) == 4


def test_both_ports_of_a_device_count() -> None:
    ports = tuple(
        RdmaPort(device="mlx5_0", port=port, link_layer="Ethernet", state=state, rate_gbps=100, pci="0000:01:00.0")
        for port, state in ((1, "ACTIVE"), (2, "DOWN"))
    )
    topology = from_facts(HostFacts(host="a", rdma=ports))
    assert [port_name(found) for found in compute_nics(topology).chosen] == ["mlx5_0:1"]
