"""How large the buffers of an all-reduce should be, and how they should end.

    nvrun --nproc-per-node 2 examples/align.py

Size, measured: a collective has a fixed cost, so small buffers leave a fast link idle. On two H200s over NVLink: 209
GB/s at 16 MB, 294 at 256 MB, 346 at 4 GB. Keep DDP's buckets (bucket_cap_mb) at 16 MB or more; this script measures the
curve on your machine and names the smallest size that reaches nine tenths of the best.

Padding, from NCCL's source, not measured: its NVLS algorithm (NVLink SHARP) works in chunks that are never smaller than
16 KiB (enqueue.cc: 16384 is the last step of the chunk size). A buffer that is a multiple of it leaves no part chunk at
its end. padded() gives that size. It is worth its few bytes in a buffer you allocate yourself; DDP pads nothing, and
the buckets below show how far each is from a multiple.
"""

from __future__ import annotations

import argparse
import statistics

import torch
import torch.distributed as dist
from group import process_group, say, seconds
from models import Transformer, next_token_loss, text
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

NVLS_CHUNK = 16 * 1024
"""Bytes; see above."""


def padded(numel: int, element_size: int, multiple: int = NVLS_CHUNK) -> int:
    """The next number of elements whose bytes are a multiple."""
    step = multiple // element_size
    return -(-numel // step) * step


def bus_gb_s(size: int, repeat: int, device: torch.device) -> float:
    """Median bus bandwidth of an all-reduce of so many bytes, as nccl-tests defines it."""
    world = dist.get_world_size()
    buffer = torch.ones(padded(size // 4, 4), device=device)
    times = []
    for _ in range(repeat + 2):
        dist.barrier()
        times.append(seconds(lambda: dist.all_reduce(buffer), device))
    return 2 * (world - 1) / world * buffer.numel() * 4 / statistics.median(times[2:]) / 1e9


def buckets(bucket_mb: float, device: torch.device) -> list[int]:
    """The bytes of each bucket that DDP really makes for a small transformer, in the order of their all-reduce."""
    sizes: list[int] = []

    def see(_, bucket):  # no annotations: DDP compares them with the types themselves, and here they are text
        sizes.append(bucket.buffer().numel() * bucket.buffer().element_size())
        return default_hooks.allreduce_hook(None, bucket)

    model = DistributedDataParallel(Transformer(dim=256, layers=4).to(device), bucket_cap_mb=bucket_mb)
    model.register_comm_hook(None, see)
    tokens = text(2, 16, seed=0).to(device)
    for _ in range(2):  # after the first step DDP lays its buckets anew, in the order in which gradients came
        sizes.clear()
        next_token_loss(model, tokens).backward()
    return sizes


def show(args: argparse.Namespace, device: torch.device) -> None:
    curve = []
    say("  size MB  bus GB/s")
    size = int(args.smallest * 1e6)
    while size <= args.largest * 1e6:
        curve.append((size, bus_gb_s(size, args.repeat, device)))
        say(f"{size / 1e6:9.2f}  {curve[-1][1]:8.2f}")
        size *= 4
    best = max(bandwidth for _, bandwidth in curve)
    enough = next(size for size, bandwidth in curve if bandwidth >= 0.9 * best)
    say(f"nine tenths of the best from {enough / 1e6:.2f} MB")
    say(f"buckets of a small transformer with bucket_cap_mb={args.bucket_mb:g}:")
    for number, size in enumerate(buckets(args.bucket_mb, device)):
        say(f"  bucket {number}: {size} bytes, {padded(size // 4, 4) * 4 - size} short of a multiple of {NVLS_CHUNK}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smallest", type=float, default=0.25, help="MB")
    parser.add_argument("--largest", type=float, default=256.0, help="MB")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--bucket-mb", type=float, default=16.0)
    args = parser.parse_args()
    with process_group() as device:
        show(args, device)


if __name__ == "__main__":
    main()
