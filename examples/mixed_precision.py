"""Mixed precision with today's torch.amp: autocast, and a GradScaler for fp16 only.

    nvrun --nproc-per-node 2 examples/mixed_precision.py --precision bf16

Matrix products run in 16 bits on tensor cores (two to four times fp32's, with half the memory traffic); parameters, the
optimizer and reductions such as softmax stay fp32. bf16 has fp32's range and needs nothing else: use it from Ampere on.
fp16 has more digits and little range: small gradients become zero unless the loss is scaled, so before Ampere
use it with the scaler, which skips a step when something overflows. Gradients stay fp32 on the wire: to halve them too,
see comm_compress.py. It pays wherever matrix products dominate; not for tiny layers.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say, seconds
from models import Transformer, next_token_loss, text
from torch.nn.parallel import DistributedDataParallel

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(precision: str, args: argparse.Namespace, device: torch.device) -> float:
    """Train, say how long a step takes, and return the last loss, averaged over the ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(dim=args.dim, layers=args.layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dtype = DTYPES[precision]
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    losses = []

    def steps() -> None:
        for step in range(args.steps):
            tokens = text(args.batch_size, 64, seed=step * dist.get_world_size() + dist.get_rank()).to(device)
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                loss = next_token_loss(model, tokens)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            # Clipping would come here, after scaler.unscale_(optimizer).
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())

    took = seconds(steps, device)
    loss = mean_over_ranks(losses[-1])
    scale = f", loss scale {scaler.get_scale():g}" if scaler.is_enabled() else ""
    say(f"{precision}: {1e3 * took / args.steps:.1f} ms/step, loss={loss:.5f}{scale}")
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    with process_group() as device:
        for precision in args.precision:
            train(precision, args, device)


if __name__ == "__main__":
    main()
