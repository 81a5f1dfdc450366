"""NUMA listings and sysfs trees of real machines beside the checkout: every one gives a plan that holds together."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvrun.agent.probe import cpu
from nvrun.agent.probe.tree import Tree
from nvrun.binding import Bound, bind
from nvrun.facts import Cpu, Cpus, Gpu, HostFacts, NumaNode, decode
from nvrun.topology.cpus import parse_cpulist

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
LISTINGS = sorted([*CORPUS.glob("numa/numactl_*.txt"), *CORPUS.glob("numa/lscpu_*.txt")])
TREES = sorted(CORPUS.glob("sysfs/*.tar.bz2"))


def gpus(nodes: Sequence[int | None]) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=at, uuid=f"GPU-{at}", name="GPU", pci="", numa_node=node) for at, node in enumerate(nodes))


def listed(text: str) -> dict[int, tuple[int, ...]]:
    """NUMA node -> CPUs, from `numactl -H` or `lscpu`."""
    plain = re.findall(r"^node (\d+) cpus:(.*)$", text, re.MULTILINE)
    ranges = re.findall(r"NUMA node(\d+) CPU\(s\):\s+(\S+)", text)
    return {int(node): tuple(map(int, cpus.split())) for node, cpus in plain} | {
        int(node): parse_cpulist(cpus) for node, cpus in ranges
    }


def held_together(bound: Bound, nodes: dict[int, tuple[int, ...]], homes: Sequence[int]) -> None:
    used: set[int] = set()
    for binding, home in zip(bound.bindings, homes, strict=True):
        assert binding.cpus
        assert set(binding.cpus) <= set(nodes[home])
        assert binding.memory_node == home
        assert not used & set(binding.cpus)
        used |= set(binding.cpus)
    assert used == {cpu for node in set(homes) for cpu in nodes[node]}


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_two_gpus_on_every_node_of_a_listing(path: Path) -> None:
    nodes = {node: cpus for node, cpus in listed(path.read_text()).items() if cpus}
    assert nodes, "the listing names NUMA nodes"
    homes = [node for node in sorted(nodes, reverse=True) for _ in range(2)]
    online = tuple(Cpu(cpu=number, core=(number,), node=node) for node, cpus in nodes.items() for number in cpus)
    facts = HostFacts(
        host="a",
        gpus=gpus(homes),
        cpus=Cpus(online=online, allowed=tuple(sorted(entry.cpu for entry in online))),
        numa=tuple(NumaNode(node=node, cpus=cpus) for node, cpus in nodes.items()),
    )
    held_together(bind(facts, local_ranks=len(homes), env={}, mode="exclusive"), nodes, homes)


@pytest.mark.slow  # the largest archive takes seconds to read
@pytest.mark.parametrize("path", TREES, ids=lambda path: path.name.partition(".")[0])
def test_two_gpus_on_every_node_of_a_tree(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as archive:
        wanted = [m for m in archive if re.search(r"/system/(cpu|node)/", m.name) and not m.isdir()]
        archive.extractall(tmp_path, members=wanted, filter="tar")
    (root,) = tmp_path.iterdir()
    tree = Tree(str(root))
    cpus = {**cpu.cpus(tree), "allowed": cpu.online(tree)}  # the trees have no /proc/self/status
    facts = decode({"host": "a", "cpus": cpus, "numa": cpu.numa(tree)})
    nodes = {node.node: node.cpus for node in facts.numa or ()}
    homes = [node for node in sorted(nodes) if nodes[node] for _ in range(1 + (len(nodes[node]) > 1))]
    with_gpus = decode({"host": "a", "cpus": cpus, "numa": cpu.numa(tree), "gpus": [
        {"index": g.index, "uuid": g.uuid, "name": g.name, "pci": g.pci, "numa_node": g.numa_node} for g in gpus(homes)
    ]})  # fmt: skip
    held_together(bind(with_gpus, local_ranks=len(homes), env={}, mode="exclusive"), nodes, homes)
    spread = bind(facts, local_ranks=4, env={})
    masks = [set(binding.cpus) for binding in spread.bindings]
    assert all(not a & b for at, a in enumerate(masks) for b in masks[at + 1 :])
