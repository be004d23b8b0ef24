import pytest

from preflight.checks.comm.shared.sweep import SIZES
from preflight.checks.comm.shared.timing import LEAST_TIMED, TIMED, Pace, latencies

KIB, MIB = 1024, 1024**2
DEADLINE_S = 90.0


def sweep(
    seconds_of: dict[int, float] | None = None, latency_s: float = 0.0, rate: float = 1e9
) -> tuple[Pace, list[int]]:
    """(what was spent, sizes that were timed) on a network of this latency and bytes a second."""
    pace, timed = Pace(DEADLINE_S, owed=16 * MIB, beyond_s=1.0), []
    for size in SIZES:
        if pace.begins(size):
            _, repeats = pace.note(size, (seconds_of or {}).get(size, latency_s + size / rate))
            timed += [size] if repeats else []
    return pace, timed


def test_small_sizes_are_warmed_up_and_timed_as_nccl_tests_does() -> None:
    pace = Pace(DEADLINE_S, owed=MIB)
    for size in (KIB, 64 * KIB, MIB):
        assert pace.begins(size)
        assert pace.note(size, 0.001) == (4, TIMED)  # one has been done


def test_large_sizes_are_timed_at_least_three_times() -> None:
    pace = Pace(DEADLINE_S, owed=64 * MIB)
    assert pace.note(16 * MIB, 0.012) == (0, 8)
    assert pace.note(64 * MIB, 5.0) == (0, LEAST_TIMED)


def test_a_size_that_does_not_fit_is_not_timed_and_nothing_larger_is_begun() -> None:
    pace = Pace(DEADLINE_S, owed=64 * MIB)
    assert pace.note(KIB, 0.01)[1] == TIMED
    assert pace.note(64 * KIB, 8.0) == (0, 0)
    assert not pace.begins(MIB)


def test_a_network_of_1_gbit_has_time_for_all_that_is_owed() -> None:
    _, timed = sweep(latency_s=0.001, rate=60e6)
    assert max(timed) >= 16 * MIB


@pytest.mark.parametrize("latency_s", [0.0, 0.05, 0.3])
def test_latency_alone_does_not_stop_the_sweep(latency_s: float) -> None:
    """1 KiB takes as long as 64 KiB then."""
    _, timed = sweep(latency_s=latency_s, rate=1e9)
    assert timed[:3] == [KIB, 64 * KIB, MIB]


@pytest.mark.parametrize("rate", [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e11])
@pytest.mark.parametrize("latency_s", [1e-5, 0.01, 1.0])
def test_a_sweep_ends_within_the_checks_time_on_any_network(latency_s: float, rate: float) -> None:
    pace, _ = sweep(latency_s=latency_s, rate=rate)
    assert pace.spent_s <= DEADLINE_S * 0.8, pace


def test_what_is_beyond_what_is_owed_is_measured_only_where_it_takes_little() -> None:
    assert max(sweep(rate=1e9)[1]) == 64 * MIB  # 256 MiB would take a second and more
    assert max(sweep(rate=1e12)[1]) == SIZES[-1]


@pytest.mark.parametrize(
    ("seconds", "repeats"), [(1e-5, 500), (1e-4, 500), (0.0005, 100), (0.001, 100), (0.1, 90), (3.0, 3), (4.0, 0)]
)
def test_small_messages_are_timed_one_by_one_as_often_as_fits(seconds: float, repeats: int) -> None:
    assert latencies(seconds, DEADLINE_S) == repeats


def test_nothing_is_begun_when_most_of_the_time_is_spent() -> None:
    pace = Pace(DEADLINE_S, owed=16 * MIB)
    pace.note(KIB, 1.0)
    assert pace.begins(2 * KIB)
    pace.spent_s = 0.58 * DEADLINE_S
    assert not pace.begins(2 * KIB)


def test_sizes_that_took_equally_long_do_not_promise_that_all_will() -> None:
    pace = Pace(DEADLINE_S, owed=16 * MIB)
    pace.note(64 * KIB, 0.5)
    pace.note(MIB, 0.5)
    assert pace.expected(16 * MIB) > 1.0


def test_one_long_wait_on_a_busy_machine_does_not_end_the_sweep() -> None:
    pace = Pace(DEADLINE_S, owed=16 * MIB)
    pace.note(64 * KIB, 0.002)
    pace.note(MIB, 0.5)
    assert not pace.begins(16 * MIB)
    pace.surer(0.01)
    assert pace.begins(16 * MIB) and pace.spent_s < 3.0
    pace.surer(0.5)
    assert pace.begins(16 * MIB)
