"""Folders and files of logs -> why the job failed: the findings, and the one page that says it.

For a run's folder that is all that lies there: logs, flight-recorder dumps, how ranks ended, what the hosts were like
before and after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from nvrun import runs
from nvrun.diagnose import seen
from nvrun.diagnose.files import collect
from nvrun.diagnose.judge import culprit, diagnose
from nvrun.diagnose.page import one_page
from nvrun.diagnose.scan import Source
from nvrun.errors import UsageError
from nvrun.hosts.nodeset import fold
from nvrun.model import Finding, RankEnd, RunResult, Severity, Verdict, first_failure, worst_first
from nvrun.request import Request, request_of
from nvrun.rundir import file_name

AT_ONCE = 256 << 20
"""Bytes of logs up to which they are read at the end of a run; for more the user asks."""
_TAIL = 1 << 16


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
    result = found.result
    facts = {host: known for path in paths for host, known in runs.facts_of(path).items()}
    request = next(filter(None, map(request_of, paths)), None)
    ends = found.ends or tuple(end for path in paths for end in runs.ends_of(path))
    stopped = _stopped(result, request, paths, {end.host for end in ends})
    of_nvrun = bool(result or request)
    if stopped:
        ends = seen.failed_before(ends) if result else seen.noted_before(ends)
    own = [*(seen.sources(result) if result else ()), *_unwritten(ends, paths)]
    findings = diagnose(
        [*found.sources, *own],
        facts=facts,
        ends=ends,
        dumps=found.dumps,
        matches=seen.matches(result) if result else (),
        left_out=lambda match: of_nvrun and seen.by_nvrun(match, all_of_it=stopped is not None),
    )
    findings = [*(seen.hangs(result) if result else ()), *findings]
    findings = findings or [known for path in paths for known in _before_the_launch(path)]
    first = culprit(findings, ends)
    page = one_page(
        findings,
        first=first,
        earlier=first_failure(ends),
        warnings_before=seen.warnings_before(found.sources, first) if first else (),
        changed=seen.changes(result, findings[:1]) if result else (),
        logs=_where(paths),
        stopped=stopped,
        otherwise=_nothing_known(result, request, paths),
    )
    if result and result.ended_by == "success" and first:
        page = f"{result.run_id} ended with success all the same; a rank had failed before\n{page}"
    return Failure((*([stopped] if stopped else ()), *findings), page, tuple(found.skipped))


def _stopped(
    result: RunResult | None, request: Request | None, paths: Sequence[Path], known: Collection[str]
) -> Finding | None:
    """Who ended a run that did not fail: by its own record, or because its launcher left none and is gone. `known`:
    hosts whose ranks' ends are."""
    if result:
        return seen.stopped(result, request.slurm_job if request else None)
    if request and request.launcher and runs.lives(request.launcher) is False:
        return seen.launcher_killed(request.launcher.host, request.launcher.pid, _elsewhere(paths, known))
    return None


def _elsewhere(paths: Sequence[Path], known: Collection[str]) -> str:
    """Where hosts that did not share the run's folder still have their logs, and how their ranks ended."""
    plan = next(filter(None, map(runs.plan_of, paths)), None)
    if plan is None:
        return "no plan is here"
    missing = [host for host in plan.hosts if host.host.name not in known]
    if not missing:
        return ""
    names, where = fold(host.host.name for host in missing), missing[0]
    return f"{names} may have it still; on {where.host.name}: nvrun diagnose {where.folder}"


def _nothing_known(result: RunResult | None, request: Request | None, paths: Sequence[Path]) -> str:
    """What there is to say where no log has an error: whether there was one at all."""
    if result and result.ended_by == "success" and result.attempts:
        out = {host: why for attempt in result.attempts for host, why in attempt.struck_off.items()}
        told = "; ".join(f"{host}: {why}" for host, why in out.items())
        last = paths[0] / "attempts" / str(len(result.attempts) - 1)
        return f"{result.run_id} ended with success, begun again without {told}\nBefore that: nvrun diagnose {last}"
    if result and result.ended_by == "success":
        return f"Nothing failed: {result.run_id} ended with success."
    if not result and request:
        if request.launcher and runs.lives(request.launcher):
            return "No error is in the logs, and the run still goes on."
        where = f" on {request.launcher.host}" if request.launcher else ""
        return f"No error is in the logs, and no end is recorded: it still runs{where}, or its launcher was killed."
    return "No known cause was found in the logs."


def at_the_end(folder: Path) -> str:
    """The page for a run that has just failed; empty where its logs are so long, or its folder so ill, that the user
    is not to wait for it."""
    try:
        size = sum(path.lstat().st_size for path in (folder / "logs").rglob("*"))
        return failure([folder]).page if size <= AT_ONCE else ""
    except (OSError, UsageError):  # somebody removes the folder meanwhile: how the run ended has been said
        return ""


def _unwritten(ends: Sequence[RankEnd], paths: Sequence[Path]) -> Iterator[Source]:
    """Last words of ranks that failed, where their files do not have them."""
    for end in ends:
        if end.code and end.tail and not any(_has(path, end.host, end.rank, end.tail[-1]) for path in paths):
            yield seen.last_words(end)


def _has(folder: Path, host: str, rank: int, line: str) -> bool:
    """Whether the rank's file ends with it; a restart's, which has another name, is taken to."""
    logs = folder / "logs" / file_name(host)
    if any(logs.glob(f"rank{rank}.*.err")):
        return True
    try:
        with (logs / f"rank{rank}.err").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return line.encode(errors="replace") in file.read()
    except OSError:
        return False


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
