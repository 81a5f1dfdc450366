"""A verdict as plain lines for a terminal: the worst first, identical findings folded. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nvrun.checks.compare import listed
from nvrun.hosts.nodeset import fold
from nvrun.meanings import there
from nvrun.model import Finding, Severity, Skipped, Verdict, worst_first

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_COUNTED = {Severity.FATAL: "fatal", Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


class Line(NamedTuple):
    """One line, and what it is: `fatal`, `error`, `warning`, `info`, `remedy`, `evidence`, `skipped` or `total`."""

    style: str
    text: str


class Folded(NamedTuple):
    """Findings that say the same of several hosts."""

    finding: Finding
    """The first of them."""
    hosts: tuple[str, ...]
    """() where it is about the job as a whole."""
    own: bool = False
    """Each names its own host: HOST stands for that in `message` and `remedy`."""

    @property
    def message(self) -> str:
        """What is wrong, in the words of all."""
        return _of_any(self.finding.message, self.hosts[0]).removeprefix("HOST: ") if self.own else self.finding.message

    @property
    def remedy(self) -> str:
        """With the host's name, where it is about one."""
        if self.own:
            return _of_any(self.finding.remedy, self.hosts[0])
        return there(self.finding.remedy, self.hosts[0]) if len(self.hosts) == 1 else self.finding.remedy

    @property
    def where(self) -> str:
        """`17 hosts: gpu[001-017]`, `gpu003`, or `` for the job."""
        return _where(self.hosts)


def folded(findings: Iterable[Finding]) -> list[Folded]:
    """Findings with the same words, but for the name of their own host, put together, the worst first."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in worst_first(findings):
        same = (finding.code, finding.severity, finding.subject, finding.message, finding.remedy)
        groups.setdefault(same if finding.host else (*same, id(finding)), []).append(finding)
    alike: dict[tuple[object, ...], list[tuple[Finding, tuple[str, ...]]]] = {}
    for key, group in groups.items():
        first, hosts = group[0], tuple(dict.fromkeys(finding.host for finding in group if finding.host))
        if len(hosts) == 1:
            words = (_of_any(text, hosts[0]) for text in (first.subject, first.message, first.remedy))
            key = (first.code, first.severity, *words)
        alike.setdefault(key, []).append((first, hosts))
    return [
        Folded(parts[0][0], tuple(host for _, hosts in parts for host in hosts), own=len(parts) > 1)
        for parts in alike.values()
    ]


def _of_any(text: str, host: str) -> str:
    """The text with HOST where it names this host."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-]|\.\w)", "HOST", text) if host in text else text


def lines(
    verdict: Verdict,
    *,
    least: Severity = Severity.WARNING,
    waived: Sequence[Finding] = (),
    most: int = 40,
    rest: str = "",
) -> list[Line]:
    """What to show: cause, then remedy, of all findings of at least that severity, `most` of them; then the totals.
    `rest`: the flag that shows those below, which are then counted."""
    shown = [group for group in folded(verdict.findings) if group.finding.severity >= least]
    result: list[Line] = []
    for group in shown[:most]:
        result += _finding(group, waived=group.finding in waived)
    if len(shown) > most:
        result.append(Line("total", f"and {len(shown) - most} more: nvrun check --json lists all"))
    result += _skipped(verdict.skipped)
    below = sum(group.finding.severity < least for group in folded(verdict.findings)) if rest else 0
    more = f"; {below} note{'s' * (below > 1)}: {rest}" if below else ""
    result.append(Line("total", total(verdict, least=least) + more))
    return result


def total(verdict: Verdict, *, least: Severity) -> str:
    """`2 errors, 1 warning; 3 checks could not judge every host`. What is only for information counts where it is
    shown."""
    counts = []
    for severity, name in _COUNTED.items():
        number = sum(group.finding.severity == severity for group in folded(verdict.findings))
        if number and severity >= least:
            plural = "" if number == 1 or severity == Severity.FATAL else "s"
            counts.append(f"{number} {name}{plural}")
    blind = len({skipped.code for skipped in verdict.skipped})
    unknown = f"; {blind} check{'' if blind == 1 else 's'} could not judge every host" if blind else ""
    return (", ".join(counts) or "nothing found") + unknown


def _finding(group: Folded, *, waived: bool) -> list[Line]:
    finding = group.finding
    where = f"{printable(group.where)}: " if group.where else ""
    about = _of_any(finding.subject, group.hosts[0]) if group.own else finding.subject
    # Where the message names its subject itself, naming it again is noise.
    subject = f"{printable(about)}: " if about and about.lower() not in group.message.lower() else ""
    lifted = " (waived)" if waived else ""
    style = finding.severity.label
    result = [Line(style, f"{style:<7} {where}{subject}{printable(group.message)} [{finding.code}]{lifted}")]
    if finding.remedy:
        result.append(Line("remedy", f"{'':7} -> {printable(group.remedy)}"))
    result += [Line("evidence", f"{'':7}    {printable(text)}") for text in finding.evidence[:4]]
    return result


def _skipped(skipped: Iterable[Skipped]) -> list[Line]:
    """One line for each reason, with the checks that it left blind."""
    reasons: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for item in skipped:
        hosts, checks = reasons.setdefault(item.reason, ({}, {}))
        if item.host:
            hosts[item.host] = None
        checks[item.code] = None
    return [
        Line(
            "skipped",
            f"{'skipped':<7} {_where(tuple(hosts)) or 'all hosts'}: {listed(checks)}: " + printable(reason),
        )
        for reason, (hosts, checks) in reasons.items()
    ]


def _where(hosts: Sequence[str]) -> str:
    if not hosts:
        return ""
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts: {fold(hosts)}"


def printable(text: str) -> str:
    """Without control characters: what a host says must not drive the terminal."""
    return _UNPRINTABLE.sub("?", text)
