"""Facts, plan and what was tried between hosts -> verdict. Every rule lives in a family of its own; here they meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from nvrun import checks, environment
from nvrun.active import run
from nvrun.active.clock import Clock
from nvrun.active.run import Outcome
from nvrun.agent import denied
from nvrun.checks.checklist import LINT
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Crew
from nvrun.job import Job
from nvrun.meanings import MEANINGS
from nvrun.model import EnvVar, Finding, Frozen, Severity, Verdict
from nvrun.nccl import lint
from nvrun.placement import Placed, place, wishes_of
from nvrun.plan import Plan
from nvrun.prepare import opened_port
from nvrun.report import findings


def context(plan: Plan, job: Job) -> checks.Job:
    """The plan as the checks want to know it."""
    names = [host.host.name for host in plan.hosts]
    bindings = {host.host.name: [rank.binding for rank in host.ranks if rank.binding] for host in plan.hosts}
    interfaces = {
        host.host.name: variable.value
        for host in plan.hosts
        for rank in host.ranks[:1]
        for variable in rank.env
        if variable.name == "GLOO_SOCKET_IFNAME"
    }
    return checks.Job(
        hosts=tuple(names),
        ranks={host.host.name: len(host.ranks) for host in plan.hosts},
        gpus={name: tuple(binding.gpu for binding in bound if binding.gpu) for name, bound in bindings.items()},
        interfaces=interfaces,
        cpus={name: tuple({cpu for binding in bound for cpu in binding.cpus}) for name, bound in bindings.items()},
        binds_memory=any(binding.memory for bound in bindings.values() for binding in bound),
        script=job.script,
        cwd=plan.hosts[0].cwd,
        ends_hangs=math.isfinite(job.options.hang_timeout),
        require_path=job.options.require_path,
        require_same=job.options.require_same,
        textfile=None if job.options.monitor == "off" else job.options.monitor_textfile,
        port=opened_port(job, plan),
        endpoint=job.endpoint,
        run_id=plan.id,
        torchrun=job.args,
        # OMP_NUM_THREADS gets a default only where a host has several ranks: a difference that the plan itself makes.
        set_everywhere=_everywhere([host.env for host in plan.hosts])
        | (_anywhere([host.defaults for host in plan.hosts]) - _everywhere([host.defaults for host in plan.hosts])),
    )


def _everywhere(hosts: Sequence[Sequence[EnvVar]]) -> frozenset[str]:
    return frozenset.intersection(*(frozenset(variable.name for variable in variables) for variables in hosts))


def _anywhere(hosts: Sequence[Sequence[EnvVar]]) -> frozenset[str]:
    return frozenset(variable.name for variables in hosts for variable in variables)


def tests(crew: Crew, job: Job, plan: Plan, facts: Mapping[int, HostFacts], clock: Clock) -> Outcome:
    """What the hosts try with each other on the addresses of the plan, by the level of --check."""
    if job.options.check == "off":
        return Outcome()
    placed = place(plan, facts, wishes_of(job, facts.values())).plan
    return run.tests(crew, job, placed, context(placed, job), facts, clock)


class Before(NamedTuple):
    """What was known when the ranks were let go."""

    plan: Plan
    """As torchrun was started with it: a host of it for each agent."""
    placed: Plan
    """As the ranks were let go with it."""
    facts: Mapping[int, HostFacts]
    """By node of `plan`."""
    verdict: Verdict


class Decided(Frozen, frozen=True, kw_only=True):
    """What will run, and whether it may."""

    plan: Plan
    verdict: Verdict = Verdict()
    exit_code: int = 0
    """0, or why not: 69 unreachable, 78 refused."""
    lines: tuple[str, ...] = ()
    """What to tell the user."""
    bad_hosts: Mapping[str, str] = {}
    """Those that a launch would have to leave out, and why; none where the job itself is at fault."""
    between: tuple[str, ...] = ()
    """Where none is to blame alone: two of which one is."""


def decide(
    job: Job,
    plan: Plan,
    facts: Mapping[int, HostFacts],
    found: Sequence[Finding] = (),
    tried: Verdict = Verdict(),  # noqa: B008 - frozen
) -> Decided:
    """Ranks placed, everything judged. `found`: what else was found, on the way or by the job script's traps; `tried`:
    what the tests between hosts say."""
    placed = place(plan, facts, wishes_of(job, facts.values()))
    notices = [f"nvrun: {notice}" for notice in placed.notices]
    if job.options.check == "off":
        return Decided(plan=placed.plan, lines=tuple(notices))
    verdict = judge(placed, facts, context(placed.plan, job), found, tried)
    decision = decision_of(job, verdict)
    newcomers = [host.name for host in job.hosts if job.proven and host.name not in job.proven]
    pairs = [each for each in decision.blocking if each.between and not newcomers]
    alone = [each for each in decision.blocking if each not in pairs]
    at_fault = {host: each.message for each in reversed(alone) for host in _at_fault(each, newcomers)}
    between = next((each.between for each in pairs), ())
    return Decided(
        plan=placed.plan,
        verdict=verdict,
        exit_code=decision.exit_code,
        lines=(
            *notices,
            *shown(verdict, decision.waived),
            *(f"nvrun: {note}" for note in decision.notes),
            *([f"nvrun: not launched{_lifted(decision)}"] if decision.refused else []),
        ),
        bad_hosts={} if None in at_fault else {host: why for host, why in reversed(at_fault.items()) if host},
        between=() if at_fault else between,
    )


def decision_of(job: Job, verdict: Verdict) -> checks.Decision:
    """Whether the job may start, by what the user lifts. A code that could be found, and was not, may be lifted too."""
    return checks.apply(verdict, waive=job.options.waive, force=job.options.force, also=MEANINGS)


def _lifted(decision: checks.Decision) -> str:
    """How the user could insist, where that is a matter of judgement; what is fatal would fail anyhow."""
    codes = dict.fromkeys(finding.code for finding in decision.blocking)
    if len(codes) > 3 or any(finding.severity == Severity.FATAL for finding in decision.blocking):
        return ""
    return f"; launched all the same with {' '.join(f'--waive {code}' for code in codes)}"


def _at_fault(finding: Finding, newcomers: Sequence[str]) -> Sequence[str | None]:
    """The host that a finding names; where it is between hosts, those that are new among others that have run. None:
    no host in particular."""
    if _of_the_job(finding):
        return [None]
    return newcomers if finding.host is None and newcomers else [finding.host]


def _of_the_job(finding: Finding) -> bool:
    """Found on a host, but the job script's doing: on another host it would be the same."""
    return finding.code.startswith(("slurm-", "node-")) and finding.code != "node-not-heard"


