"""The recorded machines in tests/data/facts: up to date, readable, and nobody's real host."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nvrun import facts

FOLDER = Path(__file__).parents[2] / "data" / "facts"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_facts", FOLDER / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_facts"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def test_files_are_what_make_py_writes(make: ModuleType) -> None:
    for name, build in make.MACHINES.items():
        assert (FOLDER / f"{name}.json").read_bytes() == facts.to_json(build()) + b"\n", f"{name}: run make.py"
    assert {path.stem for path in FILES} == {*make.MACHINES, "cpu_host", "h200x2_vm"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_facts_agree_with_themselves(path: Path) -> None:
    (host,) = facts.from_json(path.read_bytes())
    assert host.cpus is not None
    assert host.numa is not None
    assert host.gpus is not None
    assert host.pci is not None
    nodes = {node.node: node for node in host.numa}
    for cpu in host.cpus.online:
        assert cpu.cpu in cpu.core
        assert cpu.node is not None
        assert cpu.cpu in nodes[cpu.node].cpus
    for node in host.numa:
        assert set(node.distances) == set(nodes) - {node.node}
    devices = {device.address: device for device in host.pci}
    for gpu in host.gpus:
        assert devices[gpu.pci].path[-1] == gpu.pci
        assert devices[gpu.pci].numa_node == gpu.numa_node
    assert len({device.path for device in host.pci}) == len(host.pci)
    for port in host.rdma or ():
        assert port.pci in devices


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_real_identity(path: Path) -> None:
    text = path.read_text()
    private = r"^(10\.|192\.0\.2\.|127\.|0\.|255\.)"
    for address in re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", re.sub(r'"(?:firmware|cudnn)": "[^"]*"', "", text)):
        assert re.match(private, address), address
    for mac in re.findall(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", text):
        assert mac.startswith(("02:", "00:00:00:00:00:00")), mac
    assert "serial" not in text.lower()
