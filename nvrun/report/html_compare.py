"""Two runs side by side as one HTML page: how they ended, what was different, what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from nvrun.hosts.nodeset import fold
from nvrun.mask import masked
from nvrun.model import Severity
from nvrun.report import charts as charting
from nvrun.report.charts import Chart, Points, Series
from nvrun.report.html import NO_CHARTS, document, duration, figures, verdict
from nvrun.report.markup import Markup, table, tag
from nvrun.report.recorded import Recorded, environment

_SAME = 0.02
"""A mean that differs by less is shown without a colour: two runs of the same job differ by so much."""
_BETTER_HIGHER = ("gpu-util", "gpu-clock", "bandwidth")
_BETTER_LOWER = ("gpu-temperature", "rank-wait", "rank-faults")
_SOFTWARE = ("torch", "nccl", "cuda", "driver", "python", "kernel")


def page(one: Recorded, other: Recorded, plotly: str | None) -> str:
    """The page; `plotly` is the text of plotly.min.js. A is `one`, B is `other`."""
    first, second = ({chart.id: chart for chart in charting.charts(run)} for run in (one, other))
    drawn = [*_overlaid(first, second)]
    sections = [
        ("How they ended", [table(("", "A", "B"), list(_outcomes(one, other)))]),
        ("What was different", [_differences(one, other)]),
        ("Measured", [_means(first, second)]),
        ("Over time", [figures(drawn) if plotly else tag("p", NO_CHARTS, class_="quiet")] if drawn else []),
    ]
    head = tag(
        "header",
        tag("p", "nvrun report of two runs", class_="quiet"),
        tag("h1", "A ", one.name, " and B ", other.name),
    )
    body = [head, *(tag("section", tag("h2", title), *parts) for title, parts in sections if parts)]
    return document(f"{one.name}, {other.name}", body, drawn, (), plotly)


def _outcomes(one: Recorded, other: Recorded) -> Iterator[tuple[str, str, str]]:
    def badge(run: Recorded) -> Markup:
        state, words = verdict(run)
        return tag("span", tag("span", state, class_=f"badge {state}"), f" {words}")

    yield "ended", badge(one), badge(other)
    rows = {
        "took": lambda run: duration(run.result.seconds) if run.result else "not known",
        "hosts": lambda run: fold([host.host.name for host in run.plan.hosts]),
        "ranks": lambda run: str(run.plan.world_size),
        "findings": _found,
    }
    for name, of in rows.items():
        yield name, of(one), of(other)


def _found(run: Recorded) -> str:
    every = (*run.diagnosis, *run.watched, *(run.verdict.findings if run.verdict else ()))
    codes = dict.fromkeys(finding.code for finding in every if finding.severity >= Severity.WARNING)
    return ", ".join(codes) or "none"


def _differences(one: Recorded, other: Recorded) -> Markup:
    """Variables and software that are not the same; hosts are folded, so that unlike hosts show too."""
    rows: list[tuple[str, str, str]] = []
    for mine, theirs in ((_variables(one), _variables(other)), (_software(one), _software(other))):
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                rows.append((name, mine.get(name, "not set"), theirs.get(name, "not set")))
    if not rows:
        return tag("p", "The same variables and the same software.", class_="quiet")
    return table(("", "A", "B"), [(tag("code", name), mine, theirs) for name, mine, theirs in rows])


def _variables(run: Recorded) -> Mapping[str, str]:
    """Those that say what this one run is (NVRUN_RUN_ID) differ always and are left out."""
    found: dict[str, list[str]] = {}
    for row in environment(run):
        if row.name != "NVRUN_RUN_ID":
            where = f" on {fold(row.hosts)}" if row.hosts else ""
            found.setdefault(row.name, []).append(f"{masked(row.name, row.value)} ({row.source}){where}")
    return {name: "; ".join(sorted(values)) for name, values in found.items()}


def _software(run: Recorded) -> Mapping[str, str]:
    found: dict[str, dict[str, None]] = {}
    for facts in run.facts.values():
        for name in _SOFTWARE if facts.software else ():
            if value := getattr(facts.software, name):
                found.setdefault(name, {})[str(value)] = None
        for gpu in facts.gpus or ():
            found.setdefault("GPU", {})[gpu.name] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _means(first: Mapping[str, Chart], second: Mapping[str, Chart]) -> Markup:
    rows = []
    for name in [name for name in first if name in second and first[name].x != "bars"]:
        a, b = _mean(first[name]), _mean(second[name])
        if a is None or b is None:
            continue
        change = (b - a) / a if a else None
        kind = None
        if change is not None and abs(change) >= _SAME and name in (*_BETTER_HIGHER, *_BETTER_LOWER):
            kind = "up" if (change > 0) == (name in _BETTER_HIGHER) else "down"
        shown = tag("span", "" if change is None else f"{change:+.1%}", class_=kind)
        rows.append(
            (f"{first[name].title}, mean", f"{a:.4g} {first[name].unit}", f"{b:.4g} {second[name].unit}", shown)
        )
    if not rows:
        return tag("p", "Nothing was measured in both runs.", class_="quiet")
    return table(("", "A", "B", "B against A"), rows)


def _mean(chart: Chart) -> float | None:
    values = [value for series in chart.series for value in series.y if value is not None]
    return fmean(values) if values else None


def _overlaid(first: Mapping[str, Chart], second: Mapping[str, Chart]) -> Iterator[Chart]:
    """Both runs in one chart each: of many GPUs or ranks the middle."""
    for name, mine in first.items():
        theirs = second.get(name)
        if theirs is None or mine.x == "bars":
            continue
        if mine.x == "bytes":
            series = [
                Series(name=f"{mark} {each.name}", x=each.x, y=each.y)
                for mark, chart in (("A", mine), ("B", theirs))
                for each in chart.series
            ]
            note = ""
        else:
            series = [_middle("A", mine), _middle("B", theirs)]
            note = "the middle of all"
        yield Chart(id=name, title=mine.title, unit=mine.unit, series=tuple(series), x=mine.x, top=mine.top, note=note)


def _middle(mark: str, chart: Chart) -> Series:
    lines: list[Points] = [list(zip(each.x, each.y, strict=True)) for each in chart.series]
    points = charting.envelope(lines)["middle"]
    return Series(
        name=mark,
        x=tuple(round(at, 2) for at, _ in points),
        y=tuple(None if value is None else float(f"{value:.4g}") for _, value in points),
    )
