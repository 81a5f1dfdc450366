"""`nvrun bundle [RUN]`: all of a run in one archive, with secrets masked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nvrun import runs
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.failure import failure
from nvrun.packed import pack
from nvrun.records import to_json
from nvrun.report.document import document

PAGE, FINDINGS = "failure.txt", "findings.json"
_SHOWN = 8
"""Notes that are printed; the archive's own list has all."""


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Writes nvrun-RUN.tar.gz into the working directory, or what --output names."""
    if len(invocation.words) > 1:
        raise UsageError(f"nvrun bundle: expected one run, got {len(invocation.words)}")
    folder = runs.resolve(invocation.words[0] if invocation.words else runs.LATEST, environ).path
    if not any((folder / name).is_file() for name in ("request.json", "plan.json", "result.json")):
        raise UsageError(f"{folder}: no run's folder", hint="nvrun runs lists runs and their folders")
    archive = Path(invocation.flags.get("--output") or f"nvrun-{folder.name}.tar.gz").absolute()
    packed = pack(folder, archive, more=_diagnosis(folder), environ=environ)
    if invocation.options.json:
        return Said(document(path=str(archive), bytes=packed.bytes, files=packed.files, notes=packed.notes))
    lines = [f"{archive}: {len(packed.files)} files, {packed.bytes} bytes"]
    lines += [f"  {note}" for note in packed.notes[:_SHOWN]]
    lines += [f"  and {len(packed.notes) - _SHOWN} more: bundle.json in it" if len(packed.notes) > _SHOWN else ""]
    lines += ["secrets are masked by their names and shapes: look through it before it leaves your hands"]
    return Said("\n".join(filter(None, lines)) + "\n")


def _diagnosis(folder: Path) -> dict[str, bytes]:
    """The page and the findings as they are made now; a run that went well has neither."""
    try:
        result = runs.result_of(folder)
        if result is not None and result.ended_by == "success":
            return {}
        found = failure([folder])
    except UsageError as error:  # a broken record: the rest is packed all the same, and this is said in it
        return {PAGE: f"{error.message}\n".encode()}
    return {PAGE: f"{found.page}\n".encode(), FINDINGS: to_json({"findings": found.findings}) + b"\n"}
