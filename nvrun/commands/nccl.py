"""`nvrun nccl [PATH|RUN ...]`: what NCCL chose, from its own log, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.diagnose.files import collect
from nvrun.model import Severity, Verdict, worst_first
from nvrun.nccl.heard import differences, paired
from nvrun.nccl.log import read_log
from nvrun.nccl.log_findings import log_findings
from nvrun.report import findings, nccl
from nvrun.report.document import document
from nvrun.report.findings import printable


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    paths = runs.paths_of(invocation.words, environ)
    found = collect(paths)
    log = read_log(chain.from_iterable(source.lines for source in found.sources))
    facts = {host: known for path in paths for host, known in runs.facts_of(path).items()}
    plans = [plan for path in paths if (plan := runs.plan_of(path))]
    plan = plans[0] if len(plans) == 1 else None  # of two runs a process would have two plans
    against = differences(paired(log, plan, facts, found.ends))
    judged = any(finding.code == "nccl-network-unexpected" for finding in against)
    of_log = (
        each for each in log_findings(log, facts=facts) if not (judged and each.code == "nccl-sockets-beside-rdma")
    )
    said = worst_first([*against, *of_log])
    if invocation.options.json:
        return Said(document(log=log, findings=said, skipped=found.skipped))
    lines = [printable(line) for line in nccl.lines(log, facts.values())]
    if said:
        verdict = Verdict(findings=tuple(said))
        lines += ["", *(line.text for line in findings.lines(verdict, least=Severity.INFO, most=len(said)))]
    lines += [f"not read: {printable(line)}" for line in found.skipped]
    return Said("\n".join(lines) + "\n")
