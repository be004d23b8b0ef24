from types import SimpleNamespace
from typing import Any, cast

import pytest

from preflight.engine.heartbeat import Heartbeats, Silence


def test_a_rank_whose_beat_stands_still_falls_silent() -> None:
    silence = Silence()
    for second in range(5):
        silent_s = silence.update({1: "beat 7"}, float(second))
    assert silent_s == {1: 4.0}


def test_a_rank_that_beats_is_never_silent() -> None:
    silence = Silence()
    for second in range(5):
        silent_s = silence.update({1: f"beat {second}", 2: "beat 7"}, float(second))
    assert silent_s == {1: 0.0, 2: 4.0}


def test_one_beat_ends_a_silence() -> None:
    silence = Silence()
    for second, beat in enumerate("aaaab"):
        silent_s = silence.update({1: beat}, float(second))
    assert silent_s == {1: 0.0}
    assert silence.update({1: "b"}, 5.0) == {1: 1.0}


def test_a_rank_that_never_beat_falls_silent_too() -> None:
    silence = Silence()
    for second in range(4):
        silent_s = silence.update({1: None}, float(second))
    assert silent_s == {1: 3.0}


def test_time_in_which_the_store_stood_still_does_not_count() -> None:
    silence = Silence()
    silence.update({1: "a", 2: "a"}, 0.0)
    assert silence.update({1: "a", 2: "a"}, 60.0) == {1: 2.0, 2: 2.0}


def test_time_in_which_nobody_listened_does_not_count() -> None:
    silence = Silence()
    silence.update({1: "a"}, 0.0)
    silence.update({1: "a"}, 1.5)
    silence.pause()
    assert silence.update({1: "a"}, 3.0) == {1: 1.5}
    assert silence.update({1: "a"}, 4.0) == {1: 2.5}


def test_a_rank_that_is_listened_to_later_starts_from_nothing() -> None:
    silence = Silence()
    silence.update({1: "a"}, 0.0)
    assert silence.update({1: "a", 2: "a"}, 1.0) == {1: 1.0, 2: 0.0}


def test_many_ranks_are_listened_to_in_parts() -> None:
    silence = Silence()
    for second in range(30):
        silence.update({1: "a"}, float(second))
        silence.update({600: "a"}, second + 0.01)
    assert silence.of(1) == pytest.approx(29.0) and silence.of(600) == pytest.approx(29.0)


def test_in_a_large_world_beats_are_seldom_and_silence_counts_all_the_same() -> None:
    silence = Silence(8192)
    for look in range(5):
        silence.update({1: "a"}, look * 4.1)
    assert silence.of(1) == pytest.approx(16.4)


def test_a_rank_that_was_told_to_end_by_the_same_signal_is_no_reason_for_it() -> None:
    """Ctrl-C reaches all: who hears of it first is not to blame. One that died is, and so is what it dragged along."""
    heartbeats = Heartbeats(cast(Any, None), cast(Any, SimpleNamespace(world_size=5, run_id="run")))
    heartbeats.lose({1, 4}, "was sent SIGINT")
    heartbeats.lose({2}, "was sent SIGTERM")
    heartbeats.lose({3}, "its supervisor (process 7) has died")
    heartbeats.dragged_along.add(4)
    assert heartbeats.lost_otherwise("was sent SIGINT") == {2, 3, 4}
