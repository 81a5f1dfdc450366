"""What a rule is: data that turns one line of a log into a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from nvrun.model import Severity


class Stage(IntEnum):
    """How near a finding is to the root of a failure. Lower is nearer, and is told first."""

    HARDWARE = 1
    """A device, or the kernel about it: a GPU fell off the bus, a link went down."""
    HOST = 2
    """The state of a host: memory, disks, limits, drivers, services."""
    SETUP = 3
    """What the job was told: ports, interfaces, GPUs, versions, variables."""
    PROGRAM = 4
    """The program itself: an exception, memory asked for, collectives that do not fit together."""
    NETWORK = 5
    """A peer was not reached: the cause may lie here, there or between."""
    SYMPTOM = 6
    """Something ended or gave an error, without saying why: exit code 1, signal 9, `unhandled cuda error`."""
    TIMEOUT = 7
    """A wait that ended; whom it waited for is the question."""
    CONSEQUENCE = 8
    """Follows from the end of another process."""
    NOTE = 9
    """Worth knowing, harmless by itself."""

    @property
    def is_cause(self) -> bool:
        return self <= Stage.NETWORK


@dataclass(frozen=True, slots=True)
class Rule:
    """A line that holds one of `anchors` and matches `pattern` means `message`.

    Named groups of `pattern` fill `{name}` in message, remedy and subject. `host` and `rank` as groups say where.
    """

    code: str
    stage: Stage
    anchors: tuple[str, ...]
    """One of these must be in the line, letter by letter: cheap, and tried before the pattern."""
    message: str
    remedy: str
    confidence: float
    """How often this line has this cause, 0 to 1: a judgement, from reports and the source of the message."""
    pattern: re.Pattern[str] | None = None
    subject: str = ""
    severity: Severity = Severity.ERROR
    at_info: bool = False
    """It also holds for lines that NCCL writes at INFO, most of which say what was tried and left, and do no harm."""

    def match(self, line: str) -> dict[str, str] | None:
        """Groups of the match, `unknown` for one that took no part; None where the rule does not apply."""
        if not any(anchor in line for anchor in self.anchors):
            return None
        if self.pattern is None:
            return {}
        found = self.pattern.search(line)
        return None if found is None else {k: v if v is not None else "unknown" for k, v in found.groupdict().items()}


def rule(
    code: str,
    stage: Stage,
    anchors: str | tuple[str, ...],
    message: str,
    remedy: str,
    confidence: float,
    *,
    pattern: str = "",
    subject: str = "",
    at_info: bool = False,
) -> Rule:
    """A row of a table, with its pattern compiled; a NOTE is information."""
    return Rule(
        code=code,
        stage=stage,
        anchors=(anchors,) if isinstance(anchors, str) else anchors,
        message=message,
        remedy=remedy,
        confidence=confidence,
        pattern=re.compile(pattern) if pattern else None,
        subject=subject,
        severity=Severity.INFO if stage is Stage.NOTE else Severity.ERROR,
        at_info=at_info,
    )


_DIGITS = b"0123456789"
_MOST_SHAPES = 1 << 16


def _shape(line: bytes) -> bytes:
    return line.translate(None, _DIGITS)


class Sieve:
    """Which rules a line may concern, quickly: the bulk of a log are the same few lines with other numbers.

    Lines are told apart by what is left without digits. Each such shape is compared once with the anchors, without
    their digits; whether an anchor is really there is for `Rule.match` to say.
    """

    def __init__(self, rules: Iterable[Rule], marks: Iterable[str]) -> None:
        self._rules = tuple((rule, tuple(_shape(anchor.encode()) for anchor in rule.anchors)) for rule in rules)
        self._marks = tuple(_shape(mark.encode()) for mark in marks)
        self._shapes: dict[bytes, tuple[Rule, ...] | None] = {}

    def candidates(self, line: bytes) -> tuple[Rule, ...] | None:
        """Rules that may have an anchor in `line`, in their order; None where it holds no anchor and no mark either."""
        shape = _shape(line)
        try:
            return self._shapes[shape]
        except KeyError:
            pass
        found = tuple(rule for rule, anchors in self._rules if any(anchor in shape for anchor in anchors))
        marked = any(mark in shape for mark in self._marks)
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        kept = self._shapes[shape] = found if found or marked else None
        return kept
