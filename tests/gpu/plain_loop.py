"""All-reduce in a plain loop, timed by the host's clock around a synchronized batch: what nvrun bench is held against.

Nothing of nvrun is in it. Rank 0 prints one JSON line: size in bytes -> seconds of the slowest rank for one call.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    found: dict[int, float] = {}
    for size in map(int, sys.argv[1:]):
        data = torch.rand(size // 4, device="cuda")
        calls = max(1, min(50, (1 << 30) // size))
        batches = []
        for _ in range(9):
            data.uniform_(-1, 1)
            dist.barrier()
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(data)
            torch.cuda.synchronize()
            seconds = torch.tensor((time.perf_counter() - begun) / calls, device="cuda", dtype=torch.float64)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            batches.append(float(seconds))
        found[size] = statistics.median(batches[2:])
    if dist.get_rank() == 0:
        print("PLAIN " + json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
