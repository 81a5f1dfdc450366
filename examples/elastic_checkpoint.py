"""A job that may lose nodes, be preempted and be told to save: it always goes on from its last checkpoint.

    nvrun --nnodes 1:2 --max-restarts 3 --hosts a,b examples/elastic_checkpoint.py --folder /shared/job1
    nvrun --nodes 2 --node-restarts 3 --hosts a,b,c examples/elastic_checkpoint.py --folder /shared/job1
    nvrun --nproc-per-node 2 examples/elastic_checkpoint.py --folder job1 --fsdp

SIGUSR1 saves and goes on (Slurm: `--signal=USR1@120`); SIGTERM saves and ends (preemption, Ctrl-C; nvrun's --grace is
the time there is for it). A signal reaches the ranks at different moments, so they agree on it once a step: a save that
only some ranks begin would hang. After a restart, with as many ranks or fewer, training goes on with the very next
samples: what is kept is how many samples of the epoch were seen, not how many steps one world took.

DDP: rank 0 alone writes one file, then all wait; on the way back rank 0 alone reads, and the others get it by
broadcast. --fsdp: each rank writes its own shards with torch.distributed.checkpoint, and they can be read back by
another number of ranks. Keep the folder on a file system that all hosts share: rank 0 may come back elsewhere.
It pays in every job longer than the mean time between failures of its machines: on large clusters, hours.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from group import mean_over_ranks, process_group, say
from models import Transformer, next_token_loss, text
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

asked = {"save": False, "stop": False}


def ask(number: int, _: object) -> None:
    """Signal handler: only notes what was asked; the training loop does it between two steps."""
    asked["save"] = True
    asked["stop"] |= number == signal.SIGTERM


def agreed(device: torch.device) -> tuple[bool, bool]:
    """Whether any rank was asked to save, and to stop: the same answer on all ranks."""
    flags = torch.tensor([asked["save"], asked["stop"]], dtype=torch.int32, device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    asked["save"] = False
    save, stop = flags.tolist()
    return bool(save), bool(stop)


class OneFile:
    """Checkpoints of a replicated model: one file, written and read by rank 0."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.path = folder / "checkpoint.pt"
        self.model, self.optimizer = model, optimizer

    def save(self, progress: dict[str, int]) -> None:
        if dist.get_rank() == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "progress": progress}
            # Written beside and renamed: a kill in the middle leaves the old checkpoint whole.
            new = self.path.with_suffix(".new")
            with open(new, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
        dist.barrier()

    def load(self, device: torch.device) -> dict[str, int] | None:
        state: list[Any] = [None]
        if dist.get_rank() == 0 and self.path.exists():
            state = [torch.load(self.path, map_location="cpu", weights_only=True)]
        dist.broadcast_object_list(state, src=0, device=device)
        if state[0] is None:
            return None
        self.model.load_state_dict(state[0]["model"])
        self.optimizer.load_state_dict(state[0]["optimizer"])
        return dict(state[0]["progress"])


class Shards:
    """Checkpoints of a sharded model: a folder for each, written by all ranks; `latest` names the last whole one."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.folder = folder
        self.model, self.optimizer = model, optimizer

    def state(self, progress: dict[str, int]) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "progress": progress}

    def save(self, progress: dict[str, int]) -> None:
        name = f"step{progress['step']}"
        dcp.save(self.state(progress), checkpoint_id=self.folder / name)
        if dist.get_rank() == 0:
            new = self.folder / "latest.new"
            new.write_text(name)
            new.replace(self.folder / "latest")
        dist.barrier()

    def load(self, device: torch.device) -> dict[str, int] | None:
        latest = self.folder / "latest"
        if not latest.exists():
            return None
        state = self.state({"step": 0, "epoch": 0, "seen": 0})
        dcp.load(state, checkpoint_id=self.folder / latest.read_text())
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return dict(state["progress"])


def train(args: argparse.Namespace, device: torch.device) -> float | None:
    """Train to the last step and return its loss, averaged over the ranks; None where it was told to stop before."""
    torch.manual_seed(0)
    net = Transformer(dim=args.dim, layers=2).to(device)
    if args.fsdp:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in [*net.blocks, net]:
            fully_shard(part, mesh=mesh)
    model = net if args.fsdp else DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    checkpoint = (Shards if args.fsdp else OneFile)(args.folder, net, optimizer)

    progress = checkpoint.load(device)
    # torchrun's restarts on the same hosts, and nvrun's on others.
    restart = sum(int(os.environ.get(f"{who}_RESTART_COUNT", "0")) for who in ("TORCHELASTIC", "NVRUN"))
    say(f"restart {restart}, {dist.get_world_size()} ranks, " + (f"from {progress}" if progress else "from the start"))
    progress = progress or {"step": 0, "epoch": 0, "seen": 0}

    data = text(args.samples, 32, seed=0)
    sampler = DistributedSampler(data, seed=0, drop_last=True)
    batch, world = args.batch_size, dist.get_world_size()
    loss = torch.zeros((), device=device)
    while progress["step"] < args.steps:
        if progress["seen"] + batch * world > len(data):
            progress = {**progress, "epoch": progress["epoch"] + 1, "seen": 0}
        sampler.set_epoch(progress["epoch"])
        # The sampler deals the shuffled samples round the ranks, so the first `seen` are the first seen/world of each.
        begin = progress["seen"] // world
        indices = list(sampler)[begin : begin + batch]
        loss = next_token_loss(model, data[indices].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress = {**progress, "step": progress["step"] + 1, "seen": progress["seen"] + batch * world}
        time.sleep(args.pause)

        save, stop = agreed(device)
        if save or progress["step"] % args.every == 0:
            checkpoint.save(progress)
            say(f"saved at step {progress['step']}")
        if stop:
            return None
    return mean_over_ranks(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoints are")
    parser.add_argument("--fsdp", action="store_true", help="fully_shard and sharded checkpoints")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of waiting a step, to try signals by hand")
    args = parser.parse_args()
    # Before anything slow: a signal that comes during start-up must not kill the rank either.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, ask)
    with process_group() as device:
        args.folder.mkdir(parents=True, exist_ok=True)
        loss = train(args, device)
        say("stopped as told" if loss is None else f"loss={loss:.7f}")


if __name__ == "__main__":
    main()
