"""`nvrun runs`: this user's runs, the newest first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.hosts.nodeset import fold
from nvrun.report.document import document
from nvrun.report.findings import printable

_SHOWN = 50
"""Runs in the table; --json lists all."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    if invocation.words:
        raise UsageError(f"nvrun runs: expected nothing more, got {invocation.words[0]!r}")
    rows = [_row(entry) for entry in runs.known(environ)]
    if invocation.options.json:
        return Said(document(runs=rows))
    if not rows:
        return Said(f"no run yet (the index is {runs.index(environ)})\n")
    table = [("run", "started", "hosts", "state", "exit", "folder")]
    for row in rows[:_SHOWN]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started"]))
        code = "" if row["exit_code"] is None else str(row["exit_code"])
        table.append((row["id"], when, fold(row["hosts"]), row["state"], code, row["folder"]))
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[5]]) for line in table
    ]
    more = len(rows) - _SHOWN
    return Said("\n".join([*map(printable, lines), *([f"and {more} older ones: --json"] if more > 0 else [])]) + "\n")


def _row(entry: runs.Remembered) -> dict[str, Any]:
    state, exit_code = _state(entry)
    return {
        "id": entry.id,
        "started": entry.started,
        "hosts": [host.name for host in entry.hosts],
        "state": state,
        "exit_code": exit_code,
        "folder": entry.path,
    }


def _state(entry: runs.Remembered) -> tuple[str, int | None]:
    """What ended it, or `running`; in words where nobody wrote it down."""
    folder = Path(entry.path)
    try:
        result = runs.result_of(folder)
    except UsageError:
        return "result.json cannot be read", None
    if result is not None:
        return result.ended_by, result.exit_code
    living = runs.lives(entry.launcher)
    if living:
        return "running", None
    if not folder.is_dir():
        return "folder is gone", None
    return ("its launcher was killed" if living is False else f"unknown: started on {entry.launcher.host}"), None
