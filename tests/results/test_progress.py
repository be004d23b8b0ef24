import sys
import threading
import time
from typing import Any

import pytest

from preflight.results import progress
from preflight.results.console import Detail
from preflight.results.progress import Live, Plain
from tests import made


class Written:
    """What a screen wrote."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, text: str) -> None:
        self.text += text


def live(width: int = 80) -> tuple[Live, Written]:
    written = Written()
    return Live(written, width, color_system=None, height=40), written


def passed(check: str, seconds: float = 1.0) -> Any:
    return made.result(check=check, summary="all is well", outcomes=made.measured(0, seconds=seconds))


PLAN = ["env.launch", "env.variables", "comm.init", "comm.all_reduce"]


def test_a_family_folds_when_all_of_it_passed() -> None:
    drawn, _ = live()
    drawn.planned(PLAN)
    drawn.ended(passed("env.launch"))
    assert drawn.lines() == ["PASS  env.launch             1.0 s  all is well"]
    drawn.ended(passed("env.variables"))
    assert drawn.lines() == ["PASS  env                    2.0 s  launch, variables; all is well"]


@pytest.mark.parametrize("result", [made.result(made.finding("warn"), check="env.launch"),
                                    made.result(check="env.launch", skipped="no library")])  # fmt: skip
def test_a_family_with_anything_else_stays_open(result: Any) -> None:
    drawn, _ = live()
    drawn.planned(PLAN)
    drawn.ended(result)
    drawn.ended(passed("env.variables"))
    assert [line.split()[1] for line in drawn.lines()] == ["env.launch", "env.variables"]


def test_the_running_check_shows_its_time_and_what_is_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    drawn, _ = live()
    drawn.planned(PLAN)
    drawn.running("env.launch", 0.5)
    now += 3.0
    assert drawn.lines() == ["RUN   env.launch             3.0 s", "      3 checks to come"]
    drawn.running("comm.init", 8.0)
    now += 4.0
    bar = f"{'━' * 12}{'─' * 12}"
    assert drawn.lines()[0] == f"RUN   comm.init              4.0 s  {bar}  of about 8 s"
    now += 40.0
    assert "━" * 24 in drawn.lines()[0], "it never shows more than all"


def test_it_is_drawn_at_once_and_then_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    drawn, written = live()
    drawn.planned(PLAN)
    drawn.running("env.launch", 9.0)
    before = len(written.text)
    now += 0.2
    drawn.turn()
    assert len(written.text) == before
    now += 0.1
    drawn.turn()
    assert len(written.text) > before


def test_after_the_end_only_lines_come_and_nothing_is_drawn() -> None:
    drawn, written = live()
    drawn.planned(PLAN)
    drawn.running("env.launch", 9.0)
    drawn.close()
    written.text = ""
    drawn.turn()
    drawn.say(["verdict: PASS (all)"])
    drawn.close()
    assert written.text == "verdict: PASS (all)\n"


def test_the_cursor_is_never_hidden() -> None:
    drawn, written = live()
    drawn.planned(PLAN)
    drawn.running("env.launch", 9.0)
    assert written.text and "\x1b[?25l" not in written.text


def test_what_checks_say_is_no_markup() -> None:
    drawn, written = live()
    drawn.say(["FAIL  [bold]x[/bold]  [env.launch.late]"])
    assert written.text == "FAIL  [bold]x[/bold]  [env.launch.late]\n"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    drawn, _ = live(width)
    drawn.planned(PLAN)
    drawn.ended(made.result(check="env.launch", summary="x" * 300))
    drawn.ended(passed("comm.init"))
    drawn.running("comm.all_reduce", 9.0)
    assert all(len(line) <= width for line in drawn.lines())
    assert drawn.width == min(width, progress.WIDEST)


TERMINAL = {"TERM": "xterm-256color"}


@pytest.mark.parametrize(
    ("width", "environ", "kind"),
    [
        (80, TERMINAL, Live),
        (None, TERMINAL, Plain),
        (80, {**TERMINAL, "NO_COLOR": "1"}, Plain),
        (80, {**TERMINAL, "CI": "true"}, Plain),
        (80, {"TERM": "dumb"}, Plain),
        (80, {}, Plain),
    ],
)
def test_it_is_live_only_where_somebody_looks(width: int | None, environ: dict[str, str], kind: type) -> None:
    assert type(progress.choose(Written(), width, environ)) is kind


def test_plain_is_a_line_a_check() -> None:
    written = Written()
    plain = Plain(written)
    plain.planned(PLAN)
    plain.running("env.launch", 1.0)
    plain.turn()
    plain.ended(passed("env.launch"))
    plain.close()
    assert written.text == "PASS  env.launch             1.0 s  all is well\n"


def test_a_quiet_screen_shows_only_what_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    written = Written()
    quiet = progress.choose(written, 80, TERMINAL, Detail.QUIET)
    quiet.running("env.launch", 1.0)
    now[0] = 150.0
    quiet.turn()
    quiet.ended(passed("env.launch"))
    assert written.text == ""
    quiet.ended(made.result(made.finding("warn"), check="comm.init"))
    assert written.text.startswith("WARN  comm.init")


def test_a_log_hears_every_15_s_that_a_check_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    written = Written()
    plain = Plain(written)
    plain.running("comm.all_reduce", 8.0)
    for now[0] in (114.0, 115.0, 129.0, 131.0):
        plain.turn()
    plain.ended(passed("comm.all_reduce"))
    now[0] = 200.0
    plain.turn()
    assert [line.split()[:3] for line in written.text.splitlines()] == [
        ["RUN", "comm.all_reduce", "15.0"], ["RUN", "comm.all_reduce", "31.0"], ["PASS", "comm.all_reduce", "1.0"]
    ]  # fmt: skip
    assert "is still running, expected about 8 s" in written.text


def test_each_family_has_its_own_lines_in_the_order_of_the_plan() -> None:
    drawn, _ = live()
    drawn.planned(["env.launch", "comm.init", "env.variables"])
    drawn.ended(passed("comm.init"))
    drawn.ended(passed("env.launch"))
    assert [line.split()[1] for line in drawn.lines()] == ["env.launch", "comm.init"]
    assert drawn.lines()[1].endswith("all is well"), "a single check does not fold"


def test_it_starts_no_thread_and_leaves_stdout_alone() -> None:
    """A fork would not take a thread along, and a child would write through our screen."""
    before = sys.stdout, sys.stderr, threading.active_count()
    drawn, _ = live()
    drawn.planned(PLAN)
    drawn.running("env.launch", 9.0)
    assert (sys.stdout, sys.stderr, threading.active_count()) == before
    drawn.close()


@pytest.mark.parametrize(
    ("line", "styled"),
    [
        ("FAIL  node-1", "\x1b[1;37;41mFAIL\x1b[0m  node-1\n"),
        ("ERROR node-1", "\x1b[1;37;41mERROR\x1b[0m node-1\n"),
        ("WARN  node-1", "\x1b[1;30;43mWARN\x1b[0m  node-1\n"),
        ("PASS  env", "\x1b[1;32mPASS\x1b[0m  env\n"),
        ("verdict: PASS (12 s)", "verdict: \x1b[1;32mPASS\x1b[0m (12 s)\n"),
        ("      fix: FAIL it", "      \x1b[1mfix:\x1b[0m FAIL it\n"),
    ],
)
def test_labels_carry_their_own_background(line: str, styled: str) -> None:
    """And nothing else is coloured: numbers, paths and words stay readable on a dark and on a light terminal."""
    written = Written()
    Live(written, 80, color_system="standard").say([line])
    assert written.text == styled


def test_a_line_longer_than_the_terminal_is_not_broken_by_us() -> None:
    drawn, written = live(40)
    drawn.say(["report: /" + "long/" * 20])
    assert written.text == "report: /" + "long/" * 20 + "\n"


def test_plain_wraps_at_the_terminals_width_or_at_a_fixed_one() -> None:
    assert [Plain(Written(), width).width for width in (60, 300, None)] == [60, progress.WIDEST, 100]
