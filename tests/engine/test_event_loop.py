"""How often a supervisor looks at the store."""

import pytest

from preflight.engine.event_loop import Pace


def looks_within(pace: Pace, clock: list[float], seconds: float) -> int:
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
    pace = Pace(2)
    assert looks_within(pace, clock, 0.1) >= 15
    looks_within(pace, clock, 4.9)
    assert looks_within(pace, clock, 5.0) <= 5 / 0.25 + 1


def test_news_bring_the_pace_back(clock: list[float]) -> None:
    pace = Pace(2)
    looks_within(pace, clock, 10.0)
    pace.restart()
    assert looks_within(pace, clock, 0.1) >= 15


def test_a_large_world_looks_less_often(clock: list[float]) -> None:
    assert looks_within(Pace(8192), clock, 5.0) <= 7
