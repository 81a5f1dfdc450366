"""The case study: ResNet-152 on synthetic ImageNet, in images a second. ladder.py runs it row by row.

    nvrun --nproc-per-node 2 examples/resnet152.py
    nvrun --nproc-per-node 2 --preset ab-no-p2p examples/resnet152.py            NCCL without peer-to-peer
    nvrun --nproc-per-node 2 --preset auto examples/resnet152.py --overlap --compress
    nvrun --nproc-per-node 2 examples/resnet152.py --model wide                  all communication, little compute

Images lie ready on the GPU, in channels_last (the layout of tensor-core convolutions), so nothing but compute and
gradients is measured. ResNet-152 has 60 million parameters (241 MB of gradients) and much compute to hide them behind:
over NVLink expect little from most rows. `--model wide` is the other end: 1.1 GB of gradients behind a few products.

--overlap    DDP's switches: gradient_as_bucket_view, static_graph, no broadcast of buffers.
--compress   gradients in bf16 on the wire (fp16 on the CPU).
What NCCL does is set outside, by nvrun: --env and --preset.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
from typing import Any

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say, seconds
from models import resnet, wide
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def switches(overlap: bool) -> dict[str, Any]:
    """DDP's arguments."""
    if not overlap:
        return {}
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return {"gradient_as_bucket_view": True, "static_graph": True, buffers: False}


def train(args: argparse.Namespace, device: torch.device) -> tuple[list[float], float]:
    """Images a second over all ranks, one value a window, and the last loss averaged over the ranks."""
    torch.manual_seed(0)
    net = wide(args.width or 8192) if args.model == "wide" else resnet(args.depths, args.width or 64)
    net = net.to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(net, **switches(args.overlap))
    if args.compress:
        hook = default_hooks.fp16_compress_hook if device.type == "cpu" else default_hooks.bf16_compress_hook
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(args.batch_size, 3, args.size, args.size, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (args.batch_size,), device=device)
    half = device.type == "cuda" and not args.fp32
    losses = []

    def steps(count: int) -> None:
        for _ in range(count):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

    steps(args.warmup)
    rates = []
    for _ in range(args.windows):
        dist.barrier()  # all begin a window together, so its end is the slowest rank's
        took = torch.tensor(seconds(lambda: steps(args.steps), device), device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        rates.append(args.steps * args.batch_size * dist.get_world_size() / took.item())
    return rates, mean_over_ranks(losses[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["resnet152", "wide"], default="resnet152")
    parser.add_argument("--overlap", action="store_true", help="DDP's switches for overlap")
    parser.add_argument("--compress", action="store_true", help="16-bit gradients on the wire")
    parser.add_argument("--fp32", action="store_true", help="no bf16 autocast on the GPU")
    parser.add_argument("--steps", type=int, default=10, help="steps a window")
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first window")
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--width", type=int, help="default: 64, wide 8192; smaller to try it on a CPU")
    parser.add_argument("--depths", type=int, nargs=4, default=(3, 8, 36, 3), help="blocks of each stage")
    args = parser.parse_args()
    with process_group() as device:
        rates, loss = train(args, device)
        say(
            f"images_per_second={statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f} in "
            f"{len(rates)} windows), {dist.get_world_size()} ranks, {dist.get_backend()}, loss={loss:.5f}"
        )


if __name__ == "__main__":
    main()
