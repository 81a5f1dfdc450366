"""One source of lines -> what the rules see in it. One pass, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nvrun.diagnose.elastic import BannerReader, Failure
from nvrun.diagnose.ends import decode
from nvrun.diagnose.moment import moment
from nvrun.diagnose.python_error import CHAIN, START, PythonError, TracebackReader
from nvrun.diagnose.rule import Rule, Sieve, Stage
from nvrun.diagnose.rules_cuda import CUDA_RULES
from nvrun.diagnose.rules_host import HOST_RULES
from nvrun.diagnose.rules_nccl import NCCL_LAST_RULES, NCCL_RULES
from nvrun.diagnose.rules_nccl_memory import NCCL_MEMORY_RULES
from nvrun.diagnose.rules_rdma import RDMA_RULES
from nvrun.diagnose.rules_start import START_RULES
from nvrun.diagnose.rules_torch import TORCH_RULES
from nvrun.diagnose.xid import read_sxid, read_xid
from nvrun.model import Severity
from nvrun.nccl.log_line import clean, cut_lines, read_record, text

RULES: tuple[Rule, ...] = (
    *RDMA_RULES,
    *NCCL_MEMORY_RULES,
    *NCCL_RULES,
    *CUDA_RULES,
    *START_RULES,
    *TORCH_RULES,
    *HOST_RULES,
    *NCCL_LAST_RULES,
)
"""All rows in the order they are tried; the first that matches a line speaks for it."""

_MARKS = ("Xid (", "Failures:", "Root Cause (first", "failed (exitcode: ", START, *CHAIN)
"""What else is looked for in lines: Xids, torchrun's banner, tracebacks."""

