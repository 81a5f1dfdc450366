"""Finding codes: each is declared once, beside the check that yields it. The table of all codes is made from these."""

from __future__ import annotations

from nvrun.model import Finding, Frozen, Severity, Skipped

INFO, WARNING, ERROR, FATAL = Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.FATAL


class Code(Frozen, frozen=True, kw_only=True):
    """What a finding of this name means, wherever it was found."""

    code: str
    severity: Severity
    """As long as `depends` says nothing else."""
    summary: str
    """What is wrong, in a few words."""
    read: str
    """Which fact the check looks at, and where that comes from."""
    why: str
    """What it does to a job."""
    remedy: str
    """One line, ideally a command to paste."""
    source: str
    """Where this or its threshold is documented."""
    depends: str = ""
    """How the severity follows from the plan."""
    real: bool = True
    """The rule ran on the hardware it is about; false: on recorded facts only."""

    def found(
        self,
        message: str,
        *,
        host: str | None = None,
        severity: Severity | None = None,
        subject: str = "",
        observed: str = "",
        expected: str = "",
        remedy: str | None = None,
        evidence: tuple[str, ...] = (),
        between: tuple[str, ...] = (),
    ) -> Finding:
        """A finding of this code. A check of one host leaves `host` out: whoever runs it knows the host."""
        return Finding(
            code=self.code,
            severity=self.severity if severity is None else severity,
            message=message,
            host=host,
            subject=subject,
            observed=observed,
            expected=expected,
            remedy=self.remedy if remedy is None else remedy,
            evidence=evidence,
            between=between,
        )


CODES: dict[str, Code] = {}
"""All that were declared, in the order of declaration; complete once `nvrun.checks` is imported."""


def declare(
    code: str,
    severity: Severity,
    summary: str,
    *,
    read: str,
    why: str,
    remedy: str,
    source: str,
    depends: str = "",
    real: bool = True,
) -> Code:
    """Adds a code to the table; a name that is there already is refused."""
    if code in CODES:
        raise ValueError(f"finding code {code} is declared twice")
    declared = Code(
        code=code,
        severity=severity,
        summary=summary,
        read=read,
        why=why,
        remedy=remedy,
        source=source,
        depends=depends,
        real=real,
    )
    CODES[code] = declared
    return declared


def unread(reason: str) -> Skipped:
    """What a check yields where it could not judge; code and host are filled in by whoever runs it."""
    return Skipped(code="", host=None, reason=reason)
