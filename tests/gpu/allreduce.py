"""All-reduce bandwidth as one JSON line on rank 0, for studies that compare environments: size in bytes -> GB/s.

Bus bandwidth by nccl-tests' definition, 2 (n-1)/n x bytes / time, median of `--repeat` timed rounds after a warm-up; on
random data, checked against a float64 sum. `--overlap` runs a matrix product on another stream at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="1M,16M,256M,1G")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--overlap", action="store_true")
    options = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    world = dist.get_world_size()
    factor = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    found: dict[str, float] = {}
    for text in options.sizes.split(","):
        size = int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]
        data = torch.rand(size // 4, device="cuda") + dist.get_rank()
        parts = [torch.empty_like(data[:1024]) for _ in range(world)]
        dist.all_gather(parts, data[:1024].clone())
        expected = sum(part.double() for part in parts)
        probe = data.clone()
        dist.all_reduce(probe)
        assert torch.allclose(probe[:1024].double(), torch.as_tensor(expected), rtol=1e-5), "wrong sum"
        loops = max(1, min(200, (256 << 20) // size))
        seconds = []
        for _ in range(options.repeat + 2):
            dist.barrier()
            if options.overlap:
                with torch.cuda.stream(beside):
                    for _ in range(max(8, loops)):
                        factor @ factor
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(loops):
                dist.all_reduce(probe)
            end.record()
            torch.cuda.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3 / loops)
            probe.copy_(data)
        time = statistics.median(seconds[2:])
        found[text] = round(2 * (world - 1) / world * size / time / 1e9, 1)
    if dist.get_rank() == 0:
        kept = os.environ.get("NCCL_NVLS_ENABLE")
        print("RESULT " + json.dumps({"busbw": found, "nvls": kept}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
