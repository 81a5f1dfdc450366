"""The page shown when a job has failed: who first, why, and what to do. Pure text, at most 40 lines."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from nvrun.diagnose.ends import decode_end
from nvrun.diagnose.python_error import shortened
from nvrun.meanings import there
from nvrun.model import Finding, RankEnd, Severity
from nvrun.nccl.log_line import clean

WIDTH = 110
"""Columns the page is made for."""
LINES = 40
STACK_LINES = 12
"""Of evidence in which a stack stands, which is indented."""
TRACEBACK_LINES = 10
LAST_WORDS = 6

_CERTAINTY = ((0.9, "almost certain"), (0.7, "likely"), (0.5, "possible"), (0.0, "a guess"))


def one_page(
    findings: Sequence[Finding],
    *,
    first: RankEnd | None = None,
    earlier: RankEnd | None = None,
    warnings_before: Sequence[str] = (),
    changed: Sequence[str] = (),
    logs: str = "",
    stopped: Finding | None = None,
    otherwise: str = "No known cause was found in the logs.",
) -> str:
    """The failure on one page.

    `findings` as `diagnose` orders them. `first`: the rank that failed first by cause, `earlier`: the first by time,
    which may have ended in consequence. `warnings_before`: NCCL's warnings before that, `changed`: what changed on the
    hosts since the preflight, `logs`: where all logs lie, `stopped`: who ended a run that did not fail, `otherwise`:
    what there is to say without a finding. All is shown without terminal escapes.
    """
    page: list[str] = []
    said = bool(findings) and _says(findings[0], first)
    if stopped is not None:
        page += _wrapped(f"{stopped.message[:1].upper()}{stopped.message[1:]}", 3, indent="")
        page += _wrapped(stopped.remedy, 3)
    if first is not None:
        page.append(
            f"First to fail: rank {first.rank} on {first.host} (local rank {first.local_rank}, pid {first.pid})"
        )
        page += _wrapped(_ended(first) + (_certainty(findings[0]) if said else ""), 3)
        if earlier is not None and earlier.rank != first.rank:
            page.append(f"  rank {earlier.rank} on {earlier.host} was gone sooner, in consequence")
    if stopped is None and not findings:
        page += [line for part in otherwise.splitlines() for line in _wrapped(part, 2, indent="")]
    if findings:
        heading = "Seen besides" if stopped else "Cause" if findings[0].severity >= Severity.ERROR else "Note"
        page += [] if said else _cause(findings[0], heading)
        page += _proof_and_remedy(findings[0])
    if first is not None and first.tail and not any(clean(first.tail[-1]).strip() in line for line in page):
        page.extend(_block("Its last words", list(shortened(first.tail, LAST_WORDS)), LAST_WORDS))
    page.extend(_block("NCCL warned before", list(warnings_before), 4))
    page.extend(_block("Changed since the preflight", list(changed), 4))
    others = [finding for finding in findings[1:] if finding.code != "taken-down" and not _says(finding, first)]
    page.extend(_block("Also seen", [_short(finding) for finding in others], 5))
    if logs:
        page.append(f"Logs: {logs}")
    return "\n".join(clean(line)[:WIDTH] for line in page[:LINES])


def _says(finding: Finding, end: RankEnd | None) -> bool:
    """Whether it tells no more than how that rank ended, which the page begins with."""
    return end is not None and (finding.code, finding.host) == (decode_end(end).code, end.host)


def _ended(end: RankEnd) -> str:
    if end.code is None:
        return "how it ended could not be read"
    ending = decode_end(end)
    return f"{ending.text}: {ending.meaning}"


def _cause(finding: Finding, heading: str) -> list[str]:
    where = " ".join(part for part in (f"on {finding.host}" if finding.host else "", finding.subject) if part)
    return [f"{heading}{_certainty(finding)}{': ' + where if where else ''}", *_wrapped(finding.message, 4)]


def _proof_and_remedy(finding: Finding) -> list[str]:
    lines: list[str] = []
    if _is_traceback(finding):  # its last line is the error itself, and shown whole where that is possible
        *before, error = shortened(finding.evidence, TRACEBACK_LINES)
        lines += [f"  | {clean(line)}" for line in before]
        lines += [f"  | {line}" for line in textwrap.wrap(clean(error), WIDTH - 4)[:3]]
    else:
        most = STACK_LINES if any(line.startswith("  ") for line in finding.evidence) else 4
        lines += [f"  | {clean(line)}" for line in finding.evidence[:most]]
    if finding.observed:
        lines.append(f"  ({finding.observed})")
    if finding.remedy:
        lines.append("Do")
        lines += _wrapped(there(finding.remedy, finding.host) if finding.host else finding.remedy, 4)
    return lines


def _is_traceback(finding: Finding) -> bool:
    return any("Traceback (most recent call last)" in line or '  File "' in line for line in finding.evidence)


def _certainty(finding: Finding) -> str:
    if finding.confidence is None:
        return ""
    word = next(word for least, word in _CERTAINTY if finding.confidence >= least)
    return f" ({word}, {finding.confidence:.0%})"


def _wrapped(text: str, most: int, indent: str = "  ") -> list[str]:
    lines = textwrap.wrap(clean(text), WIDTH - 4)
    return [f"{indent}{line}" for line in lines[:most]]


def _block(title: str, lines: list[str], most: int) -> list[str]:
    if not lines:
        return []
    more = [f"  and {len(lines) - most} more"] if len(lines) > most else []
    return [title, *(f"  {line}" for line in lines[:most]), *more]


def _short(finding: Finding) -> str:
    where = f"{finding.host}: " if finding.host else ""
    return f"{where}{finding.message}"
