"""`nvrun profile [PATH|RUN ...]`: where the time of profiled steps went, and what to change."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.model import Severity, Verdict
from nvrun.report import findings, profile
from nvrun.report.document import document
from nvrun.report.findings import printable
from nvrun.traces.advice import advice
from nvrun.traces.files import summaries


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    paths = runs.paths_of(invocation.words, environ)
    found = summaries(paths)
    if not found.ranks:
        why = f": {'; '.join(found.skipped)}" if found.skipped else ""
        raise UsageError(
            f"{', '.join(map(str, paths))}: no trace of torch.profiler{why}",
            hint="nvrun --hook torch-profiler:ranks=all takes them, without a change to the script",
        )
    said = advice(found.ranks)
    if invocation.options.json:
        return Said(document(ranks=found.ranks, findings=said, skipped=found.skipped))
    lines = [printable(line) for line in profile.lines(found.ranks)]
    verdict = Verdict(findings=tuple(said))
    lines += ["", *(line.text for line in findings.lines(verdict, least=Severity.INFO, most=len(said)))]
    lines += [f"not read: {printable(line)}" for line in found.skipped]
    return Said("\n".join(lines) + "\n")
