"""Two-dimensional parallelism on a device mesh: tensor parallel inside a node, data parallel (sharded) across nodes.

    nvrun --nproc-per-node 2 examples/train_2d.py            tensor parallel over all ranks of a node
    nvrun --nproc-per-node 2 examples/train_2d.py --tp 1     data parallel only: the same loss

Tensor parallelism cuts every layer over the ranks and all-reduces activations twice a block, in the forward pass
where nothing hides it: it wants NVLink, so it stays inside a node. Data parallelism sends gradients once a step, hidden
behind the backward pass: it can cross nodes. It pays when one layer, or the batch of one GPU, is too large for FSDP
alone.

Pipeline parallelism (torch.distributed.pipelining) is worth its bubble only when neither is enough: a model too large
for a node's tensor parallelism over a network too slow for FSDP's gathers; it sends only the activations at each cut.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say
from models import Transformer, next_token_loss, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# Columns first, rows second: the activation between the two never leaves the rank, and one all-reduce ends each pair.
BLOCK_PLAN = {
    "attention.q": ColwiseParallel(),
    "attention.k": ColwiseParallel(),
    "attention.v": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}


def train(args: argparse.Namespace, device: torch.device) -> float:
    """Train and return the last loss, averaged over the ranks."""
    tp = args.tp or int(os.environ["LOCAL_WORLD_SIZE"])
    world = dist.get_world_size()
    if world % tp or int(os.environ["LOCAL_WORLD_SIZE"]) % tp:
        raise SystemExit(f"--tp {tp} does not divide {os.environ['LOCAL_WORLD_SIZE']} ranks a node, {world} in all")
    mesh = init_device_mesh(device.type, (world // tp, tp), mesh_dim_names=("dp", "tp"))
    replica, replicas = mesh.get_local_rank("dp"), world // tp
    say(f"mesh: {replicas} data parallel x {tp} tensor parallel")

    torch.manual_seed(0)
    model = Transformer(dim=args.dim, layers=args.layers, head_dim=args.dim // 4).to(device)
    for block in model.blocks:
        if tp > 1:
            parallelize_module(block, mesh["tp"], BLOCK_PLAN)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    # foreach kernels do not take parameters of two meshes (norms are sharded over dp alone, linears over both).
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(args.steps):
        # Ranks of one replica must see the same batch: cut the global one by replica, not by rank.
        tokens = text(args.global_batch, 64, seed=step).chunk(replicas)[replica].to(device)
        loss = next_token_loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return mean_over_ranks(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--global-batch", type=int, default=16, help="sequences a step, over all ranks")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tp", type=int, help="tensor parallel ranks (default: all ranks of a node)")
    args = parser.parse_args()
    with process_group() as device:
        say(f"loss={train(args, device):.7f}")


if __name__ == "__main__":
    main()
