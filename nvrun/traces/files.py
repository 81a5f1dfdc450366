"""Traces in a run's folder, or files that were named -> a summary each."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from nvrun.errors import UsageError
from nvrun.traces.events import read
from nvrun.traces.summary import RankProfile, summarize

_RANK = re.compile(r"rank_?(\d+)")
_TRACE = re.compile(r"\.json(?:\.gz)?$")
_GZIP = b"\x1f\x8b"


class Summaries(NamedTuple):
    """What was read."""

    ranks: tuple[RankProfile, ...]
    skipped: tuple[str, ...]
    """`PATH: why not`."""


def summaries(paths: Iterable[Path]) -> Summaries:
    """Of each trace below `paths`, by rank. UsageError for a path that is not there."""
    ranks: list[RankProfile] = []
    skipped: list[str] = []
    for path in paths:
        for file in _traces(path):
            try:
                found = summary(file, host=_host(file))
            except (OSError, EOFError, zlib.error, ValueError) as error:
                skipped.append(f"{file}: {getattr(error, 'strerror', None) or error}")
                continue
            if found is None:
                skipped.append(f"{file}: nothing ran while it was taken")
            else:
                ranks.append(found)
    return Summaries(tuple(sorted(ranks, key=lambda each: (each.rank is None, each.rank, each.trace))), tuple(skipped))


def summary(file: Path, *, host: str = "") -> RankProfile | None:
    """Of one trace, packed or not. None where nothing ran in it; ValueError and OSError where it cannot be read."""
    named = _RANK.search(file.name)
    with file.open("rb") as plain:
        packed = plain.read(2) == _GZIP
        plain.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if packed else plain
        return summarize(read(stream), trace=file.name, rank=int(named[1]) if named else None, host=host)


def _traces(path: Path) -> Iterator[Path]:
    """A file that was named, whatever it is called; of a run's folder what the profiler's hook left, of another any."""
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise UsageError(f"no such file or folder: {path}")
    of_a_run = sorted((*path.glob("logs/*/torch-profiler/*"), *path.glob("*/torch-profiler/*")))
    is_a_run = bool(of_a_run) or (path / "request.json").is_file()
    for file in of_a_run if is_a_run else sorted(path.iterdir()):
        whole = ".part." not in file.name  # the rank was killed while it wrote that
        if _TRACE.search(file.name) and whole and file.is_file() and not file.is_symlink():
            yield file


def _host(file: Path) -> str:
    """The run's folder keeps traces by host."""
    return file.parent.parent.name if file.parent.name == "torch-profiler" else ""
