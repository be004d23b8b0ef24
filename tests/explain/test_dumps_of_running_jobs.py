"""Flight-recorder dumps that show no hang."""

from tests.explain.made_dumps import FIRST, IN_IT, Told, call, dump


def test_dumps_of_a_job_that_runs_say_nothing(told: Told) -> None:
    """They are not taken at the same moment: one rank always seems to be behind."""
    assert told(dict.fromkeys(range(4), dump(FIRST, call(2)))) == []
    late = dump(FIRST)
    assert told({0: IN_IT, 1: late, 2: IN_IT, 3: IN_IT}, after_s=0.5) == []
    assert told(dict.fromkeys(range(4), IN_IT), after_s=0.5) == []


def test_a_call_that_ran_into_its_time_out_is_retired_and_not_over(told: Told) -> None:
    ended = dump(FIRST, call(2, over=False, retired=True, state="started"))
    assert [candidate.slug for candidate in told({0: ended, 1: dump(FIRST), 2: ended, 3: ended})] == [
        "slow_rank_timeout"
    ]


def test_on_gloo_it_is_over_when_it_is_retired(told: Told) -> None:
    gloo = [call(n, profiling_name="gloo:all_reduce", over=False, retired=True) for n in (1, 2)]
    made = {**dump(*gloo), "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
    assert told(dict.fromkeys(range(4), made)) == []
    made["entries"][1]["retired"] = False
    (candidate,) = told(dict.fromkeys(range(4), made))
    assert (candidate.slug, candidate.code) == ("explain.in_step", "explain.in_step")


def test_before_torch_2_5_numbers_that_sends_have_shifted_are_not_compared(told: Told) -> None:
    batch = call(2, "send 0->1", is_p2p=True)
    shifted = dump(FIRST, batch, call(3, "barrier"), call(4, over=False))
    plain = dump(FIRST, call(2, "barrier"), call(3, over=False))
    (candidate,) = told({0: shifted, 1: shifted, 2: plain, 3: plain})
    assert (candidate.slug, candidate.code, candidate.where) == ("explain.in_step", "explain.in_step", {})
    assert candidate.message == (
        "ranks wait long, and the dumps do not show for which rank: ranks 0-1 all_reduce of 8 float32 #4, "
        "ranks 2-3 all_reduce of 8 float32 #3"
    )
    assert told({0: shifted, 1: shifted, 2: plain, 3: plain}, after_s=0.5) == []
