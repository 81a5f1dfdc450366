"""What findings mean that no check of the preflight yields: an entry a code, for `nvrun explain` and --waive. Pure.

The checks' own are declared with them (nvrun/checks/code.py), those of logs are the rules of nvrun/diagnose.
"""

from __future__ import annotations

import re

from nvrun.model import Finding, Frozen, Severity


class Meaning(Frozen, frozen=True, kw_only=True):
    """One code."""

    code: str
    summary: str
    """What is wrong, in a few words."""
    read: str
    """From what it is found."""
    why: str
    """What it does to a job."""
    remedy: str
    source: str
    """Where this is documented or was measured."""


MEANINGS: dict[str, Meaning] = {}
"""All that were declared; complete once the modules that find them are imported."""


def there(remedy: str, host: str) -> str:
    """A remedy for this host: what stands for a host in it is named."""
    return re.sub(r"\bHOST\b", lambda _: host, remedy)


def means(code: str, summary: str, *, read: str, why: str, remedy: str, source: str) -> str:
    """Declares a code and returns it. A hook's file, which may be read twice, may say the same again; ValueError where
    a code would mean two things."""
    meaning = Meaning(code=code, summary=summary, read=read, why=why, remedy=remedy, source=source)
    if MEANINGS.setdefault(code, meaning) != meaning:
        raise ValueError(f"finding code {code} has two meanings")
    return code


def found(
    code: str,
    severity: Severity,
    message: str,
    *,
    host: str | None = None,
    subject: str = "",
    observed: str = "",
    expected: str = "",
    remedy: str | None = None,
    evidence: tuple[str, ...] = (),
    confidence: float | None = None,
) -> Finding:
    """A finding of a declared code. Its remedy is the code's own where none is given that is nearer to the case."""
    return Finding(
        code=code,
        severity=severity,
        message=message,
        host=host,
        subject=subject,
        observed=observed,
        expected=expected,
        remedy=MEANINGS[code].remedy if remedy is None else remedy,
        evidence=evidence,
        confidence=confidence,
    )
