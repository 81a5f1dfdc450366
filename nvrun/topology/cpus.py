"""CPU lists as the kernel writes them, and the cores and NUMA nodes of one host that a job may use."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from nvrun.facts import HostFacts
from nvrun.model import Frozen

Core: TypeAlias = tuple[int, ...]
"""The CPUs of one physical core (SMT siblings), sorted."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_LARGEST_CPU = 1 << 16
"""Beyond any kernel's NR_CPUS (8192 at most): a longer list is a typing error, not a machine."""


def format_cpulist(cpus: Iterable[int]) -> str:
    """CPUs as `/sys` and numactl write them: `0-15,64-79`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)


def parse_cpulist(text: str) -> tuple[int, ...]:
    """CPUs of a list such as `0-15,64-79`, sorted; ValueError says which part is not a number or a range."""
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= _LARGEST_CPU:
            raise ValueError(f"{part!r} is not a CPU number or a range such as 0-15")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


class CpuLayout(Frozen, frozen=True, kw_only=True):
    """The CPUs that the job may use on one host, by core and NUMA node."""

    cores: Mapping[int, tuple[Core, ...]]
    """Online NUMA node -> its cores, cut down to the allowed CPUs; a node without allowed CPUs has ()."""
    memory: tuple[int, ...]
    """Nodes that have memory and that the job may allocate on."""
    package: Mapping[int, int]
    """Node -> the socket that all its CPUs are on; nodes that span sockets are absent."""
    distances: Mapping[int, Mapping[int, int]]
    """Node -> other node -> SLIT distance, as far as it was read."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes with at least one allowed CPU."""
        return tuple(node for node in sorted(self.cores) if self.cores[node])

    def cpus(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Allowed CPUs of these nodes, sorted."""
        return tuple(sorted(cpu for node in nodes for core in self.cores[node] for cpu in core))

    def interleaved(self, nodes: Iterable[int]) -> list[Core]:
        """The cores of these nodes in an order of which every stretch holds each node's cores in proportion."""
        placed = [(at / len(self.cores[n]), n, core) for n in nodes for at, core in enumerate(self.cores[n])]
        return [core for _, _, core in sorted(placed)]

    def distance(self, one: int, other: int) -> int | None:
        """SLIT distance of two nodes; None where it was not read."""
        return 10 if one == other else self.distances.get(one, {}).get(other)

    def socket(self, node: int) -> tuple[int, ...]:
        """The nodes on this node's socket, itself included; itself alone where the socket is not known."""
        package = self.package.get(node)
        return tuple(n for n in self.nodes if n == node or (package is not None and self.package.get(n) == package))

    def nearest(self, node: int) -> tuple[int, ...]:
        """The nodes with allowed CPUs that are nearest to a node; () where no distance is known."""
        known = {n: d for n in self.nodes if (d := self.distance(node, n)) is not None}
        return tuple(n for n in sorted(known) if known[n] == min(known.values()))


def layout(facts: HostFacts) -> CpuLayout | None:
    """What the job may use of this host; None where its CPUs, the cpuset or the NUMA nodes could not be read."""
    if facts.cpus is None or not facts.cpus.allowed or not facts.numa:
        return None
    online = {cpu.cpu: cpu for cpu in facts.cpus.online}
    allowed = set(facts.cpus.allowed) & set(online) if online else set(facts.cpus.allowed)
    cores: dict[int, tuple[Core, ...]] = {}
    package: dict[int, int] = {}
    for node in facts.numa:
        in_node = set(node.cpus)
        siblings = {(online[cpu].core or (cpu,)) if cpu in online else (cpu,) for cpu in in_node}
        cut = {tuple(sorted(allowed.intersection(core) & in_node)) for core in siblings}
        cores[node.node] = tuple(sorted(core for core in cut if core))
        packages = {online[cpu].package for cpu in in_node if cpu in online}
        if len(packages) == 1 and (only := packages.pop()) is not None:
            package[node.node] = only
    memory = (n.node for n in facts.numa if n.memory_total != 0)
    return CpuLayout(
        cores=cores,
        memory=tuple(n for n in memory if not facts.cpus.allowed_nodes or n in facts.cpus.allowed_nodes),
        package=package,
        distances={node.node: node.distances for node in facts.numa},
    )


def share(cores: Sequence[Core], ranks: int) -> list[tuple[int, ...]]:
    """The CPUs of each rank: whole cores, neighbours together, as even as can be, the first ranks getting the rest."""
    size, rest = divmod(len(cores), ranks)
    starts = [rank * size + min(rank, rest) for rank in range(ranks + 1)]
    return [tuple(sorted(cpu for core in cores[a:b] for cpu in core)) for a, b in pairwise(starts)]


def spare_nodes(cpus: CpuLayout, ranks: Mapping[int, int], taken: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
    """Nodes of a socket that hold no GPU, handed to nodes of the same socket that do (node -> the nodes it gets).

    With several NUMA nodes a socket (AMD NPS2 and NPS4, Intel SNC) the GPUs hang on some of them and the CPUs of the
    others would lie idle. `ranks` counts the ranks of each node; `taken` are the nodes that any GPU of the host is on.
    A spare node goes to the nearest node, among equals to the one with the fewest cores per rank.
    """
    got: dict[int, tuple[int, ...]] = defaultdict(tuple)
    weight = {node: len(cpus.cores[node]) for node in ranks}
    for spare in (node for node in cpus.nodes if node not in set(taken) | set(ranks)):
        candidates = [node for node in cpus.socket(spare) if node in ranks]
        if not candidates:
            continue
        best = min(candidates, key=lambda n: (cpus.distance(spare, n) or 255, weight[n] / ranks[n], n))
        got[best] += (spare,)
        weight[best] += len(cpus.cores[spare])
    return got
