"""The machines of machines.yaml, and how `nvidia-smi topo -m` prints them."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Machine:
    """One machine of machines.yaml."""

    gpus: list[tuple[int | None, str]]
    nics: Mapping[str, int | None]
    """Device -> its NUMA node; None where every GPU is SYS away."""
    ways: Mapping[frozenset[str], str]
    between_gpus: str | None

    @property
    def names(self) -> list[str]:
        return [f"GPU{index}" for index in range(len(self.gpus))] + list(self.nics)

    def way(self, one: str, other: str) -> str:
        if one == other:
            return "X"
        named = self.ways.get(frozenset((one, other)))
        if named or (self.between_gpus and one.startswith("GPU") and other.startswith("GPU")):
            return named or self.between_gpus or ""
        return "NODE" if self.node(one) is not None and self.node(one) == self.node(other) else "SYS"

    def node(self, name: str) -> int | None:
        return self.gpus[int(name[3:])][0] if name.startswith("GPU") else self.nics[name]

    def printed(self, *, numbered: bool = True, columns: int = 3) -> list[list[str]]:
        """Header and rows as words, the first word of the header empty; `columns`: how many of the last three."""
        shown = [f"NIC{list(self.nics).index(name)}" if numbered and name in self.nics else name for name in self.names]
        titles = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:columns]
        rows = [["", *shown, *titles]]
        for label, name in zip(shown, self.names, strict=True):
            tail: list[str] = []
            if name.startswith("GPU"):
                node, cpus = self.gpus[int(name[3:])]
                tail = [cpus, "N/A" if node is None else str(node), "N/A"][:columns]
            rows.append([label, *(self.way(name, other) for other in self.names), *tail])
        return rows

    def legend(self) -> str:
        lines = "".join(f"  NIC{at}: {name}\n" for at, name in enumerate(self.nics))
        return f"\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n{lines}"

    def text(self) -> str:
        """As the program prints it: tabs, a tab before the header."""
        return "\n".join("\t".join(row) for row in self.printed()) + "\n" + self.legend()


Machines: TypeAlias = Mapping[str, Machine]


def _machine(spec: Mapping[str, Any]) -> Machine:
    return Machine(
        gpus=[(node if isinstance(node, int) else None, str(cpus)) for node, cpus in spec["gpus"]],
        nics=spec.get("nics", {}),
        ways={frozenset(re.split("-", pair)): way for pair, way in spec.get("ways", {}).items()},
        between_gpus=spec.get("between_gpus"),
    )


def load() -> Machines:
    specs = yaml.safe_load((HERE / "machines.yaml").read_text())
    return {name: _machine(spec) for name, spec in specs.items()}


@pytest.fixture(scope="session")
def machines() -> Machines:
    return load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `machine` runs once for each machine of machines.yaml."""
    if "machine" in metafunc.fixturenames:
        found = load()
        metafunc.parametrize("machine", found.values(), ids=found)


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compares a text with snapshots/NAME.txt; `NVRUN_SNAPSHOTS=write` writes them anew."""

    def compare(name: str, text: str) -> None:
        path = HERE / "snapshots" / f"{name}.txt"
        if os.environ.get("NVRUN_SNAPSHOTS") == "write":
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run with NVRUN_SNAPSHOTS=write and read what it wrote"
        assert text.splitlines() == path.read_text().splitlines()

    return compare