_LAUNCHERS = frozenset(
    {"ChildFailedError", "SystemExit", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError"}
)
"""Exceptions of a launcher about another process, whose own words count."""
_RANK = re.compile(r"\[rank(\d+)\]")
_LONGEST_EVIDENCE = 400


@dataclass(frozen=True, slots=True)
class Source:
    """A log: a file, a stream, the kernel's messages."""

    name: str
    """What reports call it, mostly its path."""
    lines: Iterable[bytes | str] = field(repr=False)
    host: str | None = None
    """The host that wrote it, where known."""
    rank: int | None = None
    """The only rank that wrote it; None where several did, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Match:
    """One line that a rule took, before lines of the same kind are put together."""

    code: str
    stage: Stage
    message: str
    remedy: str
    confidence: float
    severity: Severity = Severity.ERROR
    host: str | None = None
    rank: int | None = None
    subject: str = ""
    at: float | None = None
    """Moment in the year by the writer's clock (`moment.moment`)."""
    evidence: tuple[str, ...] = ()
    source: str = ""


def scan(source: Source) -> Iterator[Match]:
    """What the rules see in one source, in the order of its lines; exceptions and torchrun's banner at the end."""
    tracebacks = TracebackReader()
    banner = BannerReader()
    ruled: set[str] = set()
    sieve = Sieve(RULES, _MARKS)
    for line in cut_lines(source.lines):
        candidates = sieve.candidates(line)
        if candidates is None and not (banner.reading or tracebacks.reading):
            continue
        shown = clean(text(line))
        if banner.feed(shown):
            continue
        error = tracebacks.feed(shown)
        match = None if tracebacks.quoting else _match_line(shown, candidates or (), source)
        if error is not None and match is not None:
            ruled.add(error.line)
            match = replace(match, evidence=_shorten(error.tail))
        if match is not None:
            yield match
    for chains in tracebacks.chains.values():
        yield from _exceptions(chains, source, ruled)
    yield from _failures(banner.end(), source)


def _match_line(line: str, candidates: tuple[Rule, ...], source: Source) -> Match | None:
    """What the first rule that takes `line` says of it."""
    if "Xid (" in line:
        return _xid(line, source)
    at_info = "NCCL INFO" in line
    for rule in candidates:
        if at_info and not rule.at_info:
            continue
        groups = rule.match(line)
        if groups is None:
            continue
        record = read_record(line) if "NCCL" in line else None
        rank = _RANK.search(line)
        return Match(
            code=rule.code,
            stage=rule.stage,
            message=rule.message.format_map(groups),
            remedy=rule.remedy.format_map(groups),
            confidence=rule.confidence,
            severity=rule.severity,
            host=(record.speaker.host if record else "") or source.host,
            rank=int(rank[1]) if rank else source.rank,
            subject=rule.subject.format_map(groups),
            at=moment(line),
            evidence=_shorten((line,)),
            source=source.name,
        )
    return None


def _xid(line: str, source: Source) -> Match | None:
    if (switch := read_sxid(line)) is not None:
        stage = Stage.HARDWARE if switch.fatal else Stage.NOTE
        return Match(
            code=f"sxid-{switch.code}",
            stage=stage,
            message=f"SXid {switch.code}: an NVSwitch reported an error ({'fatal' if switch.fatal else 'not fatal'})",
            remedy="Restart Fabric Manager after resetting all GPUs of the host; have it serviced if it comes back",
            confidence=0.9,
            severity=Severity.ERROR if switch.fatal else Severity.INFO,
            host=source.host,
            subject=f"NVSwitch {switch.pci}",
            at=moment(line),
            evidence=_shorten((line,)),
            source=source.name,
        )
    event = read_xid(line)
    if event is None:
        return None
    return Match(
        code=f"xid-{event.xid.code}",
        stage=event.stage,
        message=f"Xid {event.xid.code} on GPU {event.pci}: {event.xid.meaning}",
        remedy=event.xid.action.value.replace("{gpu}", event.pci),
        confidence=0.9,
        severity=Severity.WARNING if event.stage is Stage.NOTE else Severity.ERROR,
        host=source.host,
        subject=f"GPU {event.pci}",
        at=moment(line),
        evidence=_shorten((line,)),
        source=source.name,
    )


def _exceptions(chains: list[list[PythonError]], source: Source, ruled: set[str]) -> Iterator[Match]:
    """Exceptions that no rule knows. In the file of one rank the last chain ended it; in a mixed one each may have."""
    one_writer = source.rank is not None or bool(chains and _RANK.search(chains[0][0].line))
    for chain in chains[-1:] if one_writer else chains:
        first = chain[0]
        if any(error.line in ruled or error.name in _LAUNCHERS for error in chain):
            continue
        rank = _RANK.search(first.line)
        interrupted = first.name == "KeyboardInterrupt"
        said = f"{first.name}: {first.text}".removesuffix(": ")
        yield Match(
            code="interrupted" if interrupted else "python-exception",
            stage=Stage.CONSEQUENCE if interrupted else Stage.PROGRAM,
            message=f"The script raised {said[:300]}" + (f" at {first.frame}" if first.frame else ""),
            remedy="" if interrupted else "Read the traceback; the deepest line of your own code is the place to look",
            confidence=0.85,
            host=source.host,
            rank=int(rank[1]) if rank else source.rank,
            at=moment(first.line),
            evidence=_shorten(first.tail),
            source=source.name,
        )


def _failures(failures: list[Failure], source: Source) -> Iterator[Match]:
    """torchrun's banner. It notes times in seconds, so among those of one second the status that says most is taken."""
    if not failures:
        return
    together = [other for other in failures if other.time == failures[0].time and other.time] or failures[:1]
    failure = min(together, key=lambda other: decode(other.status).stage)
    ending = decode(failure.status)
    who = "A rank" if failure.rank is None else f"Rank {failure.rank}"
    where = f" on {failure.host}" if failure.host else ""
    alike = len(together) > 1 and len({other.status for other in together}) == 1
    order = f"; so did {len(together) - 1} other(s) in the same second: which was first is not known" if alike else ""
    yield Match(
        code=ending.code,
        stage=ending.stage,
        message=f"{who}{where} ended with {ending.text}{order}: {ending.meaning}",
        remedy=ending.remedy,
        confidence=ending.confidence,
        host=failure.host or source.host,
        rank=failure.rank,
        at=moment(failure.time or (failure.lines[0] if failure.lines else "")),
        evidence=_shorten(failure.lines),
        source=source.name,
    )


def _shorten(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line[:_LONGEST_EVIDENCE] for line in lines)
