"""One rank of `--check deep`: a matrix product, copies between the GPUs of the host, all-reduces. Travels as text.

Standard library and torch, Python 3.9. What was learned is printed at once, one line of JSON behind MARK each, so that
a later part that hangs takes nothing with it. RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as usual.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

MARK = "nvrun-smoke "
MATRIX = {"cuda": 8192, "cpu": 256}
REPEAT = {"cuda": 20, "cpu": 5}
BYTES = {"cuda": 256 << 20, "cpu": 1 << 20}


def say(**what: object) -> None:
    os.write(1, ("\n" + MARK + json.dumps(what) + "\n").encode())


def seconds(torch: Any, kind: str, run: Callable[[], object], count: int) -> float:
    """Of one call, after a few that are not timed."""
    for _ in range(3):
        run()
    if kind == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(count):
        run()
    if kind == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / count


def product(torch: Any, kind: str, device: str) -> None:
    n = MATRIX[kind]
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    took = seconds(torch, kind, lambda: torch.mm(left, right), REPEAT[kind])
    say(gemm=2 * n**3 / took / 1e12)


def copies(torch: Any, gpus: int) -> None:
    """From each GPU to each other one, one after the other."""
    size = BYTES["cuda"]
    blocks = [torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in range(gpus)]
    rates = {}
    for source in range(gpus):
        for target in range(gpus):
            if source == target:
                continue

            def copy(source: int = source, target: int = target) -> None:
                blocks[target].copy_(blocks[source])

            copy()
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            begun = time.perf_counter()
            for _ in range(5):
                copy()
            torch.cuda.synchronize(source)
            torch.cuda.synchronize(target)
            rates[f"{source}-{target}"] = 5 * size / (time.perf_counter() - begun) / 1e9
    say(copies=rates)


def all_reduce(torch: Any, kind: str, device: str, group: Any, name: str, members: int, total: float) -> None:
    """Bus bandwidth, and whether the sum of `members` ranks' numbers is `total`."""
    dist = torch.distributed
    block = torch.full((BYTES[kind] // 4,), float(dist.get_rank() + 1), device=device)
    dist.all_reduce(block, group=group)
    right = bool((block == total).all())
    block.zero_()
    took = seconds(torch, kind, lambda: dist.all_reduce(block, group=group), REPEAT[kind])
    say(**{name: BYTES[kind] / took * 2 * (members - 1) / members / 1e9, "right": right})


def main(what: dict[str, Any]) -> None:
    import torch
    from torch._C._distributed_c10d import TCPStore

    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    kind = "cuda" if what["gpus"] else "cpu"
    device = f"cuda:{local}" if what["gpus"] else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(1)
    if what["alone"]:
        product(torch, kind, device)
    if world == 1:
        return
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        rank == 0,
        timeout=timedelta(seconds=what["seconds"]),
    )
    backend = "nccl" if kind == "cuda" else "gloo"
    say(backend=backend)
    if what["alone"] and kind == "cuda" and what["local"] > 1:
        if local == 0:
            copies(torch, what["local"])
        # The others wait: a collective beside the copies would be measured with them.
        store.add(f"copied/{what['node']}", int(local == 0))
        while store.add(f"copied/{what['node']}", 0) < 1:
            time.sleep(0.005)
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=what["seconds"])
    )
    if what["alone"]:
        mine = None
        for first, count in what["nodes"]:
            members = list(range(first, first + count))
            group = torch.distributed.new_group(members)
            if rank in members and count > 1:
                mine = (group, members)
        if mine:
            all_reduce(torch, kind, device, mine[0], "own", len(mine[1]), float(sum(rank + 1 for rank in mine[1])))
    if len(what["nodes"]) > 1:
        all_reduce(torch, kind, device, None, "together", world, float(world * (world + 1) // 2))
    say(done=True)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # what the libraries do at the end is not tested


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
