"""`nvrun bench`: collectives timed on the hosts and ranks that a job would have; `--compare A B` in one allocation."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvrun import job
from nvrun.bench import compare, model, session, settings, show
from nvrun.bench.limit import Limit, limit
from nvrun.commands import Said
from nvrun.commands.plan import decided
from nvrun.commands.reach import note
from nvrun.config import Invocation
from nvrun.environment import is_nvruns
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.placement import Placed, versions
from nvrun.plan import Plan
from nvrun.report.document import document

COMPARED = "64K,1M,16M,64M,256M"
SECONDS_A_POINT = 10.0
"""Of the deadline: fill, check, warm-up and timed calls of one point, on a slow machine."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits 1 where data was wrong, a trial failed, or --plot's file could not be written, with the job's own code
    where nothing was measured."""
    flags = invocation.flags
    lengths = model.sizes(flags.get("--sizes") or (COMPARED if "--compare" in flags else "8:8G"))
    most = {} if "--sizes" in flags else model.LARGEST
    if "--compare" in flags:
        return _compare(invocation, environ, lengths, most)
    if invocation.words:
        raise UsageError(f"nvrun bench runs no program; what is {invocation.words[0]}?", hint="nvrun bench --help")
    chosen = model.points(model.collectives(flags.get("--collectives")), lengths)
    plot = _place_of_plot(flags["--plot"]) if "--plot" in flags else None
    beside = "--overlap" in flags
    schedule = model.Schedule(
        points=chosen,
        scopes=("all", "node", "across"),
        order=((0, False), (0, True)) if beside else ((0, False),),
        deadline=60 + SECONDS_A_POINT * len(chosen),
        most_bytes=most,
        seed=random.getrandbits(30),
    )
    done = session.run(job.read(invocation, environ), schedule, environ, _progress(schedule))
    limits = limits_of(done.facts, done.plan, schedule)
    results = done.results
    found = show.data(results, limits)
    text = document(setup=results.setup, records=found, trials=results.trials)
    Path(done.folder, "bench.json").write_text(text)
    plotted = plot is None or _plot(plot, found)
    if not invocation.options.json:
        text = "\n".join([*show.lines(results, limits), *show.overlap_lines(results.records), *_failed(results)]) + "\n"
    return Said(text, done.result.exit_code or _exit_code(results) or int(not plotted))


def limits_of(facts: Sequence[HostFacts], plan: Plan | None, schedule: model.Schedule) -> show.Limits:
    """What the hardware allows, for every collective and scope of the schedule."""
    counts = {len(host.ranks) for host in plan.hosts} if plan else set()
    found: dict[tuple[model.Collective, model.Scope], Limit] = {}
    for collective in dict.fromkeys(point.collective for point in schedule.points):
        for scope in schedule.scopes:
            if len(counts) != 1 or not facts:
                found[collective, scope] = Limit(bytes_per_second=None, why="hosts have unlike numbers of ranks")
            else:
                found[collective, scope] = limit(collective, scope, facts, next(iter(counts)))
    return found


def users_variables(placed: Placed) -> frozenset[str]:
    """Names that the user set anywhere: on a host, in an nccl.conf, in nvrun.yaml, with --env."""
    return frozenset(
        each.variable.name
        for resolved in placed.environments.values()
        for each in resolved
        if not is_nvruns(each.variable)
    )


def _compare(
    invocation: Invocation, environ: Mapping[str, str], lengths: Sequence[int], most: Mapping[str, int]
) -> Said:
    flags, words = invocation.flags, invocation.words
    if other := flags.keys() & {"--overlap", "--plot"}:
        raise UsageError(f"{min(other)} has no meaning with --compare: drop one")
    if len(words) != 2:
        raise UsageError(
            f"--compare takes two environments after all flags, not {len(words)}",
            hint="nvrun bench --compare default 'NCCL_ALGO=Ring NCCL_PROTO=Simple'",
        )
    pairs = flags.get("--pairs") or str(compare.PAIRS)
    if not pairs.isdecimal() or not 2 <= int(pairs) <= 100:
        raise UsageError(f"--pairs {pairs}: expected a number from 2 to 100")
    placed, facts = decided(invocation, environ)
    folders = job.preset_folders(environ, invocation.options.preset_path)
    both = tuple(
        settings.environment(word, folders=folders, versions=versions(facts[0]), user=users_variables(placed))
        for word in words
    )
    chosen = model.points(model.collectives(flags.get("--collectives") or "all-reduce"), lengths)
    schedule = model.Schedule(
        environments=both,
        points=chosen,
        order=compare.order(int(pairs)),
        seconds=0.1,
        deadline=30 + SECONDS_A_POINT * len(chosen),
        most_bytes=most,
        seed=random.getrandbits(30),
    )
    done = session.run(job.read(invocation, environ), schedule, environ, _progress(schedule))
    found = compare.compare(done.results, (words[0], words[1]))
    text = document(comparison=found, verdict=found.verdict, environments=both, trials=done.results.trials)
    Path(done.folder, "compare.json").write_text(text)
    if not invocation.options.json:
        text = "\n".join([*compare.lines(found), *_failed(done.results)]) + "\n"
    return Said(text, done.result.exit_code or _exit_code(done.results))


def _progress(schedule: model.Schedule) -> Callable[[model.TrialEnd], None]:
    return lambda end: note(f"trial {end.trial + 1} of {len(schedule.order)}: {session.how(end)}")


def _failed(results: model.Results) -> Iterator[str]:
    for end in results.trials:
        if end.failed:
            yield f"trial {end.trial} failed: {end.failed}"


def _exit_code(results: model.Results) -> int:
    return int(any(record.wrong for record in results.records) or any(end.failed for end in results.trials))


def _place_of_plot(name: str) -> Path:
    """Where the picture goes. UsageError, before minutes are spent on measuring, where it cannot be drawn there."""
    path = Path(name)
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UsageError(f"--plot needs matplotlib: {error}", hint="the tables have curves too") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise UsageError(
            f"--plot {name}: expected a file that ends with one of {', '.join(f'.{each}' for each in kinds)}"
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--plot {name}: cannot be written: expected a file in a folder of yours")
    return path


def _plot(path: Path, records: Sequence[Mapping[str, Any]]) -> bool:
    """Bus bandwidth over size, by matplotlib. False where that failed, which is said: the tables do without."""
    try:
        _draw(path, records)
    except Exception as error:  # noqa: BLE001 - a full disk, or whatever that library may raise
        note(f"--plot {path}: not drawn: {error}")
        return False
    return True


def _draw(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    timed = [record for record in records if "bus_bandwidth" in record]
    for key in dict.fromkeys((record["collective"], record["scope"]) for record in timed):
        mine = [record for record in timed if (record["collective"], record["scope"]) == key]
        axes.plot(
            [record["bytes"] for record in mine],
            [record["bus_bandwidth"] / 1e9 for record in mine],
            marker="o",
            label=", ".join(map(str, key)),
        )
    axes.set(xscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s")
    axes.legend()
    figure.savefig(path)
