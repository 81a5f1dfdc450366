"""Data-parallel training in one short file: the quickstart.

    nvrun --nproc-per-node 2 examples/train_ddp.py

Every rank holds the whole model and sees its own share of the data; DistributedDataParallel averages the gradients
while the backward pass still runs. It pays whenever model, gradients and optimizer state fit one GPU; where they do
not, see train_fsdp.py. NCCL where each local rank has a GPU of its own, else gloo on the CPU.

Everything is seeded: the printed loss depends on the number of ranks, not on what launched them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def progress(done: int, total: int, loss: float) -> None:
    """Redraw the bar on stderr, as progress bars do: one line, ended by a carriage return until all is done."""
    filled = 30 * done // total
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] step {done}/{total} loss {loss:.4f}{end}")
    sys.stderr.flush()


def dataset(samples: int = 4096) -> TensorDataset:
    """A regression with a known answer: a fixed random network labels random points."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    points = torch.randn(samples, 32)
    with torch.no_grad():
        return TensorDataset(points, teacher(points))


def train(device: torch.device, steps: int, batch_size: int) -> float:
    """Train and return the last step's loss, averaged over the ranks."""
    data = dataset()
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    model = DistributedDataParallel(net.to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    batches = iter(())
    for step in range(steps):
        if step % len(loader) == 0:
            sampler.set_epoch(step // len(loader))  # without it every epoch sees the same order
            batches = iter(loader)
        points, answers = next(batches)
        loss = nn.functional.mse_loss(model(points.to(device)), answers.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # .item() waits for the GPU, so the bar asks only now and then.
        if dist.get_rank() == 0 and ((step + 1) % 20 == 0 or step + 1 == steps):
            progress(step + 1, steps, loss.item())

    final = loss.detach()
    dist.all_reduce(final)
    return final.item() / dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (default: 300)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per rank and step (default: 64)")
    args = parser.parse_args()

    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")

    loss = train(device, args.steps, args.batch_size)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {dist.get_backend()}, loss={loss:.9f}")
    # DDP sits in a reference cycle and holds the process group: uncollected, gloo's threads outlive
    # destroy_process_group and now and then abort the interpreter's exit.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
