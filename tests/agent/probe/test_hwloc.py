"""Recorded machines beside the checkout: CPUs, NUMA nodes and PCI locality agree with hwloc's lstopo."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvrun.agent.probe import cpu, pci
from nvrun.agent.probe.tree import Tree, parse_mask

RECORDED = sorted((Path(__file__).parents[4] / "shared" / "corpus" / "sysfs").glob("*.tar.bz2"))
LSTOPO = shutil.which("lstopo-no-graphics")

READ = re.compile(
    r"/proc/|/dev/|/system/cpu/(online|cpu\d+/(online|topology/\w+))$|/system/node/(online|node\d+/[a-z]+)$"
    r"|/bus/pci/devices/|/(class|vendor|device|config|numa_node|local_cpus|local_cpulist)$"
)
"""What hwloc and nvrun read of a tree; the rest is thousands of files and takes seconds to unpack."""

pytestmark = [
    pytest.mark.skipif(not RECORDED, reason="no recorded machines beside the checkout"),
    pytest.mark.skipif(LSTOPO is None, reason="hwloc is not installed"),
]


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.name.partition(".")[0])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tree, ET.Element]]:
    folder = tmp_path_factory.mktemp("sysfs")
    with tarfile.open(request.param) as archive:
        wanted = [member for member in archive if READ.search(member.name) and not member.isdir()]
        archive.extractall(folder, members=wanted, filter="tar")
    (root,) = folder.iterdir()
    env = {**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0", "HWLOC_KEEP_NVIDIA_GPU_NUMA_NODES": "1"}
    command = [LSTOPO or "", "--of", "xml", "--whole-system", "--whole-io"]
    xml = subprocess.run(command, env=env, capture_output=True, check=True).stdout
    yield Tree(str(root)), ET.fromstring(xml)
    shutil.rmtree(folder)


def objects(root: ET.Element, kind: str) -> list[ET.Element]:
    return [entry for entry in root.iter("object") if entry.get("type") == kind]


def cpuset(entry: ET.Element) -> list[int]:
    """hwloc's set as the list that it is; hwloc leaves out empty words."""
    words = (word.removeprefix("0x") or "0" for word in entry.attrib["cpuset"].split(","))
    return parse_mask(",".join(words))


def test_cpus_and_their_cores(recorded: tuple[Tree, ET.Element]) -> None:
    tree, truth = recorded
    cpus = {entry["cpu"]: entry["core"] for entry in cpu.cpus(tree)["online"]}
    assert sorted(cpus) == sorted(int(entry.attrib["os_index"]) for entry in objects(truth, "PU"))
    running = set(cpus)
    for core in objects(truth, "Core"):
        for number in cpuset(core):
            assert [sibling for sibling in cpus[number] if sibling in running] == cpuset(core)


def test_numa_nodes_and_their_cpus(recorded: tuple[Tree, ET.Element]) -> None:
    tree, truth = recorded
    expected = {int(entry.attrib["os_index"]): cpuset(entry) for entry in objects(truth, "NUMANode")}
    found = {node["node"]: node["cpus"] for node in cpu.numa(tree)}
    assert sorted(found) == sorted(expected)
    for node, cpus in found.items():
        if cpus:  # a node without CPUs hangs in hwloc's tree at the CPUs it is near to
            assert cpus == expected[node]


def test_distances(recorded: tuple[Tree, ET.Element]) -> None:
    tree, truth = recorded
    for matrix in truth.iter("distances2"):
        if matrix.get("type") != "NUMANode":
            continue
        nodes = [int(word) for index in matrix.iter("indexes") for word in (index.text or "").split()]
        values = [int(word) for value in matrix.iter("u64values") for word in (value.text or "").split()]
        found = {node["node"]: node["distances"] for node in cpu.numa(tree)}
        for row, node in enumerate(nodes):
            expected = dict(zip(nodes, values[row * len(nodes) :], strict=False))
            expected.pop(node)
            assert found[node] == expected


def test_pci_locality(recorded: tuple[Tree, ET.Element]) -> None:
    """A device's node is the one whose CPUs hwloc hangs it at; none where those are no single node's."""
    tree, truth = recorded
    parents = {child: parent for parent in truth.iter() for child in parent}

    def near(entry: ET.Element) -> set[int]:
        while "cpuset" not in entry.attrib:
            entry = parents[entry]
        return set(cpuset(entry))

    nodes = {node["node"]: set(node["cpus"]) for node in cpu.numa(tree)}
    devices = {device["address"]: device["numa_node"] for device in pci.devices(tree)}
    for entry in objects(truth, "PCIDev"):
        address = entry.attrib["pci_busid"]
        same = [node for node, cpus in nodes.items() if cpus == near(entry)]
        if address in devices:
            assert devices[address] == (same[0] if len(same) == 1 else None), address
