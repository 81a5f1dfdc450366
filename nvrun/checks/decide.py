"""From a verdict to launching or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nvrun.checks.code import CODES
from nvrun.checks.unreachable import UNREACHABLE
from nvrun.errors import UsageError
from nvrun.model import Finding, Frozen, Severity, Verdict, worst_first
from nvrun.torchrun import nearest

EXIT_OK, EXIT_UNREACHABLE, EXIT_REFUSED = 0, 69, 78


class Decision(Frozen, frozen=True, kw_only=True):
    """Whether the job may start."""

    blocking: tuple[Finding, ...] = ()
    """Why not, the worst first."""
    waived: tuple[Finding, ...] = ()
    """What would have refused it."""
    notes: tuple[str, ...] = ()
    """For the user: waivers that did nothing."""

    @property
    def refused(self) -> bool:
        return bool(self.blocking)

    @property
    def exit_code(self) -> int:
        """0; 69 where hosts that cannot be reached are all there is; 78."""
        return exit_code(self.blocking)


def exit_code(blocking: Iterable[Finding]) -> int:
    """That of findings which refuse a launch."""
    codes = {finding.code for finding in blocking}
    if not codes:
        return EXIT_OK
    return EXIT_UNREACHABLE if codes <= UNREACHABLE.keys() else EXIT_REFUSED


def apply(
    verdict: Verdict, *, waive: Collection[str] = (), force: bool = False, also: Collection[str] = ()
) -> Decision:
    """error and fatal refuse; `waive` (codes) lifts errors, `force` lifts all.

    `also`: codes of other families (lint, Slurm) that may be waived. Raises UsageError for a code that nothing has.
    """
    known = {*CODES, *also, *(finding.code for finding in verdict.findings)}
    for code in waive:
        if code not in known:
            near = nearest(code, known)
            raise UsageError(f"--waive {code}: no such finding", hint=f"did you mean {near}?" if near else _LIST)
    refusing = worst_first(finding for finding in verdict.findings if finding.severity >= Severity.ERROR)
    lifted = [f for f in refusing if force or (f.code in waive and f.severity < Severity.FATAL)]
    blocking = [finding for finding in refusing if finding not in lifted]
    fatal = dict.fromkeys(finding.code for finding in blocking if finding.code in waive)
    return Decision(
        blocking=tuple(blocking),
        waived=tuple(lifted),
        notes=tuple(f"{code} is fatal here: --waive does not lift it, --force does" for code in fatal),
    )


_LIST = "nvrun check --list shows all"
