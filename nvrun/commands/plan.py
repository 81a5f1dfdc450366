"""`nvrun plan`: what would happen, and nothing of it done; decided from real hosts, recorded facts or a topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from nvrun import job, rundir, topology
from nvrun.commands import COMMANDS, Said
from nvrun.commands.reach import crew_of
from nvrun.commands.recorded import read_facts, read_topology
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.job import Job
from nvrun.mask import masked
from nvrun.model import EnvVar
from nvrun.placement import Placed, place, wishes_of
from nvrun.plan import Plan
from nvrun.preflight import linted
from nvrun.prepare import facts_requests, plan_of_facts, prepare
from nvrun.report import shell, text

RUN_ID = "RUN"
"""Stands for the run's id, which a plan alone does not have."""
_TOLD = ("cpus", "numa", "smt")
"""What of a topology's gaps changes a binding; that it knows no software, network or limits goes without saying."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    return Said(_shown(*decided(invocation, environ), invocation))


def decided(invocation: Invocation, environ: Mapping[str, str]) -> tuple[Placed, tuple[HostFacts, ...]]:
    """What is decided for the hosts, and from which facts of them."""
    options = invocation.options
    the_job = job.read(invocation, environ)
    if source := invocation.flags.get("--topo"):
        if options.from_:
            raise UsageError("--topo and --from each name what to plan for: drop one")
        return _of_topology(the_job, source)
    if options.from_:
        recorded = read_facts(options.from_)
        if len(recorded) > 1:  # several hosts are a fleet, as `--hosts` would make them
            the_job = replace(the_job, mode=replace(the_job.mode, kind="fleet"))
        plan = plan_of_facts(the_job, RUN_ID, recorded)
        known = dict(enumerate(recorded))
    else:
        with crew_of(the_job, environ) as crew:
            crew.greet()
            plan = prepare(the_job, crew, RUN_ID, None).plan
            known = crew.facts(facts_requests(the_job, plan))
    return place(plan, known, wishes_of(the_job, known.values())), tuple(known.values())


def _of_topology(the_job: Job, source: str) -> tuple[Placed, tuple[HostFacts, ...]]:
    """For one machine, with a rank for each GPU unless --nproc-per-node says otherwise."""
    name, found = read_topology(source)
    known = topology.as_facts(found, name.rpartition("/")[2])
    if not the_job.args.is_set("nproc_per_node"):
        the_job = replace(the_job, args=the_job.args.replacing(nproc_per_node=len(found.gpus)))
    placed = place(
        plan_of_facts(the_job, RUN_ID, (known,)), {0: known}, wishes_of(the_job, (known,)), topologies={0: found}
    )
    gaps = {known.missing[section]: None for section in _TOLD if section in known.missing}
    notices = (*placed.notices, *(f"not known: {each}" for each in (*found.notes, *gaps)))
    return replace(placed, notices=notices), (known,)


def _shown(placed: Placed, known: Sequence[HostFacts], invocation: Invocation) -> str:
    options = invocation.options
    if options.json:
        return rundir.to_json(_without_secrets(placed.plan)).decode()
    if options.dry_run:
        return shell.script(placed.plan)
    lines = [*text.rank_table(placed.plan), *(f"note: {notice}" for notice in placed.notices)]
    lines += [f"note: {flag} stands behind the program, and so is the program's" for flag in _behind(invocation)]
    if options.show_env:
        lines += text.environment_lines(placed.environments, linted(placed, {each.host: each for each in known}))
    return "\n".join([*lines, *text.finding_lines(placed.findings)]) + "\n"


def _behind(invocation: Invocation) -> list[str]:
    """Flags that only a plan has, behind the program: that runs nowhere, and so will not refuse them."""
    own = {"--show-env", *(flag.name for flag in COMMANDS["plan"].flags)}
    return [flag for flag in invocation.torchrun.arguments if flag.partition("=")[0] in own]


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
