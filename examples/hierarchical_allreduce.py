"""An all-reduce in steps: reduce inside each node, all-reduce between nodes, spread inside each node again.

    nvrun --hosts a,b examples/hierarchical_allreduce.py
    nvrun --nproc-per-node 4 examples/hierarchical_allreduce.py --pretend-nodes 2     to try it on one machine

nvrun tells each rank its node (NVRUN_NODE_RANK, NVRUN_NODE_COUNT) and how many ranks each node has
(NVRUN_LOCAL_WORLD_SIZES); nodes may differ in size. The buffer is cut into as many shards as the smallest node has
ranks; shard i is reduced to local rank i, all-reduced among the ranks i of all nodes, and spread from there, so every
GPU and NIC takes its part.

In fp32 this rarely beats one flat all-reduce: NCCL's trees and NVLink rings are hierarchical themselves, and a node
sends about as many bytes. It pays when the leg between nodes is slow and is sent smaller: bf16 halves it, PowerSGD
sends two thin matrices. Both lose digits; the printed error says how many.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from group import process_group, say, seconds


@dataclass(frozen=True)
class Layout:
    """Which ranks are together: `nodes` lists each node's ranks in order, `node` and `local` are this rank's place."""

    nodes: tuple[tuple[int, ...], ...]
    node: int
    local: int

    @property
    def shards(self) -> int:
        """One for each rank of the smallest node."""
        return min(len(ranks) for ranks in self.nodes)

    @property
    def even(self) -> bool:
        return len({len(ranks) for ranks in self.nodes}) == 1


def layout(pretend_nodes: int | None) -> Layout:
    """The layout from nvrun's environment, else from torchrun's (which knows only equal nodes)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if pretend_nodes:
        sizes = [len(part) for part in torch.arange(world).tensor_split(pretend_nodes)]
    elif "NVRUN_LOCAL_WORLD_SIZES" in os.environ:
        sizes = [int(size) for size in os.environ["NVRUN_LOCAL_WORLD_SIZES"].split(",")]
    else:
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        sizes = [local] * (world // local)
    if sum(sizes) != world or 0 in sizes:
        raise SystemExit(f"nodes of {sizes} ranks do not make a world of {world}")
    nodes, first = [], 0
    for size in sizes:
        nodes.append(tuple(range(first, first + size)))
        first += size
    node = next(index for index, ranks in enumerate(nodes) if rank in ranks)
    return Layout(tuple(nodes), node, nodes[node].index(rank))


COLUMNS = 1024
"""The buffer is a matrix of so many columns, as the gradient of a layer with so many inputs is."""

Between = Callable[[torch.Tensor, dist.ProcessGroup], int]
"""Sums a shard over the nodes, in place, and returns the bytes of the buffers it reduced."""


def fp32(shard: torch.Tensor, group: dist.ProcessGroup) -> int:
    dist.all_reduce(shard, group=group)
    return shard.numel() * shard.element_size()


def bf16(shard: torch.Tensor, group: dist.ProcessGroup) -> int:
    small = shard.bfloat16()
    dist.all_reduce(small, group=group)
    shard.copy_(small)
    return small.numel() * small.element_size()


class PowerSGD:
    """Rank-r approximation with error feedback: what one call loses, the next one adds (Vogels et al. 2019)."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.q: torch.Tensor | None = None
        self.lost: torch.Tensor | None = None

    def __call__(self, shard: torch.Tensor, group: dist.ProcessGroup) -> int:
        matrix = shard.view(-1, COLUMNS)
        if self.lost is None or self.q is None:
            # The same start on every node: the thin matrices are summed over nodes, so their bases must agree.
            random = torch.Generator().manual_seed(0)
            self.lost = torch.zeros_like(matrix)
            self.q = torch.randn(matrix.shape[1], self.rank, generator=random).to(shard.device)
        wanted = matrix + self.lost
        p = wanted @ self.q
        dist.all_reduce(p, group=group)
        p = torch.linalg.qr(p).Q
        self.q = wanted.T @ p
        self.lost = wanted - p @ self.q.T
        dist.all_reduce(self.q, group=group)
        matrix.copy_(p @ self.q.T)
        return (p.numel() + self.q.numel()) * p.element_size()


class Hierarchy:
    """The groups of one layout, made once. Every rank must make all groups, its own or not, in the same order."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        inside = [dist.new_group(list(ranks)) for ranks in layout.nodes]
        across = [dist.new_group([ranks[i] for ranks in layout.nodes]) for i in range(layout.shards)]
        self.inside = inside[layout.node]
        self.across = across[layout.local] if layout.local < layout.shards else None

    def all_reduce(self, tensor: torch.Tensor, between: Between) -> int:
        """Sum over all ranks, in place, and return the bytes of the shard that went between nodes.

        The size must be a multiple of the number of shards.
        """
        shards = list(tensor.chunk(self.layout.shards))
        mine = shards[self.layout.local] if self.across is not None else None
        owners = self.layout.nodes[self.layout.node][: self.layout.shards]
        if self.layout.even:
            mine = torch.empty_like(shards[0])
            dist.reduce_scatter(mine, shards, group=self.inside)
        else:
            for owner, shard in zip(owners, shards, strict=True):
                dist.reduce(shard, owner, group=self.inside)
        sent = 0
        if mine is not None and self.across is not None and len(self.layout.nodes) > 1:
            sent = between(mine, self.across)
        if self.layout.even:
            dist.all_gather(shards, mine, group=self.inside)
        else:
            for owner, shard in zip(owners, shards, strict=True):
                dist.broadcast(shard, owner, group=self.inside)
        return sent


def gradient(rows: int, device: torch.device) -> torch.Tensor:
    """Something like a gradient: a matrix of low rank, the same on all ranks but for its scale, and a little noise."""
    shared = torch.Generator().manual_seed(0)
    left, right = torch.randn(rows, 2, generator=shared), torch.randn(2, COLUMNS, generator=shared)
    own = torch.Generator().manual_seed(1 + dist.get_rank())
    whole = left @ right * (1 + dist.get_rank()) + 0.01 * torch.randn(rows, COLUMNS, generator=own)
    return whole.flatten().to(device)


def median(work: Callable[[], object], repeat: int, device: torch.device) -> float:
    """Seconds; all ranks begin together, and the first time, which connects, does not count."""
    times = []
    for _ in range(repeat + 1):
        dist.barrier()
        times.append(seconds(work, device))
    return statistics.median(times[1:])


def compare(args: argparse.Namespace, device: torch.device) -> None:
    """Print time, bandwidth and bytes of the flat all-reduce and of each in steps, and their difference."""
    place = layout(args.pretend_nodes)
    rows = max(1, int(args.mb * 1e6) // (4 * COLUMNS * place.shards)) * place.shards
    source = gradient(rows, device)
    size = 4 * source.numel()
    world, nodes = dist.get_world_size(), len(place.nodes)
    say(f"{nodes} nodes of {', '.join(str(len(ranks)) for ranks in place.nodes)} ranks, {size / 1e6:.1f} MB")

    # Ring all-reduce of S bytes over n: each sends 2(n-1)/n S. Flat, one such stream leaves each node.
    ring = 2 * (world - 1) / world * size
    local = len(place.nodes[place.node])
    steps = Hierarchy(place)
    stepped = source.clone()
    say(f"inside a node each rank sends {2 * (local - 1) / local * size / 1e6:.2f} MB in the steps")

    def again(between: Between) -> None:
        steps.all_reduce(stepped.copy_(source), between)

    def line(name: str, took: float, node_bytes: float) -> str:
        bus = ring / took / 1e9
        return f"{name:14} {1e3 * took:8.2f} ms {bus:7.2f} GB/s bus, a node sends {node_bytes / 1e6:5.2f} MB"

    flat = source.clone()
    took = median(lambda: dist.all_reduce(flat.copy_(source)), args.repeat, device)
    say(line("flat", took, ring if nodes > 1 else 0.0))
    for name in args.between:
        between: Between = {"fp32": fp32, "bf16": bf16, "powersgd": PowerSGD(args.rank)}[name]
        sent = torch.tensor(float(steps.all_reduce(stepped.copy_(source), between)), device=device)
        dist.all_reduce(sent)
        error = (stepped - flat).norm() / flat.norm()
        took = median(partial(again, between), args.repeat, device)
        leg = 2 * (nodes - 1) / nodes * sent.item() / nodes
        say(f"{line(f'steps, {name}', took, leg)}, relative error {error.item():.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    legs = ["fp32", "bf16", "powersgd"]
    parser.add_argument("--between", nargs="+", choices=legs, default=legs, help="how the leg between nodes is sent")
    parser.add_argument("--rank", type=int, default=4, help="PowerSGD's rank")
    parser.add_argument("--mb", type=float, default=4.0, help="size of the buffer in MB of fp32")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--pretend-nodes", type=int, metavar="N", help="cut the ranks of one machine into N nodes")
    args = parser.parse_args()
    with process_group() as device:
        compare(args, device)


if __name__ == "__main__":
    main()
