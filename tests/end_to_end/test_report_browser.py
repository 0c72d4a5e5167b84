"""report.html in a real browser: no error, no request, readable on a phone, figures there."""

import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lf_ray.analysis.report.folder import write_result
from lf_ray.record.history import read_journal

pytestmark = [
    pytest.mark.filterwarnings("default"),  # playwright's own deprecations are not ours
    pytest.mark.slow,
    pytest.mark.timeout(180),
]
MAKER = Path(__file__).resolve().parents[1] / "data" / "make_journal.py"
WIDTHS = {"phone": 390, "desk": 1280}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=["peaked", "data_bound", "no_baseline"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    runpy.run_path(str(MAKER))["write_sweep"](folder / "journal.jsonl", request.param, 0)
    write_result(folder, read_journal(folder / "journal.jsonl"))
    return folder / "report.html"


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_page_is_whole(browser: Any, report: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in requests if url.startswith("file:")]) == 1
    # Nothing sticks out sideways: wide tables scroll inside their own box.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lead = page.locator(".lead").bounding_box()
    assert lead is not None
    assert lead["y"] < 200, "the answer comes first"
    figures = page.locator("figure svg")
    if report.parent.name.startswith("no_baseline"):
        return
    assert figures.count() == 7
    for index in range(figures.count()):
        box = figures.nth(index).bounding_box()
        assert box is not None
        assert 300 < box["width"] <= width
        assert box["height"] > 100
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg text')]"
        ".map(text => text.getBoundingClientRect().height))"
    )
    assert smallest >= 7, "figures stay readable"
    page.close()


def test_it_prints(browser: Any, report: Path, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 688, "height": 980})  # A4 within its margins
    page.emulate_media(media="print")
    page.goto(report.as_uri())
    # Paper does not scroll: what is wider than the page is lost.
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    widths = page.evaluate("[...document.querySelectorAll('table')].map(x => x.scrollWidth)")
    assert max(widths) <= 688
    # No word of a fixed vocabulary is broken, and what the screen folds is there.
    heights = page.evaluate(
        "[...document.querySelectorAll('td[data-label=gate], td[data-label=outcome]')]"
        ".map(cell => { const range = document.createRange(); range.selectNodeContents(cell);"
        " return range.getBoundingClientRect().height; })"
    )
    assert min(heights) > 0
    assert max(heights) < 20
    page.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
    page.close()
