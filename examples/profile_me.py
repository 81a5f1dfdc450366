"""A few profiled steps of DDP: where the time goes, and how much communication hides behind compute.

    nvrun --nproc-per-node 2 examples/profile_me.py --out profile

Rank 0 of each node writes a trace for chrome://tracing or ui.perfetto.dev and prints the dearest operations. The one
figure to look at first: communication that is *not* hidden is the most that overlap, compression or a faster network
can win. If it is near zero, tune something else.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from group import process_group
from models import Transformer, next_token_loss, text
from torch.autograd import DeviceType
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

Spans = list[tuple[float, float]]


def merged(spans: Spans) -> Spans:
    """The same time, without overlaps, in order."""
    result: Spans = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def common(one: Spans, other: Spans) -> float:
    """How long both last at once."""
    return length(one) + length(other) - length(merged(one + other))


def communication(profiler: profile, device: torch.device) -> tuple[float, float]:
    """Microseconds of communication, and those of them during which compute ran as well."""
    kind = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    wire: Spans = []
    compute: Spans = []
    for event in profiler.events():
        if event.device_type != kind:
            continue
        span = (event.time_range.start, event.time_range.end)
        # Kernels of NCCL on a GPU; on a CPU gloo's threads mark theirs. Annotations span both and are neither.
        if event.name.startswith(("ncclDevKernel", "ncclKernel", "gloo:")):
            wire.append(span)
        elif not event.is_user_annotation and (kind == DeviceType.CUDA or event.name.startswith("aten::")):
            compute.append(span)
    wire, compute = merged(wire), merged(compute)
    return length(wire), common(wire, compute)


def train(args: argparse.Namespace, device: torch.device) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(dim=args.dim, layers=args.layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    # Two steps to warm up, one in which the profiler itself warms up, then those that count.
    plan = schedule(wait=2, warmup=1, active=args.steps, repeat=1)
    with profile(activities=activities, schedule=plan, acc_events=True) as profiler:
        for step in range(3 + args.steps):
            tokens = text(args.batch_size, 64, seed=step).to(device)
            optimizer.zero_grad()
            next_token_loss(model, tokens).backward()
            optimizer.step()
            profiler.step()
    if int(os.environ["LOCAL_RANK"]) == 0:
        total, hidden = communication(profiler, device)
        trace = Path(args.out) / f"rank{dist.get_rank()}.json"
        trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(trace))
        order = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=order, row_limit=args.rows, max_name_column_width=40))
        print(f"communication {total / 1e3:.2f} ms, of it {hidden / 1e3:.2f} ms hidden behind compute; trace: {trace}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3, help="steps that are recorded")
    parser.add_argument("--out", default="profile", help="folder for the traces")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    with process_group() as device:
        train(args, device)


if __name__ == "__main__":
    main()
