"""Folders and files of logs -> why the job failed: the findings, and the one page that says it.

For a run's folder that is all that lies there: logs, flight-recorder dumps, how ranks ended, what the hosts were like.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from nvrun import runs
from nvrun.diagnose.files import collect
from nvrun.diagnose.judge import diagnose, first_failure
from nvrun.diagnose.page import one_page
from nvrun.hang.judge import HANGS
from nvrun.model import Finding, Severity, Verdict, worst_first


class Failure(NamedTuple):
    """What is known of a failed job."""

    findings: tuple[Finding, ...]
    """The likely cause first."""
    page: str
    skipped: tuple[str, ...]
    """`PATH: why it was not read`."""

    @property
    def is_error(self) -> bool:
        return any(finding.severity >= Severity.ERROR for finding in self.findings)


def failure(paths: Sequence[Path]) -> Failure:
    """Reads what lies under `paths`. UsageError for a path that does not exist, and for a broken record of a run."""
    found = collect(paths)
    facts = {host: known for path in paths for host, known in runs.facts_of(path).items()}
    findings = diagnose(found.sources, facts=facts, ends=found.ends, dumps=found.dumps)
    findings = [*(known for path in paths for known in _hangs(path)), *findings]
    findings = findings or [known for path in paths for known in _before_the_launch(path)]
    page = one_page(findings, first=first_failure(found.ends), logs=_where(paths))
    return Failure(tuple(findings), page, tuple(found.skipped))


def _hangs(path: Path) -> list[Finding]:
    """What nvrun saw itself while the ranks waited: what their logs say of it came after that."""
    result = runs.result_of(path) if path.is_dir() else None
    found = result.findings if result else ()
    return [known for known in found if known.code == HANGS and known.severity >= Severity.ERROR]


def _before_the_launch(path: Path) -> list[Finding]:
    """Why a run of nvrun never began, which no log of the job can say: hosts not reached, or what the checks found."""
    result = runs.result_of(path) if path.is_dir() else None
    found = list(result.findings) if result else []
    if result and result.ended_by == "preflight":
        with suppress(OSError, msgspec.DecodeError):
            found += msgspec.json.decode((path / "verdict.json").read_bytes(), type=Verdict).findings
    return worst_first(finding for finding in found if finding.severity >= Severity.ERROR)


def _where(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
