"""Sharded data parallelism (FSDP2, fully_shard): every rank keeps 1/N of parameters, gradients and optimizer state.

    nvrun --nproc-per-node 2 examples/train_fsdp.py
    nvrun --nproc-per-node 2 examples/train_fsdp.py --plain      the same training with DDP: the same loss

It pays when model, gradients and Adam's two moments (16 bytes a parameter in fp32) do not fit one GPU. Each block's
parameters are gathered before use and freed after: 1.5 times the bytes of DDP travel, so where DDP fits it is faster.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say
from models import Transformer, next_token_loss, text
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def shard(model: Transformer, bf16: bool, device: torch.device) -> None:
    """Shard in place: one unit a block, so that the next block is gathered while this one computes."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh, mp_policy=policy if bf16 else MixedPrecisionPolicy())


def bytes_here(model: nn.Module) -> int:
    """Bytes of parameters that this rank really holds."""
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return sum(part.numel() * part.element_size() for part in parts)


def train(args: argparse.Namespace, device: torch.device) -> float:
    """Train and return the last loss, averaged over the ranks."""
    torch.manual_seed(0)
    model = Transformer(dim=args.dim, layers=args.layers).to(device)
    whole = bytes_here(model)
    trained: nn.Module = model
    if args.plain:
        trained = DistributedDataParallel(model)
    else:
        shard(model, args.bf16, device)
    # After sharding: the optimizer must see the shards, not the whole parameters that are gone.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        tokens = text(args.batch_size, 64, seed=step * dist.get_world_size() + dist.get_rank()).to(device)
        loss = next_token_loss(trained, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    say(f"parameters: {whole / 1e6:.2f} MB, on this rank {bytes_here(model) / 1e6:.2f} MB")
    return mean_over_ranks(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="compute in bf16, reduce gradients in fp32")
    parser.add_argument("--plain", action="store_true", help="DDP instead, to compare")
    args = parser.parse_args()
    with process_group() as device:
        say(f"loss={train(args, device):.7f}")


if __name__ == "__main__":
    main()
