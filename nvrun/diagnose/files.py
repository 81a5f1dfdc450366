"""Paths -> what `diagnose` reads: logs, flight-recorder dumps, and the ends of ranks where a run's result lies there.

The only module here that touches files. It opens each log when it is read, and keeps no line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nvrun.diagnose.flight import Dump, rank_of_file, read_dump
from nvrun.diagnose.scan import Source
from nvrun.errors import UsageError
from nvrun.model import RankEnd, RunResult
from nvrun.nccl.log_line import read_lines
from nvrun.records import from_json

DUMP_LIMIT = 256 << 20
"""Bytes of a flight-recorder dump; 2000 entries with their stacks are a few megabytes."""
ERROR_FILE, ERROR_FILE_LIMIT = "error.json", 4 << 20
"""What torchrun names it in its log folder, and more bytes than any traceback has."""
_RANK_FILE = re.compile(r"rank(\d+)\.(?:out|err)(?:\.gz)?$")
_NOT_LOGS = (
    ".json",
    ".jsonl",
    ".html",
    ".xml",
    ".py",
    ".pyc",
    ".pt",
    ".tsv",
    ".csv",
    ".qdrep",
    ".nsys-rep",
    ".sqlite",
    ".tar",
    ".zip",
)


_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)
"""What unpacking raises where a file is cut or no gzip at all."""


@dataclass(slots=True)
class Collected:
    """What lies under the paths that were named."""

    sources: list[Source] = field(default_factory=list)
    dumps: list[Dump] = field(default_factory=list)
    result: RunResult | None = None
    """How the run ended, where one of nvrun's lies there."""
    skipped: list[str] = field(default_factory=list)
    """`PATH: reason` of files that were not read."""

    @property
    def ends(self) -> tuple[RankEnd, ...]:
        return self.result.ranks if self.result else ()


@dataclass(frozen=True, slots=True)
class FileLines:
    """The lines of a file, read anew each time; `.gz` is unpacked on the way, as far as it is whole: who wrote it may
    have been killed."""

    path: Path

    def __iter__(self) -> Iterator[bytes]:
        if self.path.suffix == ".gz":
            with suppress(*_BROKEN), gzip.open(self.path) as packed:
                yield from read_lines(packed)  # type: ignore[arg-type]  # reads as a file does
        else:
            with open(self.path, "rb") as plain:
                yield from read_lines(plain)


def collect(paths: Iterable[Path]) -> Collected:
    """Logs, dumps and ends under `paths`; UsageError for a path that does not exist."""
    found = Collected()
    for path in paths:
        if not path.exists():
            raise UsageError(f"no such file or folder: {path}", hint="Name log files or folders that hold some")
        # A link in a folder of logs may lead anywhere: what it names is read only where it is named itself.
        inside = (p for p in path.rglob("*") if p.is_file() and not p.is_symlink() and not _hidden(p, path))
        files = [path] if path.is_file() else sorted(inside)
        for file in files:
            _take(file, found, named=path.is_file())
    return found


def _hidden(file: Path, root: Path) -> bool:
    """Hidden files, and those of a run's earlier attempts, which have causes of their own."""
    parts = file.relative_to(root).parts
    return parts[0] == "attempts" or any(part.startswith(".") for part in parts)


def _take(file: Path, found: Collected, *, named: bool) -> None:
    if file.name == "result.json":
        try:
            found.result = from_json(file.read_bytes(), RunResult)
        except (msgspec.DecodeError, OSError) as error:
            found.skipped.append(f"{file}: {error}")
        return
    if file.name == ERROR_FILE and (lines := _traceback(file)):
        found.sources.append(Source(str(file), lines))
        return
    if not named and file.suffix in _NOT_LOGS:
        return
    try:
        with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as stream:
            head = stream.read(1024)
    except (OSError, *_BROKEN) as error:
        found.skipped.append(f"{file}: {getattr(error, 'strerror', None) or error}")
        return
    if head.startswith(b"\x80"):
        _take_dump(file, found)
    elif b"\0" in head:
        found.skipped.append(f"{file}: not text")
    else:
        rank = _RANK_FILE.search(file.name)
        host = file.parent.name if rank and file.parent.parent.name == "logs" else None
        found.sources.append(Source(str(file), FileLines(file), host=host, rank=int(rank[1]) if rank else None))


def _traceback(file: Path) -> list[str]:
    """The traceback in what torchrun's @record writes of a rank that failed; none where it is no such file.

    torch.distributed.elastic.multiprocessing.errors.ErrorHandler; by its folder only the local rank is known.
    """
    try:
        with open(file, "rb") as stream:
            raw = msgspec.json.decode(stream.read(ERROR_FILE_LIMIT))
    except (OSError, msgspec.DecodeError, RecursionError):
        return []
    message = raw.get("message") if isinstance(raw, dict) else None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        message = (extra.get("py_callstack") if isinstance(extra, dict) else None) or message.get("message")
    return message.splitlines() if isinstance(message, str) else []


def _take_dump(file: Path, found: Collected) -> None:
    rank = rank_of_file(file.name)
    if rank is None or file.stat().st_size > DUMP_LIMIT:
        found.skipped.append(f"{file}: a pickle, but not named or sized as a flight-recorder dump")
        return
    try:
        found.dumps.append(read_dump(file.read_bytes(), rank=rank, name=str(file)))
    except UsageError as error:
        found.skipped.append(error.message)
