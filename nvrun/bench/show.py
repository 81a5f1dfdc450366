"""Results as tables and curves for a terminal, and as plain data for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from nvrun.bench.limit import Limit
from nvrun.bench.model import Collective, Record, Results, Scope, algorithm_bandwidth, bus_bandwidth

Limits = Mapping[tuple[Collective, Scope], Limit]
_BARS = "▁▂▃▄▅▆▇█"
_SCOPES: Mapping[str, str] = {
    "all": "all {n} ranks",
    "node": "within a node, {n} ranks, all nodes at once",
    "across": "across nodes, {n} ranks, all places at once",
}


def lines(results: Results, limits: Limits) -> Iterator[str]:
    """Everything that was timed alone: a table for each collective and scope, and the curve of its bus bandwidth."""
    setup = results.setup
    if setup is None:
        return
    library = f"NCCL {setup.nccl}" if setup.nccl else setup.backend
    yield f"{library}, torch {setup.torch}, {setup.world} ranks; medians of the slowest rank, data checked"
    timed = [record for record in results.records if record.overlap is None]
    for (collective, scope), group in groupby(timed, key=lambda record: (record.collective, record.scope)):
        records = list(group)
        ranks = setup.scopes.get(scope, setup.world)
        most = limits.get((collective, scope), Limit(bytes_per_second=None, why="not known"))
        yield ""
        yield f"{_name(collective)}, {_SCOPES[scope].format(n=ranks)}; limit {_limit(most)}"
        head = ("size", "time", "middle half", "alg GB/s", "bus GB/s", "of limit", "")
        yield from table([head, *(_row(record, ranks, most) for record in records)])
        measured = [(record, bus_bandwidth(record, ranks)) for record in records if record.seconds]
        if len(measured) > 2:
            best, value = max(measured, key=lambda pair: pair[1])
            yield f"  bus {curve([each for _, each in measured])}  most {value / 1e9:.3g} GB/s at {size(best.bytes)}"


def overlap_lines(records: Iterable[Record]) -> Iterator[str]:
    """Collectives beside a matrix product: what each costs the other."""
    rows = [("collective", "size", "alone", "beside", "slowdown", "product alone", "beside", "slowdown", "both")]
    for record in records:
        both = record.overlap
        if both is None:
            continue
        alone, product = _middle(both.alone), _middle(both.matmul_alone)
        rows.append(
            (
                _name(record.collective),
                size(record.bytes),
                time(alone),
                time(_middle(both.together)),
                f"x{both.slowdown:.2f}",
                time(product),
                time(_middle(both.matmul_together)),
                f"x{both.matmul_slowdown:.2f}",
                f"{both.total / (alone + product):.0%} of one after the other",
            )
        )
    if len(rows) > 1:
        yield ""
        yield "beside a matrix product (as much of each as takes equally long alone)"
        yield from table(rows)


def data(results: Results, limits: Limits) -> list[dict[str, Any]]:
    """Records with their bandwidths in bytes per second, for JSON."""
    setup = results.setup
    found = []
    for record in results.records:
        row: dict[str, Any] = {
            name: value for name in record.__struct_fields__ if (value := getattr(record, name)) not in ("", None)
        }
        if record.seconds and setup is not None:
            ranks = setup.scopes.get(record.scope, setup.world)
            most = limits.get((record.collective, record.scope))
            row |= {
                "median": record.median,
                "algorithm_bandwidth": algorithm_bandwidth(record),
                "bus_bandwidth": bus_bandwidth(record, ranks),
            }
            if most and most.bytes_per_second:
                row["of_limit"] = row["bus_bandwidth"] / most.bytes_per_second
        found.append(row)
    return found


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns flush right; the last one flush left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield ("  " + "  ".join([*cells, row[-1]])).rstrip()


def curve(values: Sequence[float]) -> str:
    """One bar a value, the highest full: `▁▂▅█`."""
    top = max(values)
    return "".join(_BARS[min(7, int(8 * value / top))] if top > 0 else _BARS[0] for value in values)


def size(count: int) -> str:
    """`8 B`, `25 MiB`, `1.5 MiB`: the largest unit of which there is at least one."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def time(seconds: float) -> str:
    """`17.3 µs`, `4.20 ms`, `1.30 s`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _row(record: Record, ranks: int, most: Limit) -> tuple[str, ...]:
    if not record.seconds:
        return (size(record.bytes), "-", "", "", "", "", record.skipped)
    low, high = record.quartiles
    bus = bus_bandwidth(record, ranks)
    share = f"{bus / most.bytes_per_second:.1%}" if most.bytes_per_second else "-"
    checked = "" if record.checked == 1 else f"{record.checked:.0%} of the result checked"
    notes = [f"{record.wrong} WRONG ELEMENTS"] if record.wrong else [checked]
    return (
        size(record.bytes), time(record.median), f"{time(low)} to {time(high)}",
        f"{algorithm_bandwidth(record) / 1e9:.3g}", f"{bus / 1e9:.3g}", share, notes[0],
    )  # fmt: skip


def _limit(most: Limit) -> str:
    return f"{most.bytes_per_second / 1e9:.4g} GB/s ({most.why})" if most.bytes_per_second else f"not known: {most.why}"


def _name(collective: Collective) -> str:
    return collective.replace("_", "-")


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
