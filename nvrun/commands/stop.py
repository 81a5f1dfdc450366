"""`nvrun stop [RUN]`: ends a run on all its hosts, by its launcher where that lives here, else from host to host."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from nvrun import runs
from nvrun.commands import Said
from nvrun.commands.reach import crew_of
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.plan import attempt_id
from nvrun.report.document import document
from nvrun.report.text import end_in_words, finding_lines

_LAST_SECONDS = 30.0
"""After the grace: a launcher's sweep, its hosts' last words, and the logs that it brings back."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits with 0 where nothing of the run is left, 69 where a host was not reached, 1 where something still runs."""
    if len(invocation.words) > 1:
        raise UsageError(f"nvrun stop: expected one run, got {len(invocation.words)}")
    found = runs.resolve(invocation.words[0] if invocation.words else _the_one_that_runs(environ), environ)
    result = runs.result_of(found.path)
    as_json = invocation.options.json
    name = found.path.name
    if result is not None:
        how = end_in_words(result.ended_by, result.exit_code)
        text = f"{name} is over: {how}" if invocation.words else f"nothing runs; the last run was {name}: {how}"
        return _said(text, 0, as_json, run=name, by="nobody", ended_by=result.ended_by)
    entry = found.remembered
    if entry is None:
        raise UsageError(
            f"{found.path}: the index does not know this run, so neither its launcher nor its hosts",
            hint="nvrun runs lists those that it knows; nvrun clean --hosts LIST ends what a dead run left behind",
        )
    asked = invocation.source("grace") != "default"
    grace = invocation.options.grace if asked else entry.options.get("grace", invocation.options.grace)
    if runs.lives(entry.launcher):
        return _by_launcher(found, entry, float(grace), as_json)
    return _by_hosts(entry, float(grace), environ, as_json)


def _the_one_that_runs(environ: Mapping[str, str]) -> str:
    """Without a word there is one run that can be meant, or UsageError: the newest may be another job's. A round of
    bench or tune is meant only where nothing else runs."""
    all_of_them = [
        each
        for each in runs.known(environ)
        if runs.lives(each.launcher) is not False and Path(each.path).is_dir() and not runs.is_over(Path(each.path))
    ]
    running = [each.id for each in all_of_them if not each.measures] or [each.id for each in all_of_them]
    if len(running) > 1:
        shown = ", ".join(running[:5]) + " ..." * (len(running) > 5)
        raise UsageError(
            f"nvrun stop: which of {len(running)} runs? {shown}", hint="nvrun stop RUN; nvrun runs lists them"
        )
    return running[0] if running else runs.LATEST


def _by_launcher(found: runs.Run, entry: runs.Remembered, grace: float, as_json: bool) -> Said:
    pid = entry.launcher.pid
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if runs.lives(entry.launcher):  # looked at again: from here on the descriptor is that very process
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            ended = bool(poll.poll((grace + _LAST_SECONDS) * 1000))
        finally:
            os.close(pidfd)
        if not ended:
            text = f"{entry.id}: its launcher, process {pid}, got SIGTERM and still runs; again: at once"
            return _said(text, 1, as_json, run=entry.id, by="launcher", ended_by=None)
    result = runs.result_of(found.path)
    how = end_in_words(result.ended_by, result.exit_code) if result else "its launcher is gone, without a result"
    return _said(
        f"{entry.id} is over: {how}",
        0,
        as_json,
        run=entry.id,
        by="launcher",
        ended_by=result.ended_by if result else None,
    )


def _by_hosts(entry: runs.Remembered, grace: float, environ: Mapping[str, str], as_json: bool) -> Said:
    """The launcher is dead, or on another machine: whatever carries the run's mark is ended on each host."""
    where = entry.launcher
    gone = runs.lives(where) is False
    lines = [
        f"{entry.id}: its launcher {'is dead' if gone else f'runs on {where.host} (process {where.pid})'};"
        " its hosts are reached from here"
    ]
    the_job = runs.job_of(entry)
    hosts: list[dict[str, object]] = []
    left = False
    with crew_of(the_job, {**environ, **entry.variables}) as crew:
        crew.arrive()
        body = {"t": "sweep", "run": attempt_id(entry.id, entry.attempt), "grace": grace}
        for host, (answer, _) in crew.ask(dict.fromkeys(crew.hello, body), "swept", grace + 20.0).items():
            swept = answer["result"] or {"ended": [], "left": []}
            trouble = answer["trouble"]
            left = left or bool(swept["left"] or trouble)
            hosts.append({"host": crew.names[host], **swept, "trouble": trouble})
            lines.append(f"  {crew.names[host]}: {_told(swept, trouble)}")
        lines += finding_lines(crew.findings)
        findings = [msgspec.to_builtins(finding) for finding in crew.findings]
    return _said(
        "\n".join(lines),
        1 if left else 69 if findings else 0,
        as_json,
        run=entry.id,
        by="hosts",
        hosts=hosts,
        findings=findings,
    )


def _told(swept: Mapping[str, list[int]], trouble: str) -> str:
    if trouble:
        return f"could not look: {trouble}"
    pids = " ".join(map(str, swept["left"]))
    count = len(swept["ended"])
    ended = f"{count} process{'es'[: 2 * (count > 1)]} ended" if count else "nothing of it there"
    return ended + (f"; processes {pids} cannot be ended (uninterruptible wait?)" if pids else "")


def _said(text: str, exit_code: int, as_json: bool, **parts: object) -> Said:
    return Said(document(**parts) if as_json else f"{text}\n", exit_code)
