"""One line of a log: bytes to bounded text, and NCCL's own prefix taken apart.

NCCL 2.3 to 2.30 writes `[time] host:pid:tid [dev] file:line (function) NCCL LEVEL message`, where time, file and
function come and go with version and level. Launchers put their own text before it (`0: `, `[rank0]:`,
`[1,0]<stderr>:`, `node01:3 `) and some logs have lost everything before `NCCL`. All these forms are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple

LINE_LIMIT = 4096
"""Characters of a line that are looked at. NCCL's longest lines (trees of 64 channels) stay below it, and a rule
that needs more has no place in a log of text lines."""

# Colours and cursor movement (CSI), titles and links (OSC), other two-byte escapes, and control characters.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters, so that it can be shown."""
    return text if text.isprintable() else _ESCAPES.sub("", text)


def read_lines(stream: BinaryIO, limit: int = LINE_LIMIT) -> Iterator[bytes]:
    """Lines of a binary stream, each cut at `limit` bytes: a line of a gigabyte is never held in memory."""
    while line := stream.readline(limit):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(65536)


def cut_lines(lines: Iterable[bytes | str], limit: int = LINE_LIMIT) -> Iterator[bytes]:
    """Each line as at most `limit` bytes (characters of text given as such), without its line end."""
    for line in lines:
        piece = line[:limit]
        yield (piece.encode("utf-8", "replace") if isinstance(piece, str) else piece).rstrip(b"\r\n")


def text(line: bytes) -> str:
    """A line of `cut_lines` as text; what is not UTF-8 is replaced."""
    return line.decode("utf-8", "replace")


class Speaker(NamedTuple):
    """Who wrote a line, as far as the prefix tells; an empty host where the prefix is lost."""

    host: str
    pid: int
    tid: int
    device: int | None


class Record(NamedTuple):
    """One NCCL line."""

    speaker: Speaker
    level: str
    """`INFO`, `WARN`, `CALL`, `TRACE`, or `VERSION` for the bare version line."""
    where: str
    """`bootstrap.cc:76`, or empty."""
    message: str
    line: str
    """All of it, with what stands before `NCCL`."""


NOBODY = Speaker("", 0, 0, None)
_LEVEL = re.compile(r"\bNCCL (INFO|WARN|CALL|TRACE) ")
_HEAD = re.compile(
    r"(?P<host>[^\s:<>\[\]()]+):(?P<pid>\d+):(?P<tid>\d+)"
    r"(?: \[(?P<dev>\d+)\](?: [\d.]+)?(?: (?P<where>\S.*?:\d+)(?: \([^)]*\))?)?)? $"
)
"""A plugin in C++ writes a function with blanks and types (`int process_cq(struct fid_cq*):611`) where NCCL writes its
source file."""
_WHERE = re.compile(r"(?P<where>[\w./-]+:\d+)(?: \([^)]*\))? $")


def read_record(line: str) -> Record | None:
    """The NCCL line in `line`, whatever stands before it; None where there is none."""
    level = _LEVEL.search(line)
    if level is None:
        at = line.find("NCCL version ")
        return Record(NOBODY, "VERSION", "", line[at:], line) if at >= 0 else None
    speaker, where = _read_head(line[: level.start()])
    return Record(speaker, level[1], where, line[level.end() :], line)


@lru_cache(maxsize=4096)
def _read_head(head: str) -> tuple[Speaker, str]:
    """Who speaks and from which source line; cached, because a process repeats its head on every line."""
    if found := _HEAD.search(head):
        device = found["dev"]
        speaker = Speaker(found["host"], int(found["pid"]), int(found["tid"]), None if device is None else int(device))
        return speaker, found["where"] or ""
    where = _WHERE.search(head)
    return NOBODY, where["where"] if where else ""
