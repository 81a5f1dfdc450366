"""`nvrun bench`: collectives timed on the hosts and ranks that a job would have; `--compare A B` in one allocation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
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
    """Exits 1 where data was wrong or a trial failed, with the job's own code where nothing was measured."""
    flags = invocation.flags
    lengths = model.sizes(flags.get("--sizes") or (COMPARED if "--compare" in flags else "8:8G"))
    most = {} if "--sizes" in flags else model.LARGEST
    if "--compare" in flags:
        return _compare(invocation, environ, lengths, most)
    if invocation.words:
        raise UsageError(f"nvrun bench runs no program; what is {invocation.words[0]}?", hint="nvrun bench --help")
    chosen = model.points(model.collectives(flags.get("--collectives")), lengths)
    beside = "--overlap" in flags
    schedule = model.Schedule(
        points=chosen,
        scopes=("all", "node", "across"),
        order=((0, False), (0, True)) if beside else ((0, False),),
        deadline=60 + SECONDS_A_POINT * len(chosen),
        most_bytes=most,
        seed=random.getrandbits(30),
    )
    done = session.run(job.read(invocation, environ), schedule, environ, note)
    limits = limits_of(done.facts, done.plan, schedule)
    results = done.results
    found = show.data(results, limits)
    text = document(setup=results.setup, records=found, trials=results.trials)
    Path(done.folder, "bench.json").write_text(text)
    if plot := flags.get("--plot"):
        _plot(Path(plot), found)
    if not invocation.options.json:
        text = "\n".join([*show.lines(results, limits), *show.overlap_lines(results.records), *_failed(results)]) + "\n"
    return Said(text, done.result.exit_code or _exit_code(results))


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
    done = session.run(job.read(invocation, environ), schedule, environ, note)
    found = compare.compare(done.results, (words[0], words[1]))
    text = document(comparison=found, verdict=found.verdict, environments=both, trials=done.results.trials)
    Path(done.folder, "compare.json").write_text(text)
    if not invocation.options.json:
        text = "\n".join([*compare.lines(found), *_failed(done.results)]) + "\n"
    return Said(text, done.result.exit_code or _exit_code(done.results))


def _failed(results: model.Results) -> Iterator[str]:
    for end in results.trials:
        if end.failed:
            yield f"trial {end.trial} failed: {end.failed}"


def _exit_code(results: model.Results) -> int:
    return int(any(record.wrong for record in results.records) or any(end.failed for end in results.trials))


def _plot(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Bus bandwidth over size, with matplotlib where it is installed."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UsageError("--plot needs matplotlib, which is not installed", hint="the tables have curves too") from None
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
