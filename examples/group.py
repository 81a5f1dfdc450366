"""How every example here begins and ends: the process group, and the device of this rank."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def process_group() -> Iterator[torch.device]:
    """The default process group for the duration of the block; gives the device of this rank.

    NCCL where each local rank has a GPU of its own, else gloo on the CPU. Keep the training in a function that the
    block calls: models, hooks and sub-groups must be gone before the group is destroyed.
    """
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    yield device
    # Not in a finally: a rank that failed must exit at once, and destroying a group that others still use may wait.
    # DDP sits in a reference cycle and holds the group: uncollected, gloo's threads outlive destroy_process_group and
    # now and then abort the interpreter's exit.
    gc.collect()
    dist.destroy_process_group()


def say(text: str) -> None:
    """Print on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def mean_over_ranks(value: torch.Tensor) -> float:
    """The average of a scalar over all ranks; a collective."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long work takes, its kernels on the GPU included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
