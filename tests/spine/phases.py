"""Ranks on gloo that write nothing for long: in an evaluation, then while something is compiled, then because rank 3
waits for a message where the others are in an all_reduce."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
import torch.distributed as dist


def score(number: int) -> int:
    return sum(range(number % 997))


def evaluate(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for number in range(1000):
            score(number)


def step(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)


def receive(gradient: torch.Tensor) -> None:
    dist.recv(gradient, src=0)


def main() -> None:
    seconds = float(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.ones(4)
    step(gradient)
    print("evaluates", flush=True)
    if rank == 0:
        evaluate(seconds)
    dist.barrier()
    print("compiles", flush=True)
    if rank == 3:
        compiler = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
        subprocess.run([sys.executable, "-c", compiler], check=True)
    dist.barrier()
    print("trains", flush=True)
    if rank == 3:
        receive(gradient)
    step(gradient)


if __name__ == "__main__":
    main()
