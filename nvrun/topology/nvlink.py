"""GPUs and NVLink: which pairs have none, and an order of the GPUs in which neighbours have most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from nvrun.meanings import means
from nvrun.model import Finding, Severity
from nvrun.topology.model import Topology, nvlinks_of

PARTIAL = means(
    "nvlink-partial",
    "some GPUs of a host have no NVLink between them, and neighbouring ranks are among those",
    read="NVLink peers by NVML",
    why="exchanges between neighbouring ranks (pipeline stages) go over PCIe; NCCL's own rings are not concerned",
    remedy="an order of CUDA_VISIBLE_DEVICES that lays the ranks along NVLink",
    source="nvidia-smi topo -m",
)

_MOST_EXACT = 10
"""Rings up to this many GPUs are searched through (n² 2ⁿ steps); beyond, each GPU takes its best neighbour."""


def without_nvlink(topology: Topology) -> tuple[tuple[str, str], ...]:
    """Pairs of GPUs without NVLink on a host where some pairs have it; () where all have it or none."""
    pairs = list(combinations((gpu.name for gpu in topology.gpus), 2))
    apart = tuple(pair for pair in pairs if not nvlinks_of(topology.path(*pair)))
    return apart if len(apart) < len(pairs) else ()


def ranks_without_nvlink(topology: Topology, order: Sequence[int], host: str | None = None) -> Iterator[Finding]:
    """Names neighbouring ranks without NVLink where NVLink is not all to all; `order`: GPU indices, rank by rank."""
    lacking = _gaps(topology, order) if without_nvlink(topology) else []
    if not lacking:
        return
    best = gpu_order(topology, sorted(order))
    better = len(_gaps(topology, best)) < len(lacking)
    pairs = ", ".join(f"{a} and {b} (GPU{order[a]}, GPU{order[b]})" for a, b in lacking)
    yield Finding(
        code=PARTIAL,
        severity=Severity.INFO,
        host=host,
        subject="NVLink",
        message=f"NVLink is not all to all: no link between the neighbouring ranks {pairs}",
        remedy=f"--gpu-order nvlink lays the ranks along NVLink: GPUs {','.join(map(str, best))}" if better else "",
    )


def _gaps(topology: Topology, order: Sequence[int]) -> list[tuple[int, int]]:
    """Places in an order of which this and the next, in a ring, have no NVLink between their GPUs."""
    ring = [(at, (at + 1) % len(order)) for at in range(len(order) if len(order) > 2 else len(order) - 1)]
    return [(a, b) for a, b in ring if not nvlinks_of(topology.path(f"GPU{order[a]}", f"GPU{order[b]}"))]


def gpu_order(topology: Topology, indices: Sequence[int] | None = None) -> tuple[int, ...]:
    """GPU indices (these, or all) in an order in which each has NVLink to the next, and the last to the first.

    Pipeline stages and other exchanges between neighbouring ranks then run over NVLink (NCCL finds its own rings).
    As far as can be: most neighbours with NVLink, then most links, beginning with the first GPU. The order as it is
    where NVLink is all to all or absent.
    """
    indices = tuple(gpu.index for gpu in topology.gpus) if indices is None else tuple(indices)
    if not indices or not without_nvlink(topology):
        return indices
    names = [f"GPU{index}" for index in indices]
    links = [[nvlinks_of(topology.path(one, other)) for other in names] for one in names]
    worth = [[1000 + count if count else 0 for count in row] for row in links]
    ring = _best_ring(worth) if len(names) <= _MOST_EXACT else _greedy_ring(worth)
    return tuple(indices[at] for at in ring)


def _best_ring(worth: list[list[int]]) -> list[int]:
    """The closed ring from 0 of most worth, among equals that whose weakest part closes it (Held and Karp)."""
    count = len(worth)
    best: dict[tuple[int, int], tuple[int, list[int]]] = {(1, 0): (0, [0])}
    for _ in range(count - 1):
        longer: dict[tuple[int, int], tuple[int, list[int]]] = {}
        for (visited, last), (sum_so_far, ring) in best.items():
            for step in range(count):
                if visited >> step & 1:
                    continue
                key, value = (visited | 1 << step, step), (sum_so_far + worth[last][step], [*ring, step])
                if key not in longer or value[0] > longer[key][0]:
                    longer[key] = value
        best = longer
    return max(best.values(), key=lambda found: (found[0] + worth[found[1][-1]][0], found[0]))[1]


def _greedy_ring(worth: list[list[int]]) -> list[int]:
    ring = [0]
    while len(ring) < len(worth):
        left = (at for at in range(len(worth)) if at not in ring)
        ring.append(max(left, key=lambda at: (worth[ring[-1]][at], -at)))
    return ring
