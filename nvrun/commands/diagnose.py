"""`nvrun diagnose [PATH|RUN ...]`: the likely cause in the logs of a failed job, whoever started it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from nvrun import diagnose, runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.diagnose.files import collect
from nvrun.diagnose.judge import first_failure
from nvrun.diagnose.page import one_page
from nvrun.model import Finding, Severity, Verdict, worst_first
from nvrun.report.document import document
from nvrun.report.findings import printable


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits with 1 where an error was found."""
    paths = runs.paths_of(invocation.words, environ)
    found = collect(paths)
    facts = {host: known for path in paths for host, known in runs.facts_of(path).items()}
    findings = diagnose.diagnose(found.sources, facts=facts, ends=found.ends, dumps=found.dumps)
    findings = findings or [known for path in paths for known in _before_the_launch(path)]
    exit_code = int(any(finding.severity >= Severity.ERROR for finding in findings))
    if invocation.options.json:
        return Said(document(findings=findings, skipped=found.skipped), exit_code)
    page = one_page(findings, first=first_failure(found.ends), logs=_where(paths))
    return Said("\n".join([page, *(f"not read: {printable(line)}" for line in found.skipped)]) + "\n", exit_code)


def _before_the_launch(path: Path) -> list[Finding]:
    """Why a run of nvrun never began, which no log of the job can say: hosts not reached, or what the checks found."""
    result = runs.result_of(path) if path.is_dir() else None
    found = list(result.findings) if result else []
    if result and result.ended_by == "preflight":
        with suppress(OSError, msgspec.DecodeError):
            found += msgspec.json.decode((path / "verdict.json").read_bytes(), type=Verdict).findings
    return worst_first(finding for finding in found if finding.severity >= Severity.ERROR)


def _where(paths: list[Path]) -> str:
    return ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
