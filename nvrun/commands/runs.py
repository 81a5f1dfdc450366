"""`nvrun runs`: this user's runs, the newest first."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.hosts.nodeset import fold
from nvrun.model import RunResult
from nvrun.report.document import document
from nvrun.report.findings import printable
from nvrun.report.text import end_in_words

_SHOWN = 50
"""Rows of the table; --json lists all runs, each round of bench and tune by itself."""
_WIDEST = (20, 24)
"""Columns for a program's name and for hosts; what is longer is cut, --json has it whole."""
_GONE = "folder is not here"
"""It was removed, or lies on the disk of another host."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if invocation.words:
        raise UsageError(f"nvrun runs: expected nothing more, got {invocation.words[0]!r}")
    known = list(runs.known(environ))
    if invocation.options.json:
        return Said(document(runs=[_row(entry) for entry in known]))
    if not known:
        return Said(f"no run yet (the index is {runs.index(environ)})\n")
    return Said("\n".join(map(printable, _lines(known))) + "\n")


def _lines(known: Iterable[runs.Remembered]) -> Iterator[str]:
    """A row for each run, and one for all rounds of a bench or tune; what is not here is only counted."""
    together: dict[Hashable, list[runs.Remembered]] = {}
    for entry in known:
        together.setdefault(entry.launcher if entry.measures else entry.id, []).append(entry)
    rows, gone = [], 0
    for newest, *earlier in together.values():
        end = _end(newest)
        if end == _GONE:
            gone += 1 + len(earlier)
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(newest.started))
        measured = f"{newest.measures}, {1 + len(earlier)} rounds" if earlier else newest.measures
        what, hosts = map(_cut, (measured or newest.program, fold(host.name for host in newest.hosts)), _WIDEST)
        state = end if isinstance(end, str) else end_in_words(end.ended_by, end.exit_code)
        rows.append((newest.id, when, what, hosts, state, newest.path))
    table = [("run", "started", "what", "hosts", "state", "folder"), *rows[:_SHOWN]]
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    for line in table:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[5]])
    if len(rows) > _SHOWN:
        yield f"and {len(rows) - _SHOWN} older ones: --json"
    if gone:
        yield f"and {gone} whose folder is not here: --json"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _row(entry: runs.Remembered) -> dict[str, Any]:
    end = _end(entry)
    return {
        "id": entry.id,
        "started": entry.started,
        "program": entry.program,
        "measures": entry.measures or None,
        "hosts": [host.name for host in entry.hosts],
        "state": end if isinstance(end, str) else end.ended_by,
        "exit_code": None if isinstance(end, str) else end.exit_code,
        "folder": entry.path,
    }


def _end(entry: runs.Remembered) -> RunResult | str:
    """How it ended, or `running`; in words where nobody wrote it down."""
    folder = Path(entry.path)
    try:
        result = runs.result_of(folder)
    except UsageError:
        return "result.json cannot be read"
    if result is not None:
        return result
    living = runs.lives(entry.launcher)
    if living:
        return "running"
    if not folder.is_dir():
        return _GONE
    return "its launcher was killed" if living is False else f"unknown: started on {entry.launcher.host}"
