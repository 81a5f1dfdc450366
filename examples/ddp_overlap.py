"""What DDP's own switches do to a step, one flag each, so that A and B differ by one word.

    nvrun --nproc-per-node 2 examples/ddp_overlap.py
    nvrun --nproc-per-node 2 examples/ddp_overlap.py --bucket-view
    nvrun --nproc-per-node 2 examples/ddp_overlap.py --accumulate 4 --no-sync

--bucket-view      gradients live in the buckets: one copy a step and one gradient's memory less. Nearly always right.
--static-graph     the same parameters are used every step: cheaper bookkeeping, works with activation checkpointing.
--keep-buffers     BatchNorm statistics stay local: no broadcast before each forward pass.
--bucket-mb N      larger buckets use a fast link better, smaller ones start earlier; the first stays 1 MB. Below 16 MB
                   a fast link is not filled (align.py), and one bucket for all leaves nothing to overlap.
--no-sync          with --accumulate N: all-reduce once in N micro-batches instead of every time. Pays most of all on a
                   slow network, and costs nothing in accuracy: the printed loss stays the same.
All leave the loss as it was, up to rounding. None pays where communication is hidden already: see profile_me.py.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
from contextlib import nullcontext
from typing import Any

import torch
from group import mean_over_ranks, process_group, say, seconds
from models import resnet
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def switches(args: argparse.Namespace) -> dict[str, Any]:
    """DDP's arguments for these flags."""
    chosen: dict[str, Any] = {"gradient_as_bucket_view": args.bucket_view, "static_graph": args.static_graph}
    if args.bucket_mb:
        chosen["bucket_cap_mb"] = args.bucket_mb
    if args.keep_buffers:
        # Newer torch warns about the old name.
        known = inspect.signature(DistributedDataParallel).parameters
        chosen["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
    return chosen


def train(args: argparse.Namespace, device: torch.device) -> float:
    """Train, say how long a step takes, and return the last loss, averaged over the ranks."""
    torch.manual_seed(0)
    net = resnet(depths=args.depths, width=args.width, classes=10).to(device)
    model = DistributedDataParallel(net, **switches(args))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(args.batch_size, 3, args.size, args.size, device=device)
    labels = torch.randint(10, (args.batch_size,), device=device)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            # Not in the very first step: a static graph is learnt from a backward pass that synchronises.
            quiet = args.no_sync and losses and not last
            with model.no_sync() if quiet else nullcontext():
                loss = nn.functional.cross_entropy(model(images), labels) / args.accumulate
                loss.backward()
        optimizer.step()
        losses.append(loss.detach() * args.accumulate)

    times = [seconds(step, device) for _ in range(args.steps)]
    steady = sorted(times[len(times) // 3 :])  # the first steps build buckets and choose convolutions
    say(f"ms/step: median {1e3 * statistics.median(steady):.1f}, {1e3 * steady[0]:.1f} to {1e3 * steady[-1]:.1f}")
    return mean_over_ranks(losses[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--keep-buffers", action="store_true", help="no broadcast of buffers before each forward pass")
    parser.add_argument("--bucket-mb", type=float, help="bucket_cap_mb (default: DDP's, 25)")
    parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="micro-batches a step")
    parser.add_argument("--no-sync", action="store_true", help="all-reduce only after the last micro-batch")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank and micro-batch")
    parser.add_argument("--size", type=int, default=32, help="pixels a side")
    parser.add_argument("--width", type=int, default=16, help="64 is ResNet's own")
    parser.add_argument("--depths", type=int, nargs=4, default=(1, 1, 1, 1), help="3 8 36 3 is ResNet-152")
    args = parser.parse_args()
    with process_group() as device:
        say(f"loss={train(args, device):.6f}")


if __name__ == "__main__":
    main()
