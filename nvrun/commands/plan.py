"""`nvrun plan`: what would happen, decided from real hosts or from recorded facts, and nothing of it done."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nvrun import job, rundir
from nvrun.commands import Said
from nvrun.commands.reach import crew_of
from nvrun.commands.recorded import read_facts
from nvrun.config import Invocation
from nvrun.facts import HostFacts
from nvrun.mask import masked
from nvrun.model import EnvVar
from nvrun.placement import Placed, place, wishes_of
from nvrun.plan import Plan
from nvrun.prepare import facts_requests, plan_of_facts, prepare
from nvrun.report import shell, text

RUN_ID = "RUN"
"""Stands for the run's id, which a plan alone does not have."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    return Said(_shown(decided(invocation, environ)[0], invocation))


def decided(invocation: Invocation, environ: Mapping[str, str]) -> tuple[Placed, tuple[HostFacts, ...]]:
    """What is decided for the hosts, and from which facts of them."""
    options = invocation.options
    the_job = job.read(invocation, environ)
    if options.from_:
        recorded = read_facts(options.from_)
        plan = plan_of_facts(the_job, RUN_ID, recorded)
        known = dict(enumerate(recorded))
    else:
        with crew_of(the_job, environ) as crew:
            crew.greet()
            plan = prepare(the_job, crew, RUN_ID, None).plan
            known = crew.facts(facts_requests(the_job, plan))
    return place(plan, known, wishes_of(the_job, known.values())), tuple(known.values())


def _shown(placed: Placed, invocation: Invocation) -> str:
    options = invocation.options
    if options.json:
        return rundir.to_json(_without_secrets(placed.plan)).decode()
    if options.dry_run:
        return shell.script(placed.plan)
    lines = [*text.rank_table(placed.plan), *(f"note: {notice}" for notice in placed.notices)]
    if options.show_env:
        lines += text.environment_lines(placed.environments)
    return "\n".join([*lines, *text.finding_lines(placed.findings)]) + "\n"


def _without_secrets(plan: Plan) -> Plan:
    """As it may stand on a screen or in a ticket."""

    def shown(variables: tuple[EnvVar, ...]) -> tuple[EnvVar, ...]:
        return tuple(replace(each, value=masked(each.name, each.value)) for each in variables)

    hosts = (
        replace(
            host,
            env=shown(host.env),
            defaults=shown(host.defaults),
            ranks=tuple(replace(rank, env=shown(rank.env)) for rank in host.ranks),
        )
        for host in plan.hosts
    )
    return replace(plan, hosts=tuple(hosts))
