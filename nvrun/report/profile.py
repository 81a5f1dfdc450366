"""Summaries of ranks' traces as lines for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvrun.traces.summary import Collective, RankProfile

_MOST = 32
"""Ranks in the table; --json has all."""


def lines(ranks: Sequence[RankProfile]) -> Iterator[str]:
    """A line a rank, then collectives and waits of the rank that spends most in communication."""
    yield from _table(
        [
            ("rank", "host", "steps", "ms a step", "compute", "communication", "hidden", "not hidden", "idle"),
            *(_row(rank) for rank in ranks[:_MOST]),
        ]
    )
    if len(ranks) > _MOST:
        yield f"and {len(ranks) - _MOST} more ranks: --json"
    if not ranks:
        return
    if not all(rank.steps for rank in ranks):
        yield "no steps are marked in a trace (ProfilerStep#): it counts as one step"
    most = max(ranks, key=lambda rank: rank.communication)
    where = "kernels of NCCL" if most.device == "gpu" else "gloo's work, against operators on the CPU"
    if most.collectives:
        yield ""
        yield f"{_name(most)}: collectives ({where})"
        yield from _table(
            [
                ("collective", "a step", "ms a step", "not hidden", "MiB a step", "messages"),
                *(_collective(most, each) for each in most.collectives),
            ]
        )
        if any(each.bytes is None for each in most.collectives):
            yield "  sizes that are not known: --hook torch-profiler:shapes=true records them for gloo"
    if most.waits:
        yield ""
        yield f"{_name(most)}: the CPU waits for the GPU"
        yield from _table(
            [
                ("call", "a step", "ms a step"),
                *(
                    (each.name, f"{most.each_step(each.count):.3g}", f"{most.each_step(each.seconds) * 1e3:.3f}")
                    for each in most.waits[:6]
                ),
            ]
        )


def _row(rank: RankProfile) -> tuple[str, ...]:
    whole = rank.total or 1.0
    return (
        rank.trace if rank.rank is None else str(rank.rank),
        rank.host,
        str(rank.steps or "unknown"),
        f"{rank.each_step(rank.total) * 1e3:.2f}",
        f"{rank.compute / whole:.1%}",
        f"{rank.communication / whole:.1%}",
        "-" if rank.hidden is None else f"{rank.hidden:.0%}",
        f"{rank.exposed / whole:.1%}",
        f"{rank.idle / whole:.1%}",
    )


def _collective(rank: RankProfile, each: Collective) -> tuple[str, ...]:
    sizes = ", ".join(f"{size.count} x {size.bytes / (1 << 20):.3g}" for size in each.sizes[:4])
    more = ", ..." if len(each.sizes) > 4 else ""
    return (
        each.name,
        f"{rank.each_step(each.count):.3g}",
        f"{rank.each_step(each.seconds) * 1e3:.3f}",
        f"{rank.each_step(each.exposed) * 1e3:.3f}",
        "unknown" if each.bytes is None else f"{rank.each_step(each.bytes) / (1 << 20):.4g}",
        " ".join(filter(None, (f"{sizes}{more} MiB" if sizes else "", *each.dtypes))),
    )


def _name(rank: RankProfile) -> str:
    return rank.trace if rank.rank is None else f"rank {rank.rank}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
