"""Horovod under nvrun: the same data-parallel training with hvd.DistributedOptimizer.

    nvrun --nproc-per-node 2 --preset horovod examples/horovod_train.py

Horovod is usually started by horovodrun, which gives each rank its HOROVOD_* variables and runs a rendezvous server.
Under nvrun the variables follow from torchrun's, and rank 0 runs the server. That part follows horovod's own launcher
and has not been run yet. Where horovod is not installed the script says so and trains with DDP.

It pays where a code base uses Horovod already. For new code DDP does the same, and is part of torch. Horovod's fusion
buffer (HOROVOD_FUSION_THRESHOLD, in bytes) is what DDP calls bucket_cap_mb.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from types import ModuleType

import torch
import torch.distributed as dist
from group import mean_over_ranks, process_group, say
from models import Transformer, next_token_loss, text
from torch.nn.parallel import DistributedDataParallel


def horovod_environment(port: int) -> dict[str, str]:
    """What horovodrun would set for this rank, from what nvrun and torchrun have set."""
    env = os.environ
    sizes = env.get("NVRUN_LOCAL_WORLD_SIZES", env["LOCAL_WORLD_SIZE"]).split(",")
    node = env.get("NVRUN_NODE_RANK", env["GROUP_RANK"])
    return {
        "HOROVOD_RANK": env["RANK"],
        "HOROVOD_SIZE": env["WORLD_SIZE"],
        "HOROVOD_LOCAL_RANK": env["LOCAL_RANK"],
        "HOROVOD_LOCAL_SIZE": env["LOCAL_WORLD_SIZE"],
        "HOROVOD_CROSS_RANK": node,
        "HOROVOD_CROSS_SIZE": str(len(sizes)),
        "HOROVOD_HOSTNAME": f"node{node}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": env["MASTER_ADDR"],
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def start_horovod() -> ModuleType | None:
    """Horovod, initialised; None where it is not installed."""
    try:
        import horovod.torch as hvd
    except ImportError:
        return None
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    world = int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(minutes=5)
    )
    if os.environ["RANK"] == "0":
        sizes = os.environ.get("NVRUN_LOCAL_WORLD_SIZES", os.environ["LOCAL_WORLD_SIZE"]).split(",")
        hosts = ",".join(f"node{node}:{size}" for node, size in enumerate(sizes))
        server = RendezvousServer(False)
        port = server.start()
        server.init(get_host_assignments(parse_hosts(hosts), world))
        store.set("horovod_port", str(port))
    os.environ.update(horovod_environment(int(store.get("horovod_port"))))
    hvd.init()
    if hvd.size() != world:
        raise SystemExit(f"horovod sees {hvd.size()} ranks, nvrun started {world}")
    return hvd


def train(args: argparse.Namespace, hvd: ModuleType | None, device: torch.device) -> torch.Tensor:
    """Train and return the last loss of this rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    net = Transformer().to(device)
    model: torch.nn.Module = net
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    if hvd:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    else:
        model = DistributedDataParallel(net)
    loss = torch.zeros(())
    for step in range(args.steps):
        loss = next_token_loss(model, text(8, 64, seed=step * world + rank).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    hvd = start_horovod()
    if hvd is None:
        with process_group() as device:
            say("horovod is not installed: training with DDP")
            say(f"loss={mean_over_ranks(train(args, None, device)):.7f}")
        return
    own_gpu = torch.cuda.device_count() >= hvd.local_size()
    device = torch.device("cuda", hvd.local_rank()) if own_gpu else torch.device("cpu")
    if own_gpu:
        torch.cuda.set_device(device)
    loss = hvd.allreduce(train(args, hvd, device))
    if hvd.rank() == 0:
        print(f"horovod, loss={loss.item():.7f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
