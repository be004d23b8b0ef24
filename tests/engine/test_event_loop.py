"""How often a supervisor looks at the store, and how long it waits for what it has asked a child."""

import json
import subprocess
import sys

import pytest

from preflight.engine.event_loop import PollPace


def looks_within(pace: PollPace, clock: list[float], seconds: float) -> int:
    """How many looks fall due in so many seconds of a clock that moves by milliseconds."""
    looks = 0
    for _ in range(int(seconds * 1000)):
        clock[0] += 0.001
        looks += pace.is_due()
    return looks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("preflight.engine.event_loop.time.monotonic", lambda: now[0])
    return now


def test_a_short_check_is_noticed_at_once_and_a_long_one_left_in_peace(clock: list[float]) -> None:
    pace = PollPace(2)
    assert looks_within(pace, clock, 0.1) >= 15
    looks_within(pace, clock, 4.9)
    assert looks_within(pace, clock, 5.0) <= 5 / 0.25 + 1


def test_news_bring_the_pace_back(clock: list[float]) -> None:
    pace = PollPace(2)
    looks_within(pace, clock, 10.0)
    pace.restart()
    assert looks_within(pace, clock, 0.1) >= 15


def test_a_large_world_looks_less_often(clock: list[float]) -> None:
    assert looks_within(PollPace(8192), clock, 5.0) <= 7


LATE = """
import json, sys, time
from preflight.core.answer import Returned
from preflight.engine.event_loop import LEAST_S, EventLoop

loop = EventLoop(0.01)
time.sleep(0.02)  # the run's deadline has passed
quick = loop.ask(lambda: {"judged": True}, 10.0)
start = time.monotonic()
slow = loop.ask(lambda: time.sleep(60.0) or {}, 10.0)
took = time.monotonic() - start
print(json.dumps([isinstance(quick, Returned) and quick.value, str(slow.kind), took >= LEAST_S, took]))
"""


@pytest.mark.process
def test_a_child_that_is_asked_after_the_runs_deadline_has_a_second() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True, timeout=60)
    answer, kind, has_waited, took = json.loads(done.stdout)
    assert (answer, kind, has_waited) == ({"judged": True}, "timed_out", True)
    assert took < 30.0


LOUD = """
from preflight.engine.event_loop import EventLoop
answer = EventLoop(60.0).ask(lambda: print("x" * 1_000_000) or {"judged": True}, 20.0)
print(answer)
"""


@pytest.mark.process
def test_a_child_that_prints_more_than_a_pipe_holds_is_not_taken_for_one_that_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", LOUD], capture_output=True, text=True, check=True, timeout=60)
    assert "'judged': True" in done.stdout, done.stdout
