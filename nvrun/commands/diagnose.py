"""`nvrun diagnose [PATH|RUN ...]`: the likely cause in the logs of a failed job, whoever started it."""

from __future__ import annotations

from collections.abc import Mapping

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.failure import failure
from nvrun.report.document import document
from nvrun.report.findings import printable


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits with 1 where an error was found."""
    found = failure(runs.paths_of(invocation.words, environ))
    exit_code = int(found.is_error)
    if invocation.options.json:
        return Said(document(findings=found.findings, skipped=found.skipped), exit_code)
    return Said("\n".join([found.page, *(f"not read: {printable(line)}" for line in found.skipped)]) + "\n", exit_code)
