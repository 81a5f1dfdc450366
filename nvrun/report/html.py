"""The report of a run as one HTML page that opens without a network. Pure: a recorded run and the library's text in,
HTML out.

The charts are drawn by plotly.js, which is put into the page: of the libraries that ship their JavaScript in a wheel
it is the best kept, and with it the page needs no code of ours but `report.js`. Without it the page has no charts and
says how to get them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources

import msgspec
from msgspec.structs import replace

from nvrun import __version__
from nvrun.diagnose.seen import STOPPED
from nvrun.hosts.nodeset import fold
from nvrun.mask import masked
from nvrun.model import Finding, Severity, worst_first
from nvrun.report import charts as charting
from nvrun.report.charts import Chart, Event
from nvrun.report.findings import folded
from nvrun.report.html_topology import pictures
from nvrun.report.markup import Markup, join, table, tag
from nvrun.report.recorded import Recorded, environment
from nvrun.report.text import end_in_words, ended
from nvrun.topology.cpus import format_cpulist

NO_CHARTS = "charts need plotly, which is not installed: pip install 'nvrun[report]'"
# Nothing from outside, whatever a host's text may say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_DASH = "–"


def page(run: Recorded, plotly: str | None) -> str:
    """The page; `plotly` is the text of plotly.min.js."""
    drawn = charting.charts(run)
    sections = [
        ("findings", "Findings", _findings(run)),
        ("hosts", "Hosts", [_hosts(run)]),
        ("timeline", "Timeline", _timeline(run, drawn, plotly)),
        ("topology", "Topology and bindings", [*pictures(run), _bindings(run)]),
        ("bandwidth", "Bandwidth", _bandwidth(drawn, plotly)),
        ("communication", "Communication", _communication(run)),
        ("environment", "Environment", [_environment(run)]),
        ("command", "What was run", list(_command(run))),
    ]
    kept = [(anchor, title, parts) for anchor, title, parts in sections if parts]
    body = [_head(run, [(anchor, title) for anchor, title, _ in kept])]
    body += [tag("section", tag("h2", title), *parts, id=anchor) for anchor, title, parts in kept]
    return document(run.name, body, drawn, charting.events(run), plotly)


def document(
    title: str, body: Iterable[str], drawn: Sequence[Chart], events: Sequence[Event], plotly: str | None
) -> str:
    """Head, scripts and data around the sections of a page."""
    data = msgspec.json.encode({"charts": drawn, "events": events}).decode().replace("<", "\\u003c")
    scripts = []
    if plotly is not None and drawn:
        scripts = [
            tag("script", Markup(plotly.replace("</script", "<\\/script"))),
            tag("script", Markup(data), id="data", type="application/json"),
            tag("script", Markup(_asset("report.js"))),
        ]
    head = [
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        tag("title", f"{title} {_DASH} nvrun"),
        tag("style", Markup(_asset("report.css"))),
    ]
    made = tag("footer", f"made by nvrun {__version__}")
    inner = [tag("head", *head), tag("body", tag("main", *body, made), *scripts)]
    return f"<!doctype html>\n{tag('html', *inner, lang='en')}\n"


def _asset(name: str) -> str:
    return resources.files("nvrun.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


# -- sections ----------------------------------------------------------------------------------------------------------


def _head(run: Recorded, links: Sequence[tuple[str, str]]) -> Markup:
    state, words = verdict(run)
    facts = [
        ("hosts", fold([host.host.name for host in run.plan.hosts])),
        ("ranks", str(run.plan.world_size)),
        ("began", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.begun)) if run.begun else "not known"),
        ("took", duration(run.result.seconds) if run.result else "not known"),
        ("folder", run.folder),
    ]
    listed = join(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)
    tail = run.result.first_failure.tail if run.result and run.result.first_failure else ()
    return tag(
        "header",
        tag("p", f"nvrun report of {run.name}", class_="quiet"),
        tag("h1", tag("span", state, class_=f"badge {state}"), " ", words),
        *([tag("pre", "\n".join(tail))] if tail else []),
        tag("dl", listed),
        tag("nav", join((tag("a", title, href=f"#{anchor}") for anchor, title in links), " ")),
    )


def verdict(run: Recorded) -> tuple[str, str]:
    """`succeeded`, `failed`, `stopped` or `unfinished`; and what happened, in words."""
    result = run.result
    stopped = next((finding.message for finding in run.diagnosis if finding.code == STOPPED), "")
    if stopped:
        return "stopped", stopped + (f" (exit code {result.exit_code})" if result else "")
    if result is None:
        return "unfinished", "no result was written: it still runs, or its launcher was killed"
    if result.ended_by == "success":
        return "succeeded", f"all {sum(len(host.ranks) for host in run.plan.hosts)} ranks ended well"
    first = result.first_failure
    if first:
        return "failed", f"rank {first.rank} on {first.host} {ended(first.code)}"
    message = result.message.partition("\n")[0]
    words = f"{message} (exit code {result.exit_code})" if message else end_in_words(result.ended_by, result.exit_code)
    return "stopped" if result.ended_by == "signal" else "failed", words


def _findings(run: Recorded) -> list[Markup]:
    stages = (
        ("in the logs", run.diagnosis),
        ("at the end", run.result.findings if run.result else ()),
        ("while it ran", run.watched),
        ("before the launch", run.verdict.findings if run.verdict else ()),
    )
    seen: set[tuple[str, str | None, str]] = set()
    rows: list[tuple[Finding, str, str]] = []
    for stage, findings in stages:
        new = [each for each in findings if (each.code, each.host, each.subject) not in seen]
        seen |= {(each.code, each.host, each.subject) for each in new}
        rows += [
            (replace(group.finding, message=group.message, remedy=group.remedy), group.where, stage)
            for group in folded(new)
        ]
    order = {id(finding): at for at, finding in enumerate(worst_first(finding for finding, _, _ in rows))}
    rows.sort(key=lambda row: order[id(row[0])])
    cards = [_card(*row) for row in rows if row[0].severity >= Severity.WARNING]
    quiet = [_card(*row) for row in rows if row[0].severity < Severity.WARNING]
    if not cards:
        cards = [tag("p", "Nothing was found that would hinder or slow the job.", class_="quiet")]
    if quiet:
        cards.append(tag("details", tag("summary", f"{len(quiet)} for information"), *quiet))
    if run.verdict and run.verdict.skipped:
        lines = dict.fromkeys(f"{each.code}: {each.reason}" for each in run.verdict.skipped)
        summary = tag("summary", f"{len(lines)} checks could not judge every host")
        cards.append(tag("details", summary, tag("ul", *(tag("li", line) for line in lines))))
    return cards


def _card(finding: Finding, where: str, stage: str) -> Markup:
    parts = [
        tag("p", tag("span", finding.severity.label, class_="severity"), " ", where and f"{where}: ", finding.message)
    ]
    if finding.remedy:
        parts.append(tag("p", tag("b", "Remedy: "), finding.remedy))
    sure = "" if finding.confidence is None else f", {finding.confidence:.0%} sure"
    about = filter(None, (finding.code, stage + sure, finding.expected and f"expected {finding.expected}"))
    parts.append(tag("p", " · ".join(about), class_="quiet"))
    if finding.evidence:
        parts.append(tag("details", tag("summary", "Evidence"), tag("pre", "\n".join(finding.evidence))))
    return tag("article", *parts, class_=f"finding {finding.severity.label}")


def _hosts(run: Recorded) -> Markup:
    rows = []
    for host in run.plan.hosts:
        name = host.host.name
        facts, seen = run.facts.get(name), run.samples.get(name)
        software = facts.software if facts else None
        gpus = facts.gpus if facts else None
        models = " + ".join(dict.fromkeys(gpu.name.removeprefix("NVIDIA ") for gpu in gpus or ()))
        memory = facts.memory if facts else None
        offset = facts.clock_offset_s if facts else None
        spent = _spent(run, name)
        rows.append(
            (
                tag("b", name),
                _ranks_of([rank.rank for rank in host.ranks]),
                "not known" if gpus is None else f"{len(gpus)} × {models}" if gpus else "none",
                str(len(facts.cpus.allowed)) if facts and facts.cpus else "not known",
                f"{memory.total_bytes >> 30} GiB" if memory else "not known",
                " / ".join(
                    part or _DASH
                    for part in ((software.torch, software.nccl, software.driver) if software else (None, None, None))
                ),
                _DASH if offset is None else f"{offset * 1e3:+.1f} ms",
                "not watched"
                if seen is None
                else f"{len(seen.samples)}" + (f", {spent:.2%} of a core" if spent else ""),
            )
        )
    head = ("host", "ranks", "GPUs", "CPUs", "memory", "torch / NCCL / driver", "clock", "samples")
    return table(head, rows)


def _spent(run: Recorded, host: str) -> float:
    """CPU time of the monitor by time, from its first sample on."""
    seen = run.samples.get(host)
    if seen is None or len(seen.samples) < 2:
        return 0.0
    first, last = seen.samples[0], seen.samples[-1]
    return (last.spent_s - first.spent_s) / (last.at - first.at) if last.at > first.at else 0.0


def _ranks_of(ranks: Sequence[int]) -> str:
    return format_cpulist(ranks) or "none"


def _timeline(run: Recorded, drawn: Sequence[Chart], plotly: str | None) -> list[Markup]:
    mine = [chart for chart in drawn if chart.x != "bytes"]
    if not mine:
        return [tag("p", "Nothing was recorded: the monitor was off, or no rank began.", class_="quiet")]
    if plotly is None:
        return [tag("p", NO_CHARTS, class_="quiet")]
    notes = []
    if not run.samples:
        notes.append(tag("p", "The monitor was off (--monitor SECONDS), so there are no readings.", class_="quiet"))
    return [*notes, figures(mine)]


def figures(drawn: Iterable[Chart]) -> Markup:
    """The places where report.js draws."""
    return tag("div", *(_figure(chart) for chart in drawn), class_="charts")


def _figure(chart: Chart) -> Markup:
    said = ", ".join(filter(None, (chart.unit, chart.note)))
    caption = tag("figcaption", tag("b", chart.title), f" {said}" if said else "")
    wide = "chart wide" if chart.x != "time" else "chart"
    return tag("figure", caption, tag("div", id=f"chart-{chart.id}", class_="plot"), class_=wide)


def _bandwidth(drawn: Sequence[Chart], plotly: str | None) -> list[Markup]:
    mine = [chart for chart in drawn if chart.x == "bytes"]
    return [figures(mine) if plotly else tag("p", NO_CHARTS, class_="quiet")] if mine else []


def _communication(run: Recorded) -> list[Markup]:
    if not run.profiles:
        return []
    rows = []
    for each in run.profiles:
        whole = each.total or 1.0
        bar = tag("meter", min="0", max="1", value=f"{each.communication / whole:.3f}")
        rows.append(
            (
                f"{each.host}/{each.trace}" if each.host else each.trace,
                f"{each.total * 1e3:.1f} ms",
                join([bar, f" {each.communication / whole:.1%}"]),
                f"{each.exposed / whole:.1%}",
                f"{each.idle / whole:.1%}",
            )
        )
    head = ("trace", "profiled", "communication", "of it with no other work beside", "idle")
    return [table(head, rows)]


def _bindings(run: Recorded) -> Markup:
    rows = []
    for host in run.plan.hosts:
        for rank in host.ranks:
            binding = rank.binding
            node = binding.memory_node if binding else None
            rows.append(
                (
                    str(rank.rank),
                    host.host.name,
                    "none" if binding is None or binding.gpu_index is None else f"GPU {binding.gpu_index}",
                    format_cpulist(binding.cpus) or "all" if binding else "all",
                    _DASH if node is None else f"node {node}",
                    ", ".join(binding.nics[:2]) or _DASH if binding else _DASH,
                    binding.why if binding else "",
                )
            )
    head = ("rank", "host", "GPU", "CPUs", "memory", "nearest NICs", "why")
    return tag("details", tag("summary", f"All {len(rows)} ranks"), table(head, rows))


def _environment(run: Recorded) -> Markup:
    rows = [
        (
            tag("code", row.name),
            tag("code", masked(row.name, row.value)),
            row.source,
            fold(row.hosts) if row.hosts else "all",
            "; ".join(filter(None, (row.why, *(f"instead of {masked(row.name, each)}" for each in row.overrode)))),
        )
        for row in environment(run)
    ]
    if not rows:
        return tag("p", "No variable of NCCL, torch or nvrun was set.", class_="quiet")
    return table(("variable", "value", "set by", "hosts", "why"), rows)


def _command(run: Recorded) -> Iterator[Markup]:
    plan = run.plan
    where = "as the user said" if plan.master_addr is None else f"{plan.master_addr} port {plan.master_port}"
    yield tag(
        "p", f"Rendezvous: {plan.rendezvous}, {where}. Restarts allowed: {plan.restarts}. Grace: {plan.grace:g} s."
    )
    for host in plan.hosts[:1]:
        yield tag("pre", shlex.join(masked("", part) for part in host.program))
    for host in plan.hosts[:1]:
        full = shlex.join(masked("", part) for part in (*host.prefix, *host.argv))
        yield tag("details", tag("summary", f"torchrun's command line on {host.host.name}"), tag("pre", full))


def duration(seconds: float) -> str:
    """`7.3 s`, `4 min 12 s`, `3 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
