"""Gradient compression by DDP's communication hooks: the bytes that each saves, and the loss beside the plain one.

    nvrun --nproc-per-node 2 examples/comm_compress.py

plain      fp32 all-reduce.
fp16/bf16  half the bytes; bf16 keeps fp32's range (fp16 overflows above 65504), and 8 bits of the fraction.
powersgd   sends two thin matrices in place of a gradient (rank 1 here), and adds what was lost to the next step's
           gradient. The first --plain-steps are plain.
It pays where gradients are the bottleneck: over Ethernet, or a model with many parameters and little compute. Over
NVLink it rarely does: packing costs more than the bytes. The loss is not that of plain training: watch it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say, seconds
from models import Transformer, next_token_loss, text
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def counted_bytes() -> Iterator[list[int]]:
    """Collects the size of every buffer that goes through all_reduce meanwhile: what the hooks really send."""
    sizes: list[int] = []
    original = dist.all_reduce

    def counting(tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size())
        return original(tensor, *rest, **named)

    dist.all_reduce = counting
    try:
        yield sizes
    finally:
        dist.all_reduce = original


def register(model: DistributedDataParallel, hook: str, plain_steps: int) -> None:
    """Give the model this way to reduce its gradients."""
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=1, start_powerSGD_iter=plain_steps, min_compression_rate=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return
    hooks = {
        "plain": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }
    model.register_comm_hook(None, hooks[hook])


def train(hook: str, args: argparse.Namespace, device: torch.device) -> tuple[int, float, float]:
    """Bytes all-reduced by this rank, the last loss averaged over the ranks, and seconds of the median step: the first
    steps start NCCL and load kernels, and PowerSGD's are plain."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(dim=args.dim, layers=args.layers).to(device))
    register(model, hook, args.plain_steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []

    def take(step: int) -> None:
        tokens = text(args.batch_size, 64, seed=step * dist.get_world_size() + dist.get_rank()).to(device)
        loss = next_token_loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    with counted_bytes() as sizes:
        took = [seconds(partial(take, step), device) for step in range(args.steps)]
    return sum(sizes), mean_over_ranks(losses[-1]), statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hooks", nargs="+", default=["plain", "fp16", "bf16", "powersgd"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plain-steps", type=int, default=5, help="steps before PowerSGD begins (at least 2)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    with process_group() as device:
        say(f"{'hook':10} {'MB reduced':>10} {'of plain':>9} {'ms/step':>8}  loss")
        plain = None
        for hook in args.hooks:
            if hook == "bf16" and device.type == "cpu":
                say(f"{hook:10} skipped: DDP takes this hook with NCCL only")
                continue
            sent, loss, step = train(hook, args, device)
            plain = plain or sent
            say(f"{hook:10} {sent / 1e6:10.2f} {sent / plain:9.0%} {1e3 * step:8.1f}  loss={loss:.5f}")


if __name__ == "__main__":
    main()
