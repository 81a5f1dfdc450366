"""The messages of a job's step: from the size of a model, from a trace of the profiler, or as given. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from nvrun.bench.model import COLLECTIVES, Collective, Point, Record, collectives
from nvrun.errors import UsageError
from nvrun.model import Frozen
from nvrun.nccl.parse import scaled
from nvrun.options import parameters

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of DistributedDataParallel's first bucket and of the others (bucket_cap_mb = 25)."""
GRADIENT_BYTES = 2
"""bfloat16."""
MOST_POINTS = 6
"""Sizes that are measured: the ones that carry most bytes."""
_TRACE_NAMES: Mapping[str, Collective] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherinto": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "send": "send_recv",
}
_WIDTHS = {"double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "bool": 1}


class Profile(Frozen, frozen=True, kw_only=True):
    """How often a step sends messages of which size."""

    messages: tuple[tuple[Point, int], ...]
    """(what, how often), the most bytes first."""
    source: str

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(point for point, _ in self.messages)

    @property
    def heaviest(self) -> Point:
        return self.messages[0][0]


def seconds(profile: Profile, records: Sequence[Record]) -> float | None:
    """Of a step's messages, one after the other; None where one of them was not measured."""
    if len(records) != len(profile.messages) or any(not record.seconds for record in records):
        return None
    return sum(record.median * count for record, (_, count) in zip(records, profile.messages, strict=True))


def of_model(text: str) -> Profile:
    """DistributedDataParallel's buckets for a model of `7B` or `350M` parameters with bfloat16 gradients."""
    try:
        total = int(parameters(text) * GRADIENT_BYTES)
    except ValueError as error:
        raise UsageError(f"--model-size {text}: expected {error}") from None
    if total < 1024:
        raise UsageError(f"--model-size {text}: its gradients are {total} bytes, too few to tune for")
    counts: Counter[Point] = Counter()
    first = min(total, FIRST_BUCKET)
    counts[Point(collective="all_reduce", bytes=first)] += 1
    full, rest = divmod(total - first, BUCKET)
    counts[Point(collective="all_reduce", bytes=BUCKET)] += full
    if rest >= 1024:
        counts[Point(collective="all_reduce", bytes=rest // 1024 * 1024)] += 1
    return _profile(counts, f"DDP buckets of a model of {text} parameters, bfloat16")


def given(text: str) -> Profile:
    """`25M`, `all-reduce:25MiB*40,all-gather:4M*10`: a size, with or without a collective before and a count behind."""
    counts: Counter[Point] = Counter()
    for word in text.split(","):
        name, colon, rest = word.strip().rpartition(":")
        size, star, times = rest.partition("*")
        length = scaled(size)
        if not length or length < 4 or (star and not re.fullmatch(r"[1-9][0-9]{0,8}", times)):
            raise UsageError(f"--messages {word}: expected a size as 25MiB, all-gather:4MiB or all-reduce:25MiB*40")
        collective = collectives(name)[0] if colon else "all_reduce"
        counts[Point(collective=collective, bytes=length)] += int(times) if star else 1
    return _profile(counts, f"messages {text}")


def of_trace(name: str, text: bytes) -> Profile:
    """Messages of a Chrome trace of torch.profiler: its `record_param_comms` events. Sizes are rounded up to powers of
    two. Raises UsageError for another file, and where it holds no collective."""
    try:
        trace = msgspec.json.decode(text)
        events = trace["traceEvents"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise UsageError(f"{name}: expected a trace of torch.profiler (export_chrome_trace)") from None
    counts: Counter[Point] = Counter()
    for event in events if isinstance(events, list) else ():
        arguments = event.get("args") if isinstance(event, dict) else None
        if isinstance(arguments, dict) and event.get("name") == "record_param_comms":
            point = _message(arguments)
            if point is not None:
                counts[point] += 1
    if not counts:
        raise UsageError(f"{name}: no collective in this trace", hint="profile with ProfilerActivity.CPU")
    return _profile(counts, f"trace {name}")


def _message(arguments: Mapping[str, object]) -> Point | None:
    word = re.sub(r"[^a-z]", "", str(arguments.get("Collective name", "")).lower())
    collective = next((known for start, known in _TRACE_NAMES.items() if word == start), None)
    elements = max(_count(arguments, "In msg nelems"), _count(arguments, "Out msg nelems"))
    width = _WIDTHS.get(str(arguments.get("dtype", "")).lower().removeprefix("c10::"), 0)
    length = elements * width
    return Point(collective=collective, bytes=1 << (length - 1).bit_length()) if collective and length >= 4 else None


def _count(arguments: Mapping[str, object], key: str) -> int:
    found = arguments.get(key)
    return found if isinstance(found, int) else 0


def _profile(counts: Counter[Point], source: str) -> Profile:
    there = [(point, count) for point, count in counts.items() if count]
    heaviest = sorted(there, key=lambda item: (-item[0].bytes * item[1], COLLECTIVES.index(item[0].collective)))
    return Profile(messages=tuple(heaviest[:MOST_POINTS]), source=source)
