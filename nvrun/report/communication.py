"""What part of a profiled rank's time went into communication: a Chrome trace of torch.profiler -> `Share`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from nvrun.model import Frozen

Span = tuple[float, float]


class Share(Frozen, frozen=True, kw_only=True):
    """Of the GPU's time between its first and its last kernel, in seconds."""

    total: float
    communication: float
    """While a kernel of NCCL ran."""
    exposed: float
    """While a kernel of NCCL ran and no other kernel did: what a faster network could save at most."""
    busy: float
    """While any kernel ran."""


def share(trace: bytes) -> Share | None:
    """None for a trace without kernels of a GPU. Raises ValueError for what is no trace."""
    try:
        events: Any = msgspec.json.decode(trace)["traceEvents"]
        kernels = [event for event in events if event.get("cat") == "kernel" and "dur" in event]
        spans = [(str(each["name"]), (float(each["ts"]), float(each["ts"]) + float(each["dur"]))) for each in kernels]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no trace of torch.profiler: {error}") from None
    if not spans:
        return None
    communication = _union(span for name, span in spans if name.startswith("nccl"))
    compute = _union(span for name, span in spans if not name.startswith("nccl"))
    busy = _length(_union((*communication, *compute)))
    first, last = min(span[0] for _, span in spans), max(span[1] for _, span in spans)
    micro = 1e-6  # a trace's times are microseconds
    return Share(
        total=(last - first) * micro,
        communication=_length(communication) * micro,
        exposed=(busy - _length(compute)) * micro,
        busy=busy * micro,
    )


def _union(spans: Iterable[Span]) -> Sequence[Span]:
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
