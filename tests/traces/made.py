"""Traces of a GPU made by hand, in the documented form of Kineto's: none of them was recorded on one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Raw = Mapping[str, Any]


def event(category: str, name: str, begin: float, duration: float, **arguments: Any) -> Raw:
    """Times in microseconds."""
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": begin, "dur": duration,
            "args": arguments}  # fmt: skip


def kernel(begin: float, duration: float, name: str = "sm90_xmma_gemm_bf16") -> Raw:
    return event("kernel", name, begin, duration, stream=7)


def nccl(begin: float, duration: float, collective: str = "allreduce", elements: int = 1 << 20, dtype: str = "Float",
         kernel: str = "AllReduce_Sum_f32_RING_LL") -> Raw:  # fmt: skip
    return event("kernel", f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", begin, duration,
                 **{"Collective name": collective, "In msg nelems": elements, "Out msg nelems": elements,
                    "Group size": 8, "dtype": dtype, "Process Group Name": "0"})  # fmt: skip


def step(number: int, begin: float, duration: float) -> Raw:
    return event("user_annotation", f"ProfilerStep#{number}", begin, duration)


def text(events: Iterable[Raw], **head: Any) -> bytes:
    """A whole trace, with what else stands in one."""
    noise: list[Any] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": 'a ]} "traceEvents"'}},
                        {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 1.0, "bp": "e"},
                        event("cuda_runtime", "cudaLaunchKernel", 0, 3), "no event"]  # fmt: skip
    whole = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl"}, **head, "traceEvents": [*noise, *events]}
    return json.dumps({**whole, "traceName": "after the events"}).encode()


def write(path: Path, events: Iterable[Raw]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text(events)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
