"""The pages of `preflight diff --html` and `preflight history --html`."""

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from preflight.history import archive, diff, diff_page, history_page, questions
from tests import made
from tests.history.made import entry, finding
from tests.history.told import dispatched
from tests.pages import FROM_ELSEWHERE, Page

NOTHING = questions.Answers(0, "", "", (), (), (), (), ())
NASTY = "<script>alert(1)</script>&\"'"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _diff(busbw: float, *new: Any, torch: str = "2.9") -> str:
    old, now = (entry(n, busbw=value, software={"node-0": version})
                for n, value, version in ((1, 400.0, "2.9"), (2, busbw, torch)))  # fmt: skip
    reports = made.made_report(made.result()), made.made_report(made.result(*new))
    return diff_page.html(diff.difference(old, now, reports), "monday", NASTY)


def _kept(path: Path, number: int = 40) -> str:
    """Steps: all-reduce by 10 % from run 25 on, GPU-1 by 8 % from run 20 on. node-1 fails twice."""
    noise, places = random.Random(1), {"GPU-0": "node-0", "GPU-1": "node-1"}
    for n in range(number):
        gemm = {gpu: 700 * noise.gauss(1, 0.003) * (0.92 if gpu == "GPU-1" and n >= 20 else 1) for gpu in places}
        busbw = 400 * noise.gauss(1, 0.01) * (0.9 if n >= 25 else 1)
        found = [finding("gpu.health.xid", "node-1")] if n in (3, 30) else []
        archive.write(str(path), entry(n, busbw=busbw, gemm=gemm, places=places, findings=found), 36500.0)
    return str(path)


def _history(path: str) -> str:
    with archive.reading(path) as database:
        courses = [*questions.courses(database, questions.recent_runs(database))]
        return history_page.html(questions.answers(database), courses, path)


def test_a_diff_says_first_what_became_slower_and_what_changed_beside_it() -> None:
    page = Page(_diff(200.0, made.finding(node="node-1", message=NASTY), torch=NASTY))
    first = " ".join(page.verdict.split())
    assert first.startswith("Worse 1 finding came, 1 speed fell")
    assert "Slower: comm.all_reduce 1 GiB fp32 busbw." in first and "50% of before, expected at least 80%" in first
    assert f"software torch: 2.9 before, now {NASTY}, on node-0" in first
    assert "node-1" in page.text and page.text.count(NASTY) >= 3 and page.tags.count("script") == 2
    assert page.values("g", "class") == ["fell"] and "! 0.5" in page.text


def test_two_equal_runs_are_not_worse_and_nothing_is_marked() -> None:
    page = Page(_diff(400.0))
    assert "Not worse" in page.verdict and "Slower" not in page.text
    assert page.values("g", "class") == [] and "Neither run found anything." in page.text


def test_a_history_has_a_picture_of_each_figure_with_its_step_and_a_table_behind_it(tmp_path: Path) -> None:
    text = _history(_kept(tmp_path / "h"))
    page = Page(text)
    assert "1 node failed again and again, 2 steps for the worse" in page.verdict
    assert page.tags.count("figure") == 2 and page.tags.count("details") == 2
    steps = re.findall(r'class="odd-name">([^<]+)<', text)
    assert [re.sub(r"^-[\d.]+% \S+ ?", "", step) for step in steps] == ["", "GPU-1"]
    assert all(-12 < float(step.partition("%")[0]) < -6 for step in steps)
    assert page.values("line", "class").count("step") == 2 and "band c0" in page.values("polygon", "class")
    assert not {name for _, name, _ in page.attributes} & FROM_ELSEWHERE


def test_a_history_without_a_step_marks_none_and_an_empty_one_is_a_page(tmp_path: Path) -> None:
    page = Page(_history(_kept(tmp_path / "few", 3)))
    assert page.tags.count("figure") == 2 and "step" not in page.values("line", "class")
    assert "No figure was kept." in Page(history_page.html(NOTHING, [], "h")).text


def test_a_renamed_host_is_on_the_page(tmp_path: Path) -> None:
    for number, name in enumerate(("gpu-1", NASTY)):
        archive.write(str(tmp_path / "h"), entry(number, (name,), machines={name: "a" * 32}), 36500.0)
    page = Page(_history(str(tmp_path / "h")))
    assert "renamed" in page.values("section", "id") and f"{NASTY}gpu-1" in page.text
    assert "Renamed hosts" not in Page(_history(_kept(tmp_path / "few", 3))).text


def test_many_runs_are_few_points(tmp_path: Path) -> None:
    """A day's runs of half a year are a page that a browser opens."""
    points = [(questions.KeptRun(n, n * 3600.0), 1.0 + n % 7) for n in range(4000)]
    series = [questions.FigureSeries("", "a.b", "n", "GB/s", False, f"GPU-{n}") for n in range(8)]
    assert len(history_page.html(NOTHING, [(each, points) for each in series], "h")) < 90_000


def test_the_commands_write_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatched(capsys, "history", _kept(tmp_path / "h", 3), "--html", str(tmp_path / "h.html"))
    assert "3 runs" in Page((tmp_path / "h.html").read_text()).verdict


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_in_a_browser_they_ask_for_nothing_fit_a_phone_and_sort(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    pages = {"diff": _diff(200.0, made.finding(node="node-1")), "history": _history(_kept(tmp_path / "h"))}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, text in pages.items():
            path = tmp_path / f"{name}.html"
            path.write_text(text)
            page = browser.new_page(viewport={"width": 400, "height": 900})
            heard: list[str] = []
            page.on("request", lambda request, heard=heard: heard.append(request.url))
            page.on("console", lambda message, heard=heard: heard.append(message.text))
            page.on("pageerror", lambda error, heard=heard: heard.append(str(error)))
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]")
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            page.locator("thead button").first.click()
            assert page.locator("[aria-sort=ascending]").count() == 1
            page.locator("#theme").click()
            assert page.locator("html").get_attribute("data-theme") == "dark"
            assert heard == [path.as_uri()]
        browser.close()