def placed_only(job: Job, plan: Plan, facts: Mapping[int, HostFacts]) -> Decided:
    """Ranks placed, where somebody else judges."""
    return Decided(plan=place(plan, facts, wishes_of(job, facts.values())).plan)


def shown(verdict: Verdict, waived: Sequence[Finding] = ()) -> Iterator[str]:
    """The verdict for the console of a launch. What an ordinary user may never read is no news there: `nvrun check`
    and its checklist tell it."""
    told = tuple(each for each in verdict.skipped if not each.reason.endswith(denied.KERNEL_LOG))
    *lines, total = findings.lines(msgspec.structs.replace(verdict, skipped=told), waived=waived)
    yield from (f"nvrun: {line.text}" for line in lines)
    yield f"nvrun: checks: {total.text}"


def judge(
    placed: Placed,
    facts: Mapping[int, HostFacts],
    job: checks.Job,
    found: Sequence[Finding] = (),
    tried: Verdict = Verdict(),  # noqa: B008 - frozen
) -> Verdict:
    """What the checks say of the hosts, lint of their environments, what was `found` on the way, and `tried`."""
    fleet = {known.host: known for known in facts.values()}
    environments = {
        host: {each.variable.name: each.variable.value for each in resolved}
        for host, resolved in placed.environments.items()
    }
    if any(each.code == "slurm-master-is-loopback" for each in found):
        job = msgspec.structs.replace(job, endpoint=None)  # the same, and surer: a job's nodes are several hosts
    verdict = checks.run(fleet, msgspec.structs.replace(job, env=environments))
    return Verdict(
        findings=(*found, *tried.findings, *placed.findings, *verdict.findings, *linted(placed, fleet)),
        skipped=(*placed.skipped, *verdict.skipped, *tried.skipped),
        judged=(
            *verdict.judged,
            *([LINT] if all(known.env is not None for known in facts.values()) else []),
            *tried.judged,
        ),
    )


def linted(placed: Placed, fleet: Mapping[str, HostFacts]) -> tuple[Finding, ...]:
    """What lint says of the hosts' environments, the same of several hosts once. `fleet`: host name -> facts."""
    said: list[Finding] = []
    for host, resolved in placed.environments.items():
        software = fleet[host].software
        nccl = software.nccl if software else None
        said += lint.lint_settings(environment.settings(resolved), nccl=nccl, facts=fleet[host])
    said += lint.lint_hosts(
        {
            host: {each.variable.name: each.variable.value for each in resolved}
            for host, resolved in placed.environments.items()
        }
    )
    unique = {(finding.code, finding.subject, finding.message): finding for finding in reversed(said)}
    return tuple(reversed(unique.values()))
