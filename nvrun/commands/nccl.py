"""`nvrun nccl [PATH|RUN ...]`: what NCCL chose, from its own log, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.diagnose.files import collect
from nvrun.model import Severity, Verdict
from nvrun.nccl.log import read_log
from nvrun.nccl.log_findings import log_findings
from nvrun.plan import Plan, as_mapping
from nvrun.report import findings, nccl
from nvrun.report.document import document
from nvrun.report.findings import printable


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    paths = runs.paths_of(invocation.words, environ)
    found = collect(paths)
    log = read_log(chain.from_iterable(source.lines for source in found.sources))
    facts = {host: known for path in paths for host, known in runs.facts_of(path).items()}
    asked: dict[str, str] = {}
    for path in paths:
        asked |= _asked(runs.plan_of(path))
    said = log_findings(log, facts=facts, asked=asked)
    if invocation.options.json:
        return Said(document(log=log, findings=said, skipped=found.skipped))
    lines = [printable(line) for line in nccl.lines(log)]
    if said:
        verdict = Verdict(findings=tuple(said))
        lines += ["", *(line.text for line in findings.lines(verdict, least=Severity.INFO, most=len(said)))]
    lines += [f"not read: {printable(line)}" for line in found.skipped]
    return Said("\n".join(lines) + "\n")


def _asked(plan: Plan | None) -> Mapping[str, str]:
    """NCCL's variables as the plan gives them to ranks: the same on every rank, or not compared."""
    ranks = [
        {**as_mapping(host.env), **as_mapping(rank.env)} for host in (plan.hosts if plan else ()) for rank in host.ranks
    ]
    return {
        name: value
        for name, value in (ranks[0] if ranks else {}).items()
        if name.startswith("NCCL_") and all(rank.get(name) == value for rank in ranks)
    }
