"""A Chrome trace as torch.profiler writes it -> events, one after the other. Pure: a stream in, values out.

The format is that of Kineto: `{..., "traceEvents": [...]}`, each event with `cat`, `name`, `ts` and `dur` in
microseconds, and `args`. Kernels of NCCL and `record_param_comms` carry the message: `Collective name`,
`In msg nelems`, `Out msg nelems`, `dtype`, `Group size` (PyTorch's ParamCommsUtils.hpp). Gloo's work is an annotation
`gloo:...` on a thread of its own; its sizes are there where shapes were recorded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, BinaryIO, Literal, NamedTuple

CHUNK = 1 << 20
LONGEST = 64 << 20
"""Characters of one event, or of what stands before the first; more is no trace."""
WIDTHS = {"double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "bool": 1,
          "c10::half": 2, "c10::bfloat16": 2, "long int": 8, "unsigned char": 1, "signed char": 1,
          "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip
"""Bytes of an element, by the names that traces use."""

Kind = Literal["step", "collective", "kernel", "work", "copy", "runtime", "mark"]
"""`step`: one of the profiler's steps. `collective`: NCCL's kernel, or gloo's work. `kernel`: any other of a GPU.
`work`: an operator on the CPU. `copy`: between host and GPU. `runtime`: a call of CUDA that may wait. `mark`: a name
that advice is made from."""

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "barrier": "barrier",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "recv": "send_recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_?([A-Za-z]+)", re.IGNORECASE)
_WAITS = re.compile(
    r"cu(?:da)?(?:Stream|Device|Event|Ctx)Synchronize|cudaMemcpy$|cudaMemcpy_ptsz$|cudaStreamWaitEvent$"
)
_MARKS = re.compile(
    r"DistributedDataParallel\.forward|Optimizer\.step#|FullyShardedDataParallel|FSDP::|"
    r"torch\.distributed\.ddp\.reducer::|c10d::|aten::(?:item|_local_scalar_dense|nonzero|is_nonzero|equal)$"
)


class Message(NamedTuple):
    """What a collective carries."""

    collective: str
    """`all_reduce`, `all_gather`, ...; as the trace has it where it is none that is known."""
    bytes: int | None = None
    """The larger of what goes in and what comes out; None where the trace does not say."""
    dtype: str = ""
    group: int | None = None
    """Ranks of its group."""


class Event(NamedTuple):
    """Something that lasted. Microseconds by the trace's clock."""

    kind: Kind
    name: str
    begin: float
    end: float
    message: Message | None = None


def read(stream: BinaryIO) -> Iterator[Event]:
    """Events in the trace's order. Raises ValueError for what is no trace, or ends in the middle of one."""
    for raw in raw_events(stream):
        event = event_of(raw)
        if event is not None:
            yield event


def raw_events(stream: BinaryIO) -> Iterator[Mapping[str, Any]]:
    """The objects of `traceEvents`, decoded one at a time. ValueError where there is no such list, or no end of it."""
    decode = json.JSONDecoder().raw_decode
    text = codecs.getincrementaldecoder("utf-8")("replace")
    buffer, at, begun = "", 0, False

    def more() -> bool:
        nonlocal buffer, at
        data = stream.read(CHUNK)
        if not data:
            return False
        buffer, at = buffer[at:] + text.decode(data), 0
        if len(buffer) > LONGEST + CHUNK:
            raise ValueError("no trace of torch.profiler: no event where one should be")
        return True

    while not begun:
        if found := re.search(r'"traceEvents"\s*:\s*\[', buffer):
            at, begun = found.end(), True
        elif not more():
            raise ValueError("no trace of torch.profiler: it has no traceEvents")
    while True:
        while at < len(buffer) and buffer[at] in ", \r\n\t":
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            event, at = decode(buffer, at)
        except json.JSONDecodeError:
            if not more():
                raise ValueError("a trace that ends in the middle: the rank was killed while it wrote it") from None
            continue
        if isinstance(event, dict):
            yield event


def event_of(raw: Mapping[str, Any]) -> Event | None:
    """None for what nothing is made of: flows, metadata, launches."""
    name, category = raw.get("name"), raw.get("cat")
    begin, duration = raw.get("ts"), raw.get("dur")
    if not isinstance(name, str) or not isinstance(begin, int | float) or not isinstance(duration, int | float):
        return None
    kind, message = _kind(category, name, raw.get("args"))
    return Event(kind, name, float(begin), float(begin + duration), message) if kind else None


def _kind(category: object, name: str, arguments: object) -> tuple[Kind | None, Message | None]:
    if category == "kernel":
        return ("collective", message(name, arguments)) if name.startswith("nccl") else ("kernel", None)
    if category == "gpu_memcpy":
        return "copy", None
    if category in ("cuda_runtime", "cuda_driver"):
        return ("runtime", None) if _WAITS.match(name) else (None, None)
    if category == "user_annotation":
        if name.startswith("ProfilerStep#"):
            return "step", None
        if name.startswith("gloo:"):
            return "collective", message(name, arguments)
    if category in ("user_annotation", "cpu_op"):
        if _MARKS.match(name):
            return "mark", None
        if name.startswith("aten::"):
            return "work", None
    return None, None


def message(name: str, arguments: object) -> Message:
    """Of a kernel of NCCL or an annotation of gloo."""
    given = arguments if isinstance(arguments, Mapping) else {}
    kernel = _KERNEL.match(name)
    said = str(given.get("Collective name") or (kernel[1] if kernel else name.rpartition(":")[2]))
    dtype = str(given.get("dtype", "")).lower()
    elements = max(_count(given.get("In msg nelems")), _count(given.get("Out msg nelems")))
    if not elements:
        dtype, elements = _of_shapes(given)
    width = WIDTHS.get(dtype)
    size = _count(given.get("Group size")) or None
    return Message(collective(said), elements * width if elements and width else None, dtype, size)


def collective(word: str) -> str:
    """`_allgather_base`, `AllGather`, `all_gather_into_tensor_coalesced`: one name for each collective."""
    bare = re.sub(r"[^a-z]", "", word.lower())
    return next((known for start, known in _COLLECTIVES.items() if bare.startswith(start)), word or "unknown")


def _of_shapes(arguments: Mapping[str, Any]) -> tuple[str, int]:
    """Type and elements of the first operand; ("", 0) where shapes were not recorded."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes or not types:
        return "", 0
    shape = shapes[0]
    whole = isinstance(shape, list) and shape and all(isinstance(length, int) for length in shape)
    return (str(types[0]).lower(), prod(shape)) if whole else ("", 0)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
