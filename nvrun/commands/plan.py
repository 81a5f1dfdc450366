"""`nvrun plan`: what would happen, decided from real hosts or from recorded facts, and nothing of it done."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nvrun import facts, job, rundir
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Ended, gathered
from nvrun.placement import Placed, place, wishes_of
from nvrun.prepare import facts_requests, plan_of_facts, prepare
from nvrun.report import shell, text

RUN_ID = "RUN"
"""Stands for the run's id, which a plan alone does not have."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    options = invocation.options
    the_job = job.read(invocation, environ)
    if options.from_:
        recorded = read_facts(options.from_)
        plan = plan_of_facts(the_job, RUN_ID, recorded)
        known = dict(enumerate(recorded))
    else:
        with gathered(the_job, environ, say=_say, show=lambda line: None) as crew:
            try:
                crew.greet()
                plan = prepare(the_job, crew, RUN_ID, None).plan
                known = crew.facts(facts_requests(the_job, plan))
            except Ended:
                assert crew.ending is not None
                for line in (*text.finding_lines(crew.findings), *filter(None, [crew.ending.message])):
                    _say(line)
                return Said("", crew.ending.exit_code)
    placed = place(plan, known, wishes_of(the_job, known.values()))
    return Said(_shown(placed, invocation))


def _shown(placed: Placed, invocation: Invocation) -> str:
    options = invocation.options
    if options.json:
        return rundir.to_json(placed.plan).decode()
    if options.dry_run:
        return shell.script(placed.plan)
    lines = [*text.rank_table(placed.plan), *(f"note: {notice}" for notice in placed.notices)]
    if options.show_env:
        lines += text.environment_lines(placed.environments)
    return "\n".join([*lines, *text.finding_lines(placed.findings)]) + "\n"


def read_facts(path: str) -> tuple[HostFacts, ...]:
    """Recorded facts of one host or of several. UsageError where the file holds something else."""
    try:
        known = facts.from_json(Path(path).read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: expected the output of nvrun facts --json: {error}") from None
    if not known:
        raise UsageError(f"{path}: expected facts of at least one host")
    return known


def _say(line: str) -> None:
    print(line, file=sys.stderr)
