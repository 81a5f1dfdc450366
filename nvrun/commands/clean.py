"""`nvrun clean`: ends what ended runs left behind on hosts, and removes their folders there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvrun import job
from nvrun.commands import Said
from nvrun.commands.reach import crew_of
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.report.document import document
from nvrun.report.findings import printable
from nvrun.report.text import finding_lines

_SECONDS = 60.0
"""For a host to look through its processes, end some and remove folders."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Exits with 0, with 1 where something would not go, and with 69 where a host was not reached."""
    if invocation.words:
        raise UsageError(f"nvrun clean: expected flags only, got {invocation.words[0]!r}", hint="--hosts LIST")
    dry = invocation.options.dry_run
    the_job = job.read(invocation, environ)
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    with crew_of(the_job, environ) as crew:
        crew.arrive()
        body = {"t": "clean", "dry": dry, "deadline": _SECONDS}
        answers = crew.ask(dict.fromkeys(crew.hello, body), "cleaned", _SECONDS + 5.0)
        for host in sorted(answers):
            answer = answers[host][0]
            found = answer["result"] or {
                "alive": [],
                "runs": [],
                "trouble": [answer["trouble"]],
            }
            rows.append({"host": crew.names[host], **found})
            lines += [f"{crew.names[host]}: {line}" for line in _told(found, dry)]
        findings = list(crew.findings)
    stuck = any(row["trouble"] or any(each.get("left") for each in row["runs"]) for row in rows)
    exit_code = 1 if stuck else 69 if findings else 0
    if invocation.options.json:
        return Said(document(hosts=rows, findings=findings), exit_code)
    return Said("".join(f"{printable(line)}\n" for line in (*lines, *finding_lines(findings))), exit_code)


def _told(found: Mapping[str, Any], dry: bool) -> Iterator[str]:
    """One line a run, and what was left alone."""
    for each in found["runs"]:
        parts = []
        if each["pids"]:
            pids = " ".join(map(str, each["pids"]))
            parts.append(f"{'would end' if dry else 'ended'} processes {pids}")
        if each["folder"]:
            parts.append(f"{'would remove' if dry else 'removed'} {each['folder']} ({each['bytes'] / 1e6:.1f} MB)")
        if each.get("left"):
            parts = [f"processes {' '.join(map(str, each['left']))} cannot be ended; its folder was left"]
        yield f"{each['mark']}: {', '.join(parts)}"
    for mark in found["alive"]:
        yield f"{mark}: still runs, left alone"
    yield from found["trouble"]
    if not (found["runs"] or found["alive"] or found["trouble"]):
        yield "nothing there"
