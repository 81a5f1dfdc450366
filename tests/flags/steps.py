"""A training whose loss at each step is the same with any number of ranks, and which goes on from its checkpoint.

steps.py FOLDER STEPS AT EVENT:HOST...      each event happens once, after step AT, on that host

die            its last rank exits with 9
kill-torchrun  its torchrun is killed
wait           its ranks wait for whatever comes

FOLDER is shared by the hosts: checkpoint.pt, steps.log (a line for each step: time, step, loss, ranks, attempt) and
`event`, whose time is when it happened.
"""

from __future__ import annotations

import datetime
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

SAMPLES, RATE = 64, 0.3
TIMEOUT = datetime.timedelta(seconds=5)
"""Of a collective once all ranks have met, so that a peer without a voice is noticed."""


def points() -> tuple[torch.Tensor, torch.Tensor]:
    """A regression with a known answer; in float64, so that the order of a sum is not seen in a printed loss."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=generator)
    return x, x @ torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def share(weights: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What these samples add to the gradient, and last to the loss."""
    off = x @ weights - y
    return torch.cat([2 / SAMPLES * (x.T @ off), (off * off).sum().reshape(1) / SAMPLES])


def losses(steps: int) -> list[str]:
    """The loss of every step of an undisturbed training, as printed."""
    x, y = points()
    weights, seen = torch.zeros(4, dtype=torch.float64), []
    for _ in range(steps):
        total = share(weights, x, y)
        seen.append(f"{total[-1]:.9f}")
        weights = weights - RATE * total[:-1]
    return seen


def train(folder: Path, steps: int, at: int, events: Sequence[str]) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint = folder / "checkpoint.pt"
    step, weights = torch.load(checkpoint) if checkpoint.exists() else (0, torch.zeros(4, dtype=torch.float64))
    met = dist.new_group(timeout=TIMEOUT)  # all have read: nobody writes before
    x, y = points()
    while step < steps:
        total = share(weights, x[rank::world], y[rank::world])
        dist.all_reduce(total, group=met)
        weights, step = weights - RATE * total[:-1], step + 1
        if rank == 0:
            torch.save((step, weights), checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
            with (folder / "steps.log").open("a") as log:
                log.write(f"{time.time():.3f} {step} {total[-1]:.9f} {world} {attempt}\n")
        dist.barrier(group=met)
        if step == at:  # whoever comes back goes on behind it
            for event in events:
                kind, _, host = event.partition(":")
                if host == socket.gethostname():
                    happens(kind, folder)
        time.sleep(0.05)


def happens(kind: str, folder: Path) -> None:
    last = os.environ["LOCAL_RANK"] == str(int(os.environ["LOCAL_WORLD_SIZE"]) - 1)
    if kind == "die" and not last:
        return
    (folder / "event").touch()
    if kind == "die":
        os._exit(9)
    if kind == "kill-torchrun":
        os.kill(os.getppid(), signal.SIGKILL)
    while kind == "wait":
        time.sleep(0.1)


def main() -> None:
    folder, steps, at, *events = sys.argv[1:]
    dist.init_process_group("gloo")
    train(Path(folder), int(steps), int(at), events)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
