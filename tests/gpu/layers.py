"""Part three of study.py: what nvrun sets by itself, and each named preset, beside NCCL's own choice.

Over NVLink and between two hosts over sockets, 1 MB to 1 GB, alone and beside a matrix product, all in one job each.
The automatic layer runs in pairs with NCCL's default, whose order changes from pair to pair; presets run between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tests.gpu.figures import RECORDERS, SIZES, compression, hosts, session, set_by
from tests.gpu.study import GPU, Study

DEFAULT, AUTOMATIC = "default", "automatic"
NVLINK = ["throughput", "latency", "model-large", "model-medium", "model-small", "stability", "nvlink", "hopper"]
SOCKETS = ["ethernet", "model-large", "model-medium", "model-small", "throughput", "latency", "stability", "hopper"]


def measured(
    study: Study, name: str, where: list[str], named: list[str], alone: int, beside: int, sizes: list[int] = SIZES
) -> dict[str, Any]:
    """So many pairs alone and beside a product."""
    ours = set_by(study, name, where, ("nvrun", *RECORDERS))
    # The job that measures has each host's interface already; an empty value is to NCCL as none (src/misc/socket.cc).
    bare = "NCCL_SOCKET_IFNAME=" if any(word.startswith("NCCL_SOCKET_IFNAME=") for word in ours) else DEFAULT
    words = [bare, " ".join(word for word in ours if not word.startswith("NCCL_SOCKET_IFNAME=")) or DEFAULT, *named]
    titles = [DEFAULT, AUTOMATIC, *named]
    order: list[list[Any]] = [[0, False]]
    for at in range(max(alone, beside, len(named))):
        for loaded, pairs in ((False, alone), (True, beside)):
            if at < pairs:
                order += [[which, loaded] for which in ((0, 1) if at % 2 == 0 else (1, 0))]
        if at < len(named):
            order += [[2 + at, False], [2 + at, True]]
    points = [["all_reduce", size] for size in sizes]
    done = session(study, name, where, environments=words, order=order, points=points, seconds=0.06, deadline=60.0)
    rows: dict[tuple[int, int], dict[str, Any]] = {(each["trial"], each["bytes"]): each for each in done["records"]}
    found: dict[str, Any] = {key: done[key] for key in ("failed", "seconds", "trials")}
    found["variables"] = ours
    for trial, (which, _) in enumerate(order):
        for size in sizes if trial else ():  # the first trial warms up
            if row := rows.get((trial, size)):
                each = found.setdefault(titles[which], {})
                for title, value in figures(row).items():
                    each.setdefault(f"{title} {size}", []).append(value)
    found["ratios"] = {size: ratios(rows, order, size) for size in sizes}
    found["summary"] = summary(found, named)
    return found


def figures(row: dict[str, Any]) -> dict[str, float]:
    if row.get("bus_bandwidth"):
        return {"GB/s": round(row["bus_bandwidth"] / 1e9, 4)}
    both, (calls, _) = row["overlap"], row["load"]
    times = {name: statistics.median(seconds) for name, seconds in both.items()}
    return {
        "beside GB/s": round(row["bytes"] * calls / times["together"] / 1e9, 4),  # of two ranks the bus factor is 1
        "product takes": round(times["matmul_together"] / times["matmul_alone"], 3),
        "both over the longer alone": round(
            statistics.median(map(max, both["together"], both["matmul_together"]))
            / max(times["alone"], times["matmul_alone"]),
            3,
        ),
    }


def ratios(rows: dict[tuple[int, int], dict[str, Any]], order: list[list[Any]], size: int) -> dict[str, Any]:
    """Automatic over default, a number for each pair; and the default over the default that ran before it, which is
    what no setting at all makes of it."""
    found: dict[str, list[float]] = {"alone": [], "beside": [], "default over default": [], "the same beside": []}
    before: dict[bool, float] = {}
    pair: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for trial, (which, beside) in enumerate(order):
        if not trial or which > 1:
            continue
        row = rows.get((trial, size))
        if row is None:  # what is there of this pair has no other half
            pair[beside] = {}
            continue
        rate = figures(row)["beside GB/s" if beside else "GB/s"]
        if which == 0:
            if beside in before:
                found["the same beside" if beside else "default over default"].append(round(rate / before[beside], 3))
            before[beside] = rate
        pair[beside][which] = rate
        if len(pair[beside]) == 2:
            found["beside" if beside else "alone"].append(round(pair[beside][1] / pair[beside][0], 3))
            pair[beside] = {}
    return {
        title: {"median": round(statistics.median(values), 3), "all": values}
        for title, values in found.items()
        if values
    }


def summary(found: dict[str, Any], named: list[str]) -> list[str]:
    """A line for each: median and range of the default, then what each preset gave."""

    def shown(values: list[float]) -> str:
        middle = statistics.median(values)
        return f"{middle:.3g} ({min(values):.3g}-{max(values):.3g})" if len(values) > 1 else f"{middle:.3g}"

    return [
        f"{name:>13} {title}: "
        + ", ".join(shown(found[name][f"{title} {size}"]) for size in SIZES if found[name].get(f"{title} {size}"))
        for name in (DEFAULT, AUTOMATIC, *named)
        if name in found
        for title in ("GB/s", "beside GB/s", "product takes", "both over the longer alone")
    ]


def nvlink(study: Study) -> dict[str, Any]:
    pairs = 6 if GPU else 2
    return measured(study, "layers-nvlink", ["--nproc-per-node", "2"], NVLINK if GPU else NVLINK[:1], pairs, pairs)


def sockets(study: Study) -> dict[str, Any]:
    pairs = 6 if GPU else 2
    return measured(study, "layers-sockets", hosts(study), SOCKETS if GPU else SOCKETS[:1], pairs, pairs)


def automatic_sockets(study: Study) -> dict[str, Any]:
    """Many pairs: between two processes the same setting scatters by a tenth here."""
    alone, beside = (4, 36) if GPU else (2, 2)
    return measured(study, "automatic-sockets", hosts(study), [], alone, beside, SIZES[:-1])


def automatic_longest(study: Study) -> dict[str, Any]:
    """A pair takes 40 s; what the step's time does not hold is left out."""
    pairs = 14 if GPU else 1
    return measured(study, "automatic-longest", hosts(study), [], pairs, pairs, SIZES[-1:])


STEPS: dict[str, tuple[float, Callable[[Study], Any]]] = {
    "layers NVLink": (120, nvlink),
    "layers sockets": (340, sockets),
    "compression": (65, compression),
    "automatic sockets": (0, automatic_sockets),
    "automatic longest": (0, automatic_longest),
}
"""Step -> seconds at most, and what it does."""
