"""The page in a headless Chromium: what its script does, by mouse and by keyboard, and what it may not do."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight.results.page import whole
from preflight.results.report import Report
from tests import made, made_cluster

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]
LOG = '<script>document.title = "run"</script><img src=http://127.0.0.1:9/x>'
CONTRAST = """() => {
  const shade = text => text.match(/[\\d.]+/g).map(Number);
  const channel = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = rgb => rgb.slice(0, 3).reduce((sum, v, i) => sum + channel(v / 255) * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => e && shade(getComputedStyle(e).backgroundColor)[3] === 0 ? ground(e.parentElement) : e;
  const has_text = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const shown = e => e.checkVisibility() && !e.closest('svg, noscript, canvas, td.s-fail, td.s-error');
  return [...document.querySelectorAll('body *')].filter(e => has_text(e) && shown(e)).map(e => {
    const back = light(shade(getComputedStyle(ground(e)).backgroundColor));
    const front = light(shade(getComputedStyle(e).color));
    return [(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), e.outerHTML.slice(0, 90)];
  }).filter(([ratio]) => ratio < 4.5);
}"""
"""Of the colours of words and of what is behind them. Patterns of cells have colours that other words have, too."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page in the browser, and all that it asked for or complained of."""

    def __init__(self, browser: Any, folder: Path, report: Report, **context: Any) -> None:
        path = folder / "report.html"
        path.write_text(whole.html(report))
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **context)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        if context.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready]")

    def is_quiet(self) -> bool:
        """Whether it asked for nothing but itself, and complained of nothing."""
        return len(self.requests) == 1 and self.complaints == []

    def findings(self) -> list[str]:
        shown = self.page.locator(".finding:not(.away) h3").all_inner_texts()
        return [re.sub(r"^\w ", "", text) for text in shown]


def cluster(nodes: int = 80, sick: int = 7) -> Report:
    found = [
        made.finding(code="comm.pairs.slow_node", node=made_cluster.name(sick), fix="Drain it."),
        made.finding("warn", LOG, code="gpu.compute.slow", node="gpu-0009", evidence={"log": LOG}),
    ]
    return made_cluster.report(nodes, found, sick=sick)


def test_by_mouse_it_filters_sorts_folds_and_tells_and_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, cluster())
    page = opened.page
    assert opened.findings() == ["fail: gpu-0007", "warn: gpu-0009"]
    page.get_by_role("button", name="gpu-0009", exact=True).click()
    assert opened.findings() == ["warn: gpu-0009"] and "1 of 2 findings" in page.locator("#shown").inner_text()
    assert page.locator(".matrix tbody tr:not(.away)").count() == 1
    assert page.locator("#gpu .chosen").count() >= 8  # its GPUs on each strip
    page.locator("#clear").click()
    page.get_by_role("button", name="comm.pairs", exact=True).click()
    assert opened.findings() == ["fail: gpu-0007"]
    assert page.locator("figure:not(.away)").evaluate_all("all => all.map(f => f.dataset.check)") == ["comm.pairs"]
    page.locator("#clear").click()
    page.locator(".fold").click()
    assert page.locator(".matrix tr.child").count() == 78
    page.locator(".fold").click()
    assert page.locator(".matrix tr.child").count() == 0
    seconds = page.locator("#appendix th", has_text="check").first
    seconds.get_by_role("button").click()
    seconds.get_by_role("button").click()
    names = page.locator("#appendix table").first.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert names == sorted(names, reverse=True) and seconds.get_attribute("aria-sort") == "descending"
    canvas = page.locator("canvas.heat")
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": 7.5 * canvas.evaluate("c => c.clientWidth") / 80, "y": 5})
    assert page.locator("#query").input_value() == "node:gpu-0000"
    assert "gpu-0000 to gpu-0007" in page.locator(".k-heatmap .read").inner_text()
    assert LOG in page.locator(".finding").nth(1).inner_text() and page.title() == "preflight: fail"
    assert opened.is_quiet(), (opened.requests, opened.complaints)


def test_by_keyboard_it_does_the_same(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, cluster())
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip-link"
    page.locator("#query").focus()
    page.keyboard.type("status:warn")
    assert opened.findings() == ["warn: gpu-0009"] and page.url.endswith("#filter=status%3Awarn")
    page.reload()  # the address keeps it
    page.wait_for_selector("html[data-ready]")
    assert opened.findings() == ["warn: gpu-0009"]
    page.keyboard.press("Escape")
    page.locator("#clear").focus()
    page.keyboard.press("Enter")
    page.locator(".fold").focus()
    page.keyboard.press("Enter")
    assert page.locator(".fold").get_attribute("aria-expanded") == "true"
    page.locator("#all-nodes").focus()
    for key in ("ArrowRight",) * 7:
        page.keyboard.press(key)
    assert page.locator("#nodes .read").inner_text() == "gpu-0007, env.launch: pass"
    page.keyboard.press("Enter")
    assert opened.findings() == ["fail: gpu-0007"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(browser: Any, tmp_path: Path, scheme: str) -> None:
    """WCAG 2.1 AA: 4.5 to 1."""
    opened = Opened(browser, tmp_path, cluster(4, 1), color_scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert opened.page.evaluate(CONTRAST) == []


@pytest.mark.more
def test_without_its_script_all_but_filter_and_canvases_is_there(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, cluster(), java_script_enabled=False)
    page = opened.page
    assert not page.locator("#filter").is_visible() and page.locator(".copy").first.is_hidden()
    assert page.locator("svg[role=img]").count() > 20 and page.locator(".matrix tbody tr").count() == 3
    assert page.locator("noscript").first.is_visible()


@pytest.mark.more
def test_it_fits_a_phone_and_a_wall_and_paper(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, cluster())
    for width in (400, 1280, 2560):
        opened.page.set_viewport_size({"width": width, "height": 900})
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("nav").is_visible() and opened.page.locator("#verdict").is_visible()


@pytest.mark.more
def test_another_script_in_the_file_does_not_run(browser: Any, tmp_path: Path) -> None:
    """Were a template to forget to escape, the policy would hold it."""
    opened = Opened(browser, tmp_path, cluster(4, 1))
    path = tmp_path / "report.html"
    path.write_text(path.read_text().replace("</main>", "<script>document.title = 'run'</script></main>"))
    opened.page.reload()
    assert opened.page.title() == "preflight: fail"
    assert any("Content Security Policy" in complaint for complaint in opened.complaints)


@pytest.mark.more
def test_copying_gives_the_fix(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, cluster(4, 1), permissions=["clipboard-read", "clipboard-write"])
    opened.page.locator(".finding .copy").first.click()
    opened.page.get_by_text("Copied").wait_for()
    assert opened.page.evaluate("navigator.clipboard.readText()") == "Drain it."
