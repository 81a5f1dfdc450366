"""Several sources, the ends of ranks and the facts of hosts -> findings, the likely cause first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvrun.diagnose.ends import MEMORY, decode, decode_end
from nvrun.diagnose.flight import Dump, odd_collectives
from nvrun.diagnose.rule import Stage
from nvrun.diagnose.scan import Match, Source, scan
from nvrun.facts import HostFacts
from nvrun.model import Finding, RankEnd, first_failure

EVIDENCE_LINES = 8
"""Lines kept for one finding, the first ones that came."""


def diagnose(
    sources: Iterable[Source],
    *,
    facts: Mapping[str, HostFacts] | None = None,
    ends: tuple[RankEnd, ...] = (),
    dumps: Iterable[Dump] = (),
    matches: Iterable[Match] = (),
    left_out: Callable[[Match], bool] = lambda match: False,
) -> list[Finding]:
    """Findings in the order in which they should be read: causes, symptoms, waits that ended, consequences, notes.

    `facts` corrects the clocks of the hosts (host name -> facts). `ends` are the ends of ranks in the order in which
    they happened; what the first failing rank itself says is told before what other ranks say. `dumps` are those of the
    flight recorder (`flight.read_dump`); `matches` what nvrun itself saw (`seen.matches`);
    `left_out` says which lines of logs are no news (`seen.by_nvrun`).
    """
    first = first_failure(ends)
    groups: dict[tuple[object, ...], _Group] = {}
    for source in sources:
        for match in scan(source):
            if not left_out(match):
                _add(groups, match, facts or {})
    for match in (*odd_collectives(dumps), *matches):
        _add(groups, match, {})
    if first is not None:
        match = _end_match(first, groups.values())
        # torchrun's banner tells the same ends, by a coarser clock, without the kernel's counters and of "localhost"
        same = {(end.rank, decode(end.code or 0).code) for end in ends} | {(first.rank, match.code)}
        groups = {k: g for k, g in groups.items() if not (g.ranks and {(r, g.match.code) for r in g.ranks} <= same)}
        _add(groups, match, {})
        if (memory := _oom_match(first)) is not None:
            _add(groups, memory, {})
    told = _without_quotes(groups.values())
    _explain_exits(told)
    _name_interpreters(told, facts or {})
    ordered = sorted(told, key=lambda group: _order(group, first))
    return [_finding(group) for group in ordered]


def _without_quotes(groups: Iterable[_Group]) -> list[_Group]:
    """Without what is told of a host or rank and once more of none: torchrun quotes the traceback of a rank, in its own
    output and in its error file."""
    every = list(groups)
    told = {(each.match.code, each.match.message) for each in every if each.match.host or each.ranks}
    return [
        each for each in every if each.match.host or each.ranks or (each.match.code, each.match.message) not in told
    ]


def _explain_exits(groups: Iterable[_Group]) -> None:
    """An exit code says least: where the rank's log tells of a wait or of a peer that left, it follows from that."""
    told = [g for g in groups if g.match.stage in (Stage.TIMEOUT, Stage.CONSEQUENCE) and g.match.code != "taken-down"]
    for group in groups:
        if group.match.code == "script-failed" and any(not other.ranks or other.ranks & group.ranks for other in told):
            group.match = replace(group.match, stage=Stage.CONSEQUENCE)


def _name_interpreters(groups: Iterable[_Group], facts: Mapping[str, HostFacts]) -> None:
    """A module is missing for one interpreter: which that is, and whether other hosts run another."""
    software = {host: known.software for host, known in facts.items() if known.software}
    ran = {host: f"{each.executable} (Python {each.python})" for host, each in software.items()}
    for group in groups:
        match = group.match
        host = match.host or next(iter(ran), "")
        if match.code != "module-missing" or host not in ran or (match.host is None and len(ran) > 1):
            continue
        message = f"{match.message}: {ran[host]}"
        remedy = match.remedy.replace("PYTHON -m", f"{software[host].executable} -m")
        if other := next((name for name, python in ran.items() if python != ran[host]), ""):
            message += f"; on {other} it is {ran[other]}"
            remedy = f"Is that the environment you meant? --python or --setup choose one for all hosts. {remedy}"
        group.match = replace(match, message=message, remedy=remedy)


