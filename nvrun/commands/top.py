"""`nvrun top [RUN]`: the newest samples of a run's hosts, live in a terminal, once where the output is none.

Samples of hosts that share the run's folder are read there; the others are asked, over a link of its own to each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nvrun import monitor, runs
from nvrun.commands import Said
from nvrun.commands.reach import crew_of
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.fleet.crew import Crew
from nvrun.monitor import HostSamples
from nvrun.monitor.samples import FILE
from nvrun.plan import Plan
from nvrun.report import live
from nvrun.report.document import document
from nvrun.report.text import end_in_words
from nvrun.rundir import file_name

EVERY_SECONDS = 2.0
_ASK_SECONDS = 10.0
_TAIL_BYTES = 1 << 17
"""Two samples of a host with 8 GPUs, 8 ranks and 16 ports are some ten thousand bytes."""

Newest = Callable[[], dict[str, HostSamples]]


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Ends with the run, or by Ctrl-C."""
    if len(invocation.words) > 1:
        raise UsageError(f"nvrun top: expected one run, got {len(invocation.words)}")
    found = runs.resolve(invocation.words[0] if invocation.words else runs.LATEST, environ)
    plan = runs.plan_of(found.path)
    if plan is None:
        raise UsageError(f"{found.path}: no plan.json: nothing of this run has begun")
    offsets = {host: facts.clock_offset_s or 0.0 for host, facts in runs.facts_of(found.path).items()}
    with newest_of(found, plan, environ) as newest:
        if invocation.options.json:
            return Said(document(hosts=newest()))
        if not sys.stdout.isatty():
            return Said(_over(found) + _plain(plan, newest(), offsets))
        with suppress(KeyboardInterrupt), Live(console=Console(), auto_refresh=False, screen=True) as screen:
            while runs.result_of(found.path) is None:
                screen.update(_group(plan, newest(), offsets), refresh=True)
                time.sleep(EVERY_SECONDS)
        return Said(_over(found) + _plain(plan, newest(), offsets))


def _over(found: runs.Run) -> str:
    """That the samples are the last ones there are."""
    result = runs.result_of(found.path)
    return (
        f"{found.path.name} is over: {end_in_words(result.ended_by, result.exit_code)}; as it was last\n"
        if result
        else ""
    )


@contextmanager
def newest_of(found: runs.Run, plan: Plan, environ: Mapping[str, str]) -> Iterator[Newest]:
    """A function that reads header and last samples of every host that can be read."""
    names = [host.host.name for host in plan.hosts]
    here = {name: found.path / "logs" / file_name(name) / FILE for name in names}
    elsewhere = [node for node, name in enumerate(names) if not here[name].exists()]
    entry = found.remembered
    over = runs.result_of(found.path) is not None

    def local() -> dict[str, HostSamples]:
        read = {name: tail(path) for name, path in here.items()}
        return {name: samples for name, samples in read.items() if samples is not None}

    if not elsewhere or entry is None or over or not entry.fleet:
        yield local
        return
    asked = msgspec.structs.replace(
        runs.job_of(entry),
        hosts=tuple(entry.hosts[node] for node in elsewhere),
        kinds=tuple(entry.kinds[node] for node in elsewhere),
    )
    with crew_of(asked, {**environ, **entry.variables}) as crew:
        crew.arrive()
        yield lambda: local() | _remote(crew, plan.id, elsewhere, names)


def _remote(crew: Crew, attempt: str, nodes: list[int], names: list[str]) -> dict[str, HostSamples]:
    bodies = {at: {"t": "sample", "mark": f"{attempt}.{nodes[at]}"} for at in crew.hello}
    found: dict[str, HostSamples] = {}
    for at, (body, _) in crew.ask(bodies, "sampled", _ASK_SECONDS).items():
        samples = monitor.parse(line.encode() for line in body["result"] or ())
        if samples is not None:
            found[names[nodes[at]]] = samples
    return found


def tail(path: Path) -> HostSamples | None:
    """Header and last two samples of a file."""
    try:
        with path.open("rb") as file:
            header = file.readline()
            file.seek(max(len(header), path.stat().st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    return monitor.parse([header, *lines[-2:]])


def _now(plan: Plan, offsets: Mapping[str, float]) -> dict[str, float]:
    return {host.host.name: time.time() + offsets.get(host.host.name, 0.0) for host in plan.hosts}


def _group(plan: Plan, seen: Mapping[str, HostSamples], offsets: Mapping[str, float]) -> Group:
    table = Table(*live.HEAD, box=None, header_style="bold", pad_edge=False)
    for row in live.rows(plan, seen):
        table.add_row(*map(Text, row))
    return Group(table, *(Text(line) for line in live.host_lines(plan, seen, _now(plan, offsets))))


def _plain(plan: Plan, seen: Mapping[str, HostSamples], offsets: Mapping[str, float]) -> str:
    rows = [live.HEAD, *live.rows(plan, seen)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(live.HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *live.host_lines(plan, seen, _now(plan, offsets))]) + "\n"
