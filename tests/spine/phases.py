"""Ranks on gloo that write nothing for long: in an evaluation, then while something is compiled, then because rank 3
waits for a message where the others are in an all_reduce."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
import torch.distributed as dist


def layer(depth: int, values: list[float]) -> list[float]:
    if depth == 0:
        return sorted(values, reverse=True)
    total = sum(values) or 1.0
    scaled = [value / total for value in values]
    return [value + depth for value in layer(depth - 1, scaled)]


def evaluate(seconds: float) -> None:
    """As a model does, it is now in this function and now in that."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        layer(8, [float(number) for number in range(5000)])


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
