"""Pairs without NVLink, and an order of GPUs along it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from nvrun.topology import Topology, from_matrix
from nvrun.topology.model import GpuPlace, both_ways, nvlinks_of
from nvrun.topology.nvlink import gpu_order, ranks_without_nvlink, without_nvlink


def test_a_cube_mesh_has_a_ring_of_nvlinks(machines: Any) -> None:
    topology = from_matrix(machines["v100x8-cube-mesh"].text())
    ring = gpu_order(topology)
    links = [nvlinks_of(topology.path(f"GPU{a}", f"GPU{b}")) for a, b in pairwise([*ring, ring[0]])]
    assert sorted(ring) == list(range(8))
    assert ring[0] == 0
    assert all(links)
    assert sum(links) >= 14  # two links between most neighbours
    (finding,) = ranks_without_nvlink(topology, range(8))
    assert finding.message.endswith("ranks 3 and 4 (GPU3, GPU4), 7 and 0 (GPU7, GPU0)")
    assert finding.remedy.startswith("--gpu-order nvlink")
    assert not list(ranks_without_nvlink(topology, ring))


def test_some_of_the_gpus(machines: Any) -> None:
    topology = from_matrix(machines["v100x8-cube-mesh"].text())
    assert gpu_order(topology, [0, 4, 1, 5]) == (0, 4, 5, 1)
    assert gpu_order(topology, []) == ()
    assert gpu_order(topology, [3]) == (3,)


def test_all_to_all_and_none_keep_the_order(machines: Any) -> None:
    for name in ("h100x8-smt", "v100x16", "pcie8-all-on-socket-0"):
        topology = from_matrix(machines[name].text())
        assert gpu_order(topology) == tuple(range(len(topology.gpus)))
        assert without_nvlink(topology) == ()
        assert not list(ranks_without_nvlink(topology, gpu_order(topology)))


@pytest.mark.parametrize("pairs", [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))])
def test_bridged_pairs_stay_together(pairs: Sequence[tuple[int, int]]) -> None:
    topology = Topology(
        source="facts",
        gpus=tuple(GpuPlace(name=f"GPU{index}", index=index) for index in range(4)),
        paths=both_ways({(f"GPU{a}", f"GPU{b}"): "NV4" for a, b in pairs}),
    )
    order = gpu_order(topology)
    assert {tuple(sorted(order[:2])), tuple(sorted(order[2:]))} == set(pairs)
    (finding,) = ranks_without_nvlink(topology, (0, 1, 2, 3))
    offered = f"--gpu-order nvlink lays the ranks along NVLink: GPUs {','.join(map(str, order))}"
    assert finding.remedy == (offered if pairs == ((0, 2), (1, 3)) else "")  # the others have half their ring already


def test_many_gpus_are_ordered_too() -> None:
    topology = Topology(
        source="facts",
        gpus=tuple(GpuPlace(name=f"GPU{index}", index=index) for index in range(16)),
        paths=both_ways({(f"GPU{at}", f"GPU{(at + 8) % 16}"): "NV2" for at in range(8)}),
    )
    assert gpu_order(topology)[:4] == (0, 8, 1, 9)
