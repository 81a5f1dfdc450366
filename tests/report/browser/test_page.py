"""The page in a browser: charts drawn, nothing fetched, no error, at both widths and in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from nvrun.commands import report
from nvrun.report import charts, html, html_compare
from tests.report import made
from tests.report.browser import chromium

pytestmark = [
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium (Debian's package chromium)"),
    pytest.mark.skipif(report.plotly() is None, reason="needs plotly (pip install 'nvrun[report]')"),
]
DRAWN = "document.querySelectorAll('.plot .main-svg').length > 0 && document.documentElement.dataset.drawn"
LINES = """Array.from(document.querySelectorAll('.plot'),
    (plot) => [plot.id, plot.querySelectorAll('.scatterlayer path.js-line, .bars path').length])"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made.write(folder / "20231114-221320-aaaa")
    made.write(folder / "20231114-230000-bbbb", fails=False, power=500)
    evil = "n<b onclick=alert(1)>&amp;"
    made.write(folder / "20231114-230000-cccc", kind="h200x2", hosts=1, ranks=2, names=(evil,))
    one, other, third = (report.read(path) for path in sorted(folder.iterdir()))
    library = report.plotly()
    texts = {
        "one": html.page(one, library),
        "two": html_compare.page(one, other, library),
        "evil": html.page(third, library),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.browser() as found:
        yield found


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("one", 1280, "light"),
        ("one", 1280, "dark"),
        ("one", 400, "light"),
        ("one", 400, "dark"),
        ("two", 400, "dark"),
        ("evil", 400, "light"),
    ],
)
def test_page_is_drawn_and_fits(
    pages: dict[str, Path], browser: chromium.Browser, name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    browser.open(pages[name], width=width, scheme=scheme)
    assert browser.value(DRAWN) == scheme
    assert browser.said == [], "errors, warnings, or a request that left the file"
    assert browser.value("document.documentElement.scrollWidth") == width, "it must not scroll sideways"
    lines = dict(browser.value(LINES))
    assert lines
    assert all(lines.values()), "a chart without a line"
    dark = browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
    assert dark == (scheme == "dark")
    inked = browser.value("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
    assert inked == ("rgb(228, 232, 236)" if dark else "rgb(27, 31, 36)"), "the charts have the page's colours"


def test_every_chart_has_its_lines(pages: dict[str, Path], browser: chromium.Browser) -> None:
    browser.open(pages["one"], width=1280, scheme="light")
    lines = dict(browser.value(LINES))
    expected = charts.charts(report.read(pages["one"].parent / "20231114-221320-aaaa"))
    assert set(lines) == {f"chart-{chart.id}" for chart in expected}
    assert lines["chart-ranks"] >= 16
    assert lines["chart-gpu-power"] == 16


def test_charts_change_colour_with_the_page(pages: dict[str, Path], browser: chromium.Browser) -> None:
    browser.open(pages["one"], width=1280, scheme="light")
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    for _ in range(100):
        if browser.value("document.documentElement.dataset.drawn") == "dark":
            break
    assert browser.value("document.documentElement.dataset.drawn") == "dark"
    assert browser.said == []
