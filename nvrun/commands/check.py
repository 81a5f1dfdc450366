"""`nvrun check`: the hosts looked at and judged as before a launch, and nothing run."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from nvrun import checks, job, preflight, replacement
from nvrun.active.run import Outcome, clock_of
from nvrun.commands import Said
from nvrun.commands.plan import RUN_ID
from nvrun.commands.reach import NoAnswer, say
from nvrun.commands.recorded import read_facts
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Ended, gathered
from nvrun.model import Finding, Frozen, Verdict
from nvrun.plan import as_mapping
from nvrun.prepare import facts_requests, plan_of_facts, prepare
from nvrun.report import findings, prometheus, tested


class Looked(Frozen, frozen=True, kw_only=True):
    """The hosts of a job, looked at and judged; or only those findings for which some cannot be looked at."""

    decided: preflight.Decided | None = None
    facts: tuple[HostFacts, ...] = ()
    outcome: Outcome = Outcome()
    unreached: tuple[Finding, ...] = ()


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits as a launch would: 0, 78, or 69 where unreachable hosts are all there is."""
    options = invocation.options
    if "--list" in invocation.flags:
        rows = (f"{row.check:<24} {row.what}  {row.codes}  {row.note}".rstrip() for row in checks.rows())
        return Said("\n".join(rows) + "\n")
    the_job = job.read(invocation, environ)
    if options.check == "off":
        raise UsageError("--check off: nothing is left to check", hint="--check quick, full or deep")
    left_out: list[Finding] = []
    if options.from_:
        looked = _recorded(the_job, options.from_)
    else:
        looked = _look(the_job, environ)
        struck_off: dict[str, str] = {}
        while following := _with_spares(the_job, looked, struck_off):
            before, the_job, struck_off = struck_off, following.job or the_job, dict(following.struck_off or {})
            left_out = [finding for finding in left_out if finding.host in struck_off]
            left_out += [
                msgspec.structs.replace(finding, host=host)
                for host in struck_off.keys() - before.keys()
                for finding in _findings(looked)
                if host == finding.host or host in finding.between
            ]
            looked = _look(the_job, environ)
        if looked.unreached and (rest := the_job.only_without({each.host for each in looked.unreached if each.host})):
            unreached = looked.unreached
            looked = msgspec.structs.replace(_look(rest, environ), unreached=unreached)
    return _said(the_job, looked, left_out, invocation.flags)


def _recorded(the_job: job.Job, path: str) -> Looked:
    recorded = read_facts(path)
    plan = plan_of_facts(the_job, RUN_ID, recorded)
    # As an agent would read it in the job's own chain.
    known = {
        host.node: msgspec.structs.replace(facts, env={**(facts.env or {}), **as_mapping(host.env)})
        for host, facts in zip(plan.hosts, recorded, strict=True)
    }
    return Looked(decided=preflight.decide(the_job, plan, known), facts=recorded)


def _look(the_job: job.Job, environ: Mapping[str, str]) -> Looked:
    with gathered(the_job, environ, say=say, show=lambda line: None) as crew:
        try:
            crew.greet()
            plan = prepare(the_job, crew, RUN_ID, None).plan
            clock = clock_of(the_job)
            known = crew.facts(facts_requests(the_job, plan), clock.left)
            if plan.master_port is not None:
                crew.send({"t": "listen"}, to=[0])
            outcome = preflight.tests(crew, the_job, plan, known, clock)
        except Ended:
            assert crew.ending is not None
            if not crew.findings:
                raise NoAnswer(crew.ending.message, crew.ending.exit_code) from None
            return Looked(unreached=tuple(crew.findings))
    decided = preflight.decide(the_job, plan, known, tried=outcome.verdict)
    return Looked(decided=decided, facts=tuple(known.values()), outcome=outcome)


def _with_spares(the_job: job.Job, looked: Looked, struck_off: Mapping[str, str]) -> replacement.Next | None:
    """The job as a launch would go on with it; None where it would not."""
    gone = {**struck_off, **dict.fromkeys(_bad_hosts(looked), "")}
    if len(gone) > len(struck_off) and (spared := the_job.without(gone.keys())):
        return replacement.Next(job=spared, struck_off=gone)
    if len(gone) == len(struck_off) and looked.decided and looked.decided.between:
        following = replacement.with_a_spare(the_job, looked.decided.between, "", struck_off)
        return following if following.job else None
    return None


def _bad_hosts(looked: Looked) -> Collection[str]:
    if looked.unreached:
        return [finding.host for finding in looked.unreached if finding.host]
    return looked.decided.bad_hosts if looked.decided else ()


def _findings(looked: Looked) -> Sequence[Finding]:
    return looked.unreached or (looked.decided.verdict.findings if looked.decided else ())


def _said(the_job: job.Job, looked: Looked, left_out: Sequence[Finding], flags: Mapping[str, str]) -> Said:
    options = the_job.options
    verdict = looked.decided.verdict if looked.decided else Verdict()
    verdict = msgspec.structs.replace(verdict, findings=(*looked.unreached, *verdict.findings))
    decision = preflight.decision_of(the_job, verdict)
    if path := flags.get("--prometheus"):
        hosts = dict.fromkeys([*(host.name for host in the_job.hosts), *(each.host for each in left_out if each.host)])
        _write(path, prometheus.text(_with(verdict, left_out), hosts, at=time.time()))
    context = preflight.context(looked.decided.plan, the_job) if looked.decided else checks.Job()
    level = "" if options.from_ else options.check
    items = checks.checklist(verdict, context, looked.facts, level) if "--checklist" in flags else ()
    rows = tested.rows(looked.outcome, looked.facts)
    if options.json:
        body = msgspec.to_builtins(verdict)
        body = {"findings": [], **body, "measured": tested.as_data(looked.outcome)}
        if left_out:
            body["left_out"] = msgspec.to_builtins(left_out)
        if items:
            body["checklist"] = [item._asdict() for item in items]
        return Said(msgspec.json.format(msgspec.json.encode(body), indent=1).decode() + "\n", decision.exit_code)
    lines: list[str] = []
    if items:
        lines += [f"{item.state:<12} {item.title}{': ' + item.why if item.why else ''}" for item in items]
    else:
        lines += [f"{title:<12} {text}" for title, text in rows]
        lines += [line.text for line in findings.lines(verdict, waived=decision.waived, rest="--json")]
    lines += tested.left_out(left_out)
    return Said("".join(f"{line}\n" for line in lines), decision.exit_code)


def _with(verdict: Verdict, more: Sequence[Finding]) -> Verdict:
    return msgspec.structs.replace(verdict, findings=(*verdict.findings, *more))


def _write(path: str, text: str) -> None:
    """Whole or not at all: node_exporter may read at any time."""
    part = Path(f"{path}.{os.getpid()}")
    try:
        part.write_text(text)
        part.rename(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"--prometheus {path}: {error.strerror}") from None
