"""The page of a run: what it says, and that nothing of a host gets out of its text."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from nvrun.commands import report
from nvrun.commands.top import tail
from nvrun.config import load
from nvrun.errors import UsageError
from nvrun.facts import from_json, to_json
from nvrun.report import charts, html, html_compare, live
from nvrun.report.markup import Markup, join, tag
from tests.report import made

EVIL = "</script><img src=x onerror=alert(1)>\"'&"
VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Elements must close in order; collects what could act."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.acting: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        if name not in VOID:
            self.open.append(name)
        if name in ("img", "iframe", "object", "link", "form") or any(key.startswith("on") for key, _ in attributes):
            self.acting.append(name)
        if name == "script":
            self.acting.append("script")

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert not parser.open
    return parser


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "20231114-221320-aaaa"
    made.write(folder)
    return folder


@pytest.fixture(scope="module")
def page(failed: Path) -> str:
    return html.page(report.read(failed), "/* plotly */")


def test_page_says_what_happened_where_and_what_to_do(page: str) -> None:
    parsed(page)
    assert "rank 13 on n02 exited with 1" in page
    assert "GPU 5&#x27;s clocks were held down" in page
    assert "airflow" in page
    assert "NV18 between all 8 GPUs" in page
    assert "NCCL_IB_HCA" in page
    assert "instead of" not in page
    assert "rank 15, n02" in page


def test_secrets_are_masked(page: str) -> None:
    assert "hf_abcdefghij" not in page


def test_nothing_is_fetched_from_anywhere(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)


def test_what_hosts_say_is_text(tmp_path: Path) -> None:
    folder = tmp_path / "20231114-221320-bbbb"
    made.write(folder, kind="h200x2", ranks=2, hosts=1, names=("n01" + EVIL,))
    (known,) = from_json((folder / "facts.json").read_bytes())
    assert known.software
    assert known.gpus
    gpus = tuple(msgspec.structs.replace(gpu, name=EVIL) for gpu in known.gpus)
    changed = msgspec.structs.replace(
        known, gpus=gpus, env={"NCCL_DEBUG": EVIL}, software=msgspec.structs.replace(known.software, torch=EVIL)
    )
    (folder / "facts.json").write_bytes(to_json([changed]))
    text = html.page(report.read(folder), "/* plotly */")
    assert parsed(text).acting == ["script"] * 3, "the library, the data, and the code that draws"
    assert text.count("&lt;img") >= 4
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    bars = next(chart for chart in data["charts"] if chart["id"] == "ranks")["bars"]
    assert all("<" not in bar["name"] for bar in bars), "plotly.js takes HTML in names"


def test_without_the_library_the_page_says_how_to_get_it(failed: Path) -> None:
    text = html.page(report.read(failed), None)
    assert "pip install" in text
    assert parsed(text).acting == []


@pytest.mark.parametrize("lost", ["facts.json", "verdict.json", "result.json", "logs"])
def test_what_is_missing_costs_its_own_part_only(failed: Path, tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(failed, folder)
    path = folder / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = html.page(report.read(folder), "/* plotly */")
    parsed(text)
    assert "n02" in text


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run's folder"):
        report.read(tmp_path)


def test_command_writes_into_the_runs_folder(failed: Path) -> None:
    said = report.run(load(["--", str(failed)], {}), {})
    assert said.text.startswith(f"{failed}/report.html\n")
    assert (failed / "report.html").read_text().startswith("<!doctype html>")


def test_two_runs_side_by_side(failed: Path, tmp_path: Path) -> None:
    other = tmp_path / "20231114-230000-cccc"
    made.write(other, fails=False, power=520)
    text = html_compare.page(report.read(failed), report.read(other), "/* plotly */")
    parsed(text)
    assert "all 16 ranks ended well" in text
    row = next(row for row in re.findall(r"<tr>.*?</tr>", text) if "GPU power, mean" in row)
    assert "-13.9%" in row


# -- charts ------------------------------------------------------------------------------------------------------------


def test_the_gpu_that_stands_out_is_loud(failed: Path) -> None:
    drawn = {chart.id: chart for chart in charts.charts(report.read(failed))}
    loud = [series.name for series in drawn["gpu-clock"].series if series.loud]
    assert loud == ["n02 GPU 5"]
    assert len(drawn["gpu-clock"].series) == 16


def test_rates_of_counters_are_what_was_put_in(failed: Path) -> None:
    drawn = {chart.id: chart for chart in charts.charts(report.read(failed))}
    series = drawn["nvlink"].series[2]
    assert series.y[10] == pytest.approx(122, rel=1e-3), "GB/s of GPU 2"
    assert drawn["rank-wait"].series[0].y[5] == pytest.approx(0.1)


def test_events_are_in_seconds_of_the_run(failed: Path) -> None:
    found = {event.text: event.at for event in charts.events(report.read(failed))}
    assert found == {"ranks begin": 4.0, "first output": 9.0, "rank 13 failed": 600.0}


def test_many_lines_become_their_envelope() -> None:
    lines = [[(10.0 * at + 0.2 * number, float(number)) for at in range(50)] for number in range(40)]
    found = charts.envelope(lines)
    assert {value for _, value in found["lowest"]} == {0.0}
    assert {value for _, value in found["highest"]} == {39.0}
    assert {value for _, value in found["middle"]} == {19.5}


def test_long_lines_are_shortened_and_keep_their_mean() -> None:
    points = [(float(at), float(at % 2)) for at in range(4000)]
    short = charts.reduced(points)
    assert len(short) <= charts.MOST_POINTS
    assert {value for _, value in short} == {0.5}


# -- markup and the terminal -------------------------------------------------------------------------------------------


def test_text_is_escaped_once_and_markup_is_not() -> None:
    inner = tag("b", "<&>")
    assert inner == "<b>&lt;&amp;&gt;</b>"
    assert tag("p", inner, class_='"') == '<p class="&quot;"><b>&lt;&amp;&gt;</b></p>'
    assert join(["<", Markup("<hr>")], "&") == "&lt;&amp;<hr>"


def test_top_shows_the_newest_of_each_rank(failed: Path) -> None:
    recorded = report.read(failed)
    newest = {name: tail(failed / "logs" / name / "samples.jsonl") for name in recorded.samples}
    seen = {name: samples for name, samples in newest.items() if samples is not None}
    rows = list(live.rows(recorded.plan, seen))
    assert len(rows) == 16
    hot = dict(zip(live.HEAD, rows[13], strict=True))
    assert (hot["host"], hot["rank"], hot["GPU"]) == ("n02", "13", "5")
    assert (hot["clock"], hot["held by"], hot["NVLink"]) == ("1393 MHz", "hardware thermal", "125 GB/s")
    (line, _) = live.host_lines(recorded.plan, seen, dict.fromkeys(seen, made.BEGAN + 610))
    assert line.startswith("n01: CPUs 21% busy, 1676 GiB left, sent 168 GB/s")
    assert line.endswith("(6 s ago)")
    assert next(live.rows(recorded.plan, {}))[:2] == ("n01", "no sample")
