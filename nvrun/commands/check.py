"""`nvrun check`: the hosts looked at and judged as before a launch, and nothing run."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import checks, job, preflight
from nvrun.commands import Said
from nvrun.commands.plan import RUN_ID
from nvrun.commands.reach import NoAnswer, say
from nvrun.commands.recorded import read_facts
from nvrun.config import Invocation
from nvrun.facts import HostFacts
from nvrun.fleet.crew import Ended, gathered
from nvrun.model import Finding, Verdict
from nvrun.placement import place, wishes_of
from nvrun.plan import Plan
from nvrun.prepare import facts_requests, plan_of_facts, prepare
from nvrun.report import findings
from nvrun.report.document import document


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits as a launch would: 0, 78, or 69 where unreachable hosts are all there is."""
    options = invocation.options
    if "--list" in invocation.flags:
        rows = (f"{row.check:<24} {row.what}  {row.codes}  {row.note}".rstrip() for row in checks.rows())
        return Said("\n".join(rows) + "\n")
    the_job = job.read(invocation, environ)
    if options.from_:
        recorded = read_facts(options.from_)
        return _judged(the_job, plan_of_facts(the_job, RUN_ID, recorded), dict(enumerate(recorded)), [])
    with gathered(the_job, environ, say=say, show=lambda line: None) as crew:
        try:
            crew.greet()
            plan = prepare(the_job, crew, RUN_ID, None).plan
            known = crew.facts(facts_requests(the_job, plan))
            if plan.master_port is not None:
                crew.send({"t": "listen"}, to=[0])
            tried = preflight.reach(crew, plan)
        except Ended:
            assert crew.ending is not None
            if not crew.findings:
                raise NoAnswer(crew.ending.message, crew.ending.exit_code) from None
            return _said(the_job, Verdict(findings=tuple(crew.findings)))
    return _judged(the_job, plan, known, tried)


def _judged(the_job: job.Job, plan: Plan, known: Mapping[int, HostFacts], tried: list[Finding]) -> Said:
    placed = place(plan, known, wishes_of(the_job, known.values()))
    context = preflight.context(placed.plan, script=the_job.script, args=the_job.args)
    return _said(the_job, preflight.judge(placed, known, context, tried))


def _said(the_job: job.Job, verdict: Verdict) -> Said:
    options = the_job.options
    decision = checks.apply(verdict, waive=options.waive, force=options.force)
    if options.json:
        body = document(findings=verdict.findings, skipped=verdict.skipped, judged=verdict.judged)
    else:
        body = "".join(f"{line.text}\n" for line in findings.lines(verdict, waived=decision.waived))
    return Said(body, decision.exit_code)
