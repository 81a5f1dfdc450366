"""What the ranks of study.py run: `ranks.py odd KIND SECONDS`, `ranks.py where`, `ranks.py steps SECONDS`."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

GPU = torch.cuda.is_available()
LOCAL, RANK = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
DEVICE = torch.device("cuda", LOCAL) if GPU else torch.device("cpu")


def begin(seconds: float = 120) -> None:
    if GPU:
        assert os.environ.get("NCCL_NVLS_ENABLE") == "0", "NVLink multicast must stay off"
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(
        "nccl" if GPU else "gloo", timeout=timedelta(seconds=seconds), device_id=DEVICE if GPU else None
    )


def done() -> None:
    if GPU:
        torch.cuda.synchronize()


def odd(kind: str, seconds: float) -> None:
    """Five good collectives; then rank 1 calls another one, leaves one out, or never comes. `seconds`: the timeout."""
    begin(seconds)
    x = torch.ones(1 << 20, device=DEVICE)
    for _ in range(5):
        dist.all_reduce(x)
    done()
    print(f"stuck from now {time.time():.2f}", flush=True)
    if RANK == 1 and kind == "hang":
        while True:
            time.sleep(0.2)
    if RANK == 1 and kind == "other":
        dist.broadcast(x, 0)
    elif RANK != 1 or kind != "none":
        dist.all_reduce(x)
    done()
    time.sleep(seconds + 30)


def where() -> None:
    """Where this rank may run, and take memory from."""
    status = Path("/proc/self/status").read_text().splitlines()
    mems = next(line.split()[1] for line in status if line.startswith("Mems_allowed_list"))
    policy = next(iter(Path("/proc/self/numa_maps").read_text().splitlines()), "").split(" ")[1:2]
    print(
        "WHERE " + json.dumps({"rank": RANK, "cpus": sorted(os.sched_getaffinity(0)), "mems": mems, "policy": policy})
    )


def steps(seconds: float) -> None:
    """A known all-reduce between two pauses, then training steps for so long; rank 0 says when each was."""
    begin()
    said: dict[str, object] = {}
    time.sleep(2.5)
    count, size = (100, 256 << 20) if GPU else (4, 4 << 20)
    x = torch.ones(size // 4, device=DEVICE)
    dist.all_reduce(x)
    done()
    time.sleep(2.5)
    begun = time.time()
    for _ in range(count):
        dist.all_reduce(x)
    done()
    said["known"] = {"begun": begun, "ended": time.time(), "bytes_sent": count * size}
    time.sleep(2.5)
    width = 4096 if GPU else 256
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(DEVICE)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(2048 if GPU else 16, width, device=DEVICE)
    rows: list[tuple[float, float]] = []
    Path("steps.begun").touch()
    go_on = torch.ones(1, device=DEVICE)
    end = time.time() + seconds
    while go_on.item():
        for _ in range(10):
            at, clock = time.time(), time.perf_counter()
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            done()
            rows.append((at, time.perf_counter() - clock))
        go_on.fill_(time.time() < end)
        dist.broadcast(go_on, 0)
    said["steps"] = rows
    if RANK == 0:
        Path("steps.json").write_text(json.dumps(said))
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "odd":
        odd(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1] == "where":
        where()
    else:
        steps(float(sys.argv[2]))
