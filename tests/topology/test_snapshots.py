"""What a user is shown of each machine: its tree, and where each rank goes.

`NVRUN_SNAPSHOTS=write pytest tests/topology` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvrun.binding import Bound, bind
from nvrun.facts import HostFacts, from_json
from nvrun.numactl import prefix
from nvrun.topology import as_facts, from_facts, from_matrix, tree
from nvrun.topology.cpus import format_cpulist

RECORDED = sorted((Path(__file__).parents[1] / "data" / "facts").glob("*.json"))
Snapshot = Callable[[str, str], None]


def plan(bound: Bound, facts: HostFacts) -> Iterator[str]:
    for b in bound.bindings:
        gpu = f"GPU{b.gpu_index}" if b.gpu_index is not None else "no GPU"
        cpus = f"CPUs {format_cpulist(b.cpus)}" if b.cpus else "any CPU"
        memory = f"{b.memory} memory {b.memory_node}" if b.memory else "any memory"
        yield "  ".join((f"rank {b.local_rank}", gpu, cpus, memory, ",".join(b.nics[:2]) or "no NIC", f"({b.why})"))
    placed = prefix(bound.bindings[0], facts)
    if placed.argv or placed.affinity:
        yield f"rank 0: {' '.join(placed.argv) or f'affinity {format_cpulist(placed.affinity)}; {placed.missing}'}"
    for finding in bound.findings:
        yield f"{finding.severity.label} {finding.code}: {finding.message}"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_machines(path: Path, snapshot: Snapshot) -> None:
    (facts,) = from_json(path.read_bytes())
    bound = bind(facts, local_ranks=len(facts.gpus or ()) or 2, env={})
    snapshot(path.stem, "\n".join([*tree(from_facts(facts), path.stem), "", *plan(bound, facts)]) + "\n")


def test_machines_of_a_matrix(machine: Any, snapshot: Snapshot, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    topology = from_matrix(machine.text())
    facts = as_facts(topology, name)
    bound = bind(facts, local_ranks=len(topology.gpus), env={}, topology=topology)
    snapshot(f"matrix-{name}", "\n".join([*tree(topology, name), "", *plan(bound, facts)]) + "\n")
