"""`nvrun report [RUN [RUN]]`: a run's folder as a page, or two runs side by side."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nvrun import runs
from nvrun.checks.in_run import in_run
from nvrun.commands import Said
from nvrun.config import Invocation
from nvrun.errors import UsageError
from nvrun.failure import failure
from nvrun.model import Finding, RunResult, Verdict
from nvrun.report import html, html_compare
from nvrun.report.document import document
from nvrun.report.recorded import Recorded
from nvrun.traces.files import summaries
from nvrun.traces.summary import RankProfile
from nvrun.watched import samples_of, used_gpus

PAGE = "report.html"


def run(invocation: Invocation, environ: Mapping[str, str]) -> Said:
    """Writes report.html into the run's folder; of two runs, report-with-<other>.html into the first one's."""
    words = invocation.words or (runs.LATEST,)
    if len(words) > 2:
        raise UsageError(f"nvrun report: expected one run or two, got {len(words)}")
    recorded = [read(runs.resolve(word, environ).path) for word in words]
    library = plotly()
    if len(recorded) == 1:
        page, path = html.page(recorded[0], library), Path(recorded[0].folder, PAGE)
    else:
        page = html_compare.page(recorded[0], recorded[1], library)
        path = Path(recorded[0].folder, f"report-with-{recorded[1].name}.html")
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if invocation.options.json:
        return Said(document(path=str(path), charts=library is not None))
    return Said(f"{path}\n" + (f"{html.NO_CHARTS}\n" if library is None else ""))


def plotly() -> str | None:
    """The text of plotly.js, without importing the package that ships it; None where it is not installed."""
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def read(folder: Path) -> Recorded:
    """All that the folder has. UsageError where it is no run's folder, or a file in it is not what it should be."""
    plan = runs.plan_of(folder)
    if plan is None:
        raise UsageError(f"{folder}: no plan.json, so no run's folder", hint="nvrun runs lists runs and their folders")
    result, samples = runs.result_of(folder), samples_of(folder, plan)
    facts = runs.facts_of(folder)
    return Recorded(
        name=plan.run_id,
        folder=str(folder),
        plan=plan,
        result=result,
        facts=facts,
        verdict=_verdict(folder / "verdict.json"),
        samples=samples,
        watched=in_run(samples, used_gpus(plan)),
        diagnosis=_diagnosis(folder, result),
        bench=_bench(folder / "bench.json"),
        profiles=_profiles(folder),
    )


def _diagnosis(folder: Path, result: RunResult | None) -> tuple[Finding, ...]:
    """The logs of a run that went well are not searched for a cause."""
    if result is not None and result.ended_by == "success":
        return ()
    return failure([folder]).findings


def _verdict(path: Path) -> Verdict | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verdict)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


def _bench(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        records = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("records", [])
        return tuple(msgspec.convert(records, list[dict[str, Any]]))
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


def _profiles(folder: Path) -> tuple[RankProfile, ...]:
    """Of each trace that the torch-profiler hook left; one that cannot be read is passed over."""
    return summaries([folder / "logs"]).ranks if (folder / "logs").is_dir() else ()