def culprit(findings: Sequence[Finding], ends: Sequence[RankEnd]) -> RankEnd | None:
    """The first failure by cause: a rank that ended in consequence may have been quicker to end than the one whose
    fault it was, which nvrun was then already ending. Without a rank that the likely cause names, the first by time."""
    first = first_failure(ends)
    named = re.fullmatch(r"rank (\d+)", findings[0].subject) if findings else None
    if first is None or named is None or int(named[1]) == first.rank:
        return first
    by_itself = (
        end for end in ends if end.rank == int(named[1]) and (end.code or 0) > 0 and end.attempt >= first.attempt
    )
    return next(by_itself, first)


@dataclass(slots=True)
class _Group:
    """Matches of one kind at one place."""

    match: Match
    number: int
    lines: int = 0
    evidence: list[str] = field(default_factory=list)
    one_quote: bool = False
    """`evidence` is what one match quotes, as a traceback, and not a line of each."""
    ranks: set[int] = field(default_factory=set)


def _add(groups: dict[tuple[object, ...], _Group], match: Match, facts: Mapping[str, HostFacts]) -> None:
    host_facts = facts.get(match.host or "")
    if match.at is not None and host_facts is not None and host_facts.clock_offset_s is not None:
        match = replace(match, at=match.at - host_facts.clock_offset_s)
    key: tuple[object, ...] = (match.code, match.host, match.subject)
    if match.stage >= Stage.CONSEQUENCE and match.stage is not Stage.NOTE:
        key = (match.code,)
    group = groups.setdefault(key, _Group(match, len(groups)))
    before = (match.at is not None and group.match.at is not None and match.at < group.match.at) or (
        match.stage < group.match.stage
    )
    if before:
        group.match = match
    group.lines += bool(match.source)
    if match.rank is not None:
        group.ranks.add(match.rank)
    if len(match.evidence) > 1:
        if before or not group.one_quote:
            group.evidence, group.one_quote = list(match.evidence), True
    elif not group.one_quote:
        lines = (*match.evidence, *group.evidence) if before else (*group.evidence, *match.evidence)
        group.evidence = list(dict.fromkeys(lines))[: EVIDENCE_LINES * 2]


def _order(group: _Group, first: RankEnd | None) -> tuple[object, ...]:
    match = group.match
    of_first = first is not None and first.rank in group.ranks and match.stage <= Stage.SYMPTOM
    # A rank's own exception and a peer it could not reach weigh alike: time tells.
    stage = Stage.PROGRAM if match.stage in (Stage.PROGRAM, Stage.NETWORK) else match.stage
    return (stage, not of_first, match.stage, match.at is None, match.at or 0.0, -match.confidence, group.number)


def _end_match(end: RankEnd, groups: Iterable[_Group]) -> Match:
    """The end of the first failing rank. Its signal outranks what other ranks say, unless its own log says why."""
    ending = decode_end(end)
    explained = any(end.rank in group.ranks and group.match.stage.is_cause for group in groups)
    stage = Stage.PROGRAM if (end.code or 0) < 0 and ending.stage is Stage.SYMPTOM and not explained else ending.stage
    return Match(
        code=ending.code,
        stage=stage,
        message=f"Rank {end.rank} on {end.host} was the first to end, with {ending.text}: {ending.meaning}",
        remedy=ending.remedy,
        confidence=ending.confidence,
        host=end.host,
        rank=end.rank,
        evidence=(end.oom.line,) if end.oom and end.oom.line else (),
    )


def _oom_match(end: RankEnd) -> Match | None:
    """A rank that was not killed itself, but something in its cgroup was: a data loader's worker."""
    if end.oom is None or not end.oom.kills or end.oom.where != "its cgroup" or decode_end(end).code == "oom-killed":
        return None
    return Match(
        code="oom-killed",
        stage=Stage.HOST,
        message=f"The kernel's OOM killer killed {end.oom.kills} process(es) of rank {end.rank}'s cgroup while it ran",
        remedy=MEMORY,
        confidence=0.85,
        host=end.host,
        rank=end.rank,
        evidence=(end.oom.line,) if end.oom.line else (),
    )


def _finding(group: _Group) -> Finding:
    match = group.match
    ranks = sorted(group.ranks)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks" if ranks else ""
    seen = f"{group.lines} line{'s' if group.lines > 1 else ''}, first in {match.source}" if group.lines else ""
    return Finding(
        code=match.code,
        severity=match.severity,
        message=match.message,
        host=match.host,
        subject=match.subject or who,
        observed=seen,
        remedy=match.remedy,
        evidence=tuple(group.evidence[: EVIDENCE_LINES * 2]),
        confidence=match.confidence,
    )
