import time
from dataclasses import replace
from typing import Any

import pytest

from preflight.check import Scope
from preflight.core import rank_ranges
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.hangs import blame, desync
from tests import made

JOB = made.job(2, 2, 2)
Calls = list[tuple[Any, ...]]


def group(ranks: str, calls: Calls, *, world: bool = True, entered: int | None = None) -> dict[str, Any]:
    """`calls`: (number, operation, elements, over: True, or False where it is stuck, or None for neither)."""
    listed = [
        {"seq": seq, "operation": operation, "sizes": [[size]] if size else [], "elements": size,
         "dtype": "float32" if size else "", "over": over is True, "stuck": over is False}
        for seq, operation, size, over in calls
    ]  # fmt: skip
    last = entered if entered is not None else (calls[-1][0] if calls else 0)
    return {"ranks": ranks, "world": world, "entered": last, "lately": bool(calls), "sending": False, "calls": listed}


def hung(*groups: dict[str, Any], **more: Any) -> Outcome:
    return replace(Outcome("timed_out", 4.0, state="S", recorded=list(groups)), **more)


def done(*groups: dict[str, Any]) -> Outcome:
    return Outcome("measured", 1.0, recorded=list(groups))


FIRST = (1, "all_reduce", 4, True)
WAITS = (2, "all_reduce", 8, False)
LEFT = (2, "all_reduce", 8, True)


def world(*calls: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    return group("0-3", [FIRST, *calls], **more)


IN_IT = hung(world(WAITS))


def found(outcomes: dict[int, Outcome], job: Job = JOB) -> list[dict[str, Any]]:
    listed = blame.findings("plugin.made", Scope.WORLD, outcomes, job)
    made.made_report(made.result(*listed, outcomes=outcomes), on=job)
    return [finding.to_json() for finding in listed]


def told(outcomes: dict[int, Outcome]) -> list[tuple[str, Any, str, str]]:
    return [
        (f["severity"] + " " + f["code"].rpartition(".")[2], f["where"].get("rank"), f["noticed_by"], f["message"])
        for f in found(outcomes)
    ]


ODD = "fail desync"
THEIRS = "while ranks 0,2-3 waited inside all_reduce of 8 float32 #2"


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (hung(world((2, "broadcast", 8, False))), f"was inside broadcast of 8 float32 #2 {THEIRS}"),
        (hung(world((2, "all_reduce", 16, False))), f"was inside all_reduce of 16 float32 #2 {THEIRS}"),
        (hung(world((2, "barrier", 0, True), (3, "all_reduce", 8, False))), f"called barrier #2 {THEIRS}"),
        (done(world((2, "broadcast", 8, True))), f"called broadcast of 8 float32 #2 {THEIRS}"),
        (done(world()), "left measure() without entering all_reduce of 8 float32 #2, inside which ranks 0,2-3 waited"),
    ],
    ids=["operation", "size", "went on", "done", "never came"],
)
def test_the_few_that_did_another_thing_are_named(odd: Outcome, says: str) -> None:
    noticed = "0,2-3"
    assert told({0: IN_IT, 1: odd, 2: IN_IT, 3: IN_IT}) == [(ODD, 1, noticed, says)]


def test_whoever_is_named_the_loud_ones_are_not() -> None:
    loud = Outcome("raised", 1.0, reason="RuntimeError: Connection closed by peer", in_collective=True,
                   recorded=[world(WAITS)])  # fmt: skip
    odd = hung(world((2, "all_reduce", 16, False)))
    ((code, rank, noticed, _),) = told({0: loud, 1: odd, 2: loud, 3: IN_IT})
    assert (code, rank, noticed) == (ODD, 1, "0,2-3")


def test_a_rank_that_hangs_elsewhere_is_named_with_what_it_never_entered() -> None:
    ((code, rank, noticed, message),) = told({0: IN_IT, 1: hung(world()), 2: IN_IT, 3: IN_IT})
    assert (code, rank, noticed) == ("fail timed_out", 1, "0,2-3")
    assert message.endswith("; it never entered all_reduce of 8 float32 #2, in which ranks 0,2-3 waited")


def test_a_rank_still_inside_what_the_others_have_left_is_named_as_stuck() -> None:
    ahead = hung(world(LEFT, (3, "broadcast", 4, False)))
    ((code, rank, _, message),) = told({0: ahead, 1: IN_IT, 2: ahead, 3: ahead})
    assert (code, rank) == ("fail timed_out", 1)
    assert message.startswith("was still inside all_reduce of 8 float32 #2, and not inside broadcast of 4 float32 #3")


def test_one_collective_more_than_all_that_are_done_is_one_too_many() -> None:
    more = hung(world(LEFT, (3, "all_reduce", 8, False)))
    sound = done(world(LEFT))
    says = "waited alone inside all_reduce of 8 float32 #3: ranks 0,2-3 left measure() without it"
    assert told({0: sound, 1: more, 2: sound, 3: sound}) == [(ODD, 1, "", says)]


# gloo ends the process to which too much comes

ENDED = Outcome("crashed", 1.0, reason="ended by SIGABRT", signal="SIGABRT",
                log_tail=f"[enforce fail at pair.cc:456] {desync.GLOOS_ABORT}. 12 vs 8.")  # fmt: skip


def test_the_one_that_gloo_ended_is_no_culprit_where_another_called_more() -> None:
    more = hung(world((2, "all_reduce", 16, False)))
    ((code, rank, noticed, _),) = told({0: ENDED, 1: more, 2: IN_IT, 3: IN_IT})
    assert (code, rank, noticed) == (ODD, 1, "0,2-3")
    wider = hung(world(WAITS))
    assert wider.recorded
    wider.recorded[0]["calls"][-1]["dtype"] = "float64"
    ((code, rank, noticed, message),) = told({0: ENDED, 1: wider, 2: IN_IT, 3: IN_IT})
    assert (code, rank, noticed) == (ODD, 1, "0,2-3")
    assert "all_reduce of 8 float64 #2 while ranks 0,2-3 waited inside all_reduce of 8 float32 #2" in message


def test_the_one_that_gloo_ended_is_the_culprit_where_all_others_agree() -> None:
    ((code, rank, noticed, message),) = told({0: IN_IT, 1: ENDED, 2: IN_IT, 3: IN_IT})
    assert (code, rank, noticed) == (ODD, 1, "0,2-3")
    assert message.startswith("was inside a different or a smaller collective than all_reduce #2 while ranks 0,2-3")


def test_another_sigabrt_outside_a_collective_is_a_crash() -> None:
    crash = Outcome("crashed", 1.0, reason="ended by SIGABRT", signal="SIGABRT", log_tail="free(): invalid pointer")
    ((code, rank, *_),) = told({0: IN_IT, 1: crash, 2: IN_IT, 3: IN_IT})
    assert (code, rank) == ("fail crashed", 1)


def test_nccls_watchdog_ends_the_victims() -> None:
    """Also in a check that marks no collective: what was recorded before tells that they waited."""
    ended = Outcome("crashed", 3.0, reason="ended by SIGABRT", signal="SIGABRT", recorded=[world(WAITS)])
    ((code, rank, noticed, _),) = told({0: ended, 1: done(world()), 2: ended, 3: ended})
    assert (code, rank, noticed) == (ODD, 1, "0,2-3")


# Nobody is named


@pytest.mark.parametrize(
    ("outcomes", "sides"),
    [
        ({0: hung(group("0-1", [WAITS])), 1: hung(group("0-1", [(2, "broadcast", 8, False)]))},
         "rank 0 inside all_reduce of 8 float32 #2, rank 1 inside broadcast of 8 float32 #2"),
        ({0: hung(group("0-1", [WAITS])), 1: done(group("0-1", [FIRST]))},
         "rank 0 inside all_reduce of 8 float32 #2, rank 1 left measure() before #2"),
        ({r: hung(world((2, operation, 8, False))) for r, operation in enumerate(("all_reduce", "reduce") * 2)},
         "ranks 0,2 inside all_reduce of 8 float32 #2, ranks 1,3 inside reduce of 8 float32 #2"),
        ({0: IN_IT, 1: hung(world((2, "broadcast", 8, False)))},
         "rank 0 inside all_reduce of 8 float32 #2, rank 1 inside broadcast of 8 float32 #2"),
    ],
    ids=["two ranks", "one of two is done", "two and two", "half of them unknown"],
)  # fmt: skip
def test_without_a_majority_both_sides_are_told(outcomes: dict[int, Outcome], sides: str) -> None:
    ((code, rank, noticed, message),) = told(outcomes)
    assert (code, rank) == (ODD, None)
    assert noticed == rank_ranges.to_text(rank for rank, outcome in outcomes.items() if not outcome.sound)
    assert message == (
        f"the ranks are out of step: {sides}; expected the same calls on all ranks; "
        "no majority shows which side is wrong"
    )


@pytest.mark.parametrize(
    "outcomes",
    [
        dict.fromkeys(range(4), IN_IT),
        # a broadcast's root leaves it first, and waits in the next one: the others are stuck, not astray
        {0: hung(world((2, "broadcast", 8, True), (3, "all_reduce", 8, False))),
         **dict.fromkeys((1, 2, 3), hung(world((2, "broadcast", 8, False))))},
        {**dict.fromkeys((0, 1), hung(world((2, "broadcast", 8, True), (3, "all_reduce", 8, False)))),
         **dict.fromkeys((2, 3), hung(world((2, "broadcast", 8, False))))},
        # on NCCL the hosts run ahead of what is stuck, one further than the other
        {r: hung(world(WAITS, *((n, "all_reduce", 8, False) for n in range(3, 5 + r)))) for r in range(4)},
        # the parts of an all-to-all, a gather and a scatter need not have one size
        {r: hung(world((2, "all_to_all", 4 + r, True), (3, "gather", r, True), (4, "all_reduce", 8, False)))
         for r in range(4)},
        # an older torch records nothing on gloo
        {r: hung(group("0-3", [], entered=2)) for r in range(4)},
    ],
    ids=["all in one", "a root ahead", "half ahead", "hosts ahead", "uneven", "no records"],
)  # fmt: skip
def test_who_does_the_same_as_the_others_has_not_parted(outcomes: dict[int, Outcome]) -> None:
    assert desync.find_desyncs(outcomes) == []
    ((_, rank, noticed, _), *more) = told(outcomes)
    if not more:
        assert (rank, noticed) == (None, "0-3")


def test_where_all_are_at_work_nobody_is_behind() -> None:
    """Of two ranks that go from one all-reduce to the next, one is always seen a moment earlier."""
    early, late = hung(world()), hung(world((2, "all_reduce", 8, None)))
    ((code, rank, noticed, message),) = told({0: late, 1: early, 2: late, 3: late})
    assert (code, rank, noticed) == ("fail timed_out", None, "")
    assert message == (
        "all 4 ranks were still at work after 4.0 s, expected measure() to end: they had entered 2 collectives, "
        "and none waited long for another"
    )
    heard = Outcome("raised", 4.0, in_collective=True, recorded=[world((2, "all_reduce", 8, None))])
    assert [rank for _, rank, *_ in told({0: late, 1: early, 2: heard})] == [None]
    sooner = hung(world(), seconds=2.0)
    assert all("still at work" not in message for *_, message in told({0: late, 1: sooner, 2: late, 3: late}))
    cut = {rank: hung(world(), cut_short=True) for rank in range(4)}
    assert [code for code, *_ in told(cut)] == ["error timed_out"]


@pytest.mark.parametrize("world_size", [1, 4])
def test_where_all_hang_outside_nobody_says_that_nothing_hangs(world_size: int) -> None:
    still = hung(
        {**world(), "lately": False}, stack='Thread 0x1 (most recent call first):\n  File "/a/nfs.py", line 3 in read\n'
    )
    listed = told(dict.fromkeys(range(world_size), still))
    assert [(code, rank) for code, rank, *_ in listed] == [("fail timed_out", rank) for rank in range(world_size)]
    assert {message.partition("; ")[0] for *_, message in listed} == {
        "measure() did not end within 4.0 s at nfs.py line 3 in read"
    }


def test_who_waits_for_one_other_rank_is_not_what_the_others_wait_for() -> None:
    """Rank 1 has left out a send to rank 0: of its receive a majority says nothing."""
    for alone in (hung({**world(), "sending": True}), hung({**world(), "sending": True}, kind="raised")):
        alone = replace(alone, in_collective=alone.kind == "raised")
        ((code, rank, noticed, message),) = told({0: alone, 1: IN_IT, 2: IN_IT, 3: IN_IT})
        assert (code, rank, noticed) == (ODD, None, "0-3")
        assert "ranks 1-3 inside all_reduce of 8 float32 #2, rank 0 inside a send or a receive instead" in message
    ((code, rank, _, message),) = told({0: alone, 1: alone})
    assert rank is None and "inside a send or a receive" in message


@pytest.mark.parametrize("many", [True, False], ids=["groups", "sizes"])
def test_what_is_told_does_not_grow_with_the_world(many: bool) -> None:
    def of(rank: int) -> dict[str, Any]:
        if not many:
            return group("0-1023", [(1, "all_reduce", 4 + rank, False)])
        return group(rank_ranges.to_text((rank, rank ^ 1)), [(1, "all_reduce", 4, False)], world=False)

    listed = blame.findings("plugin.made", Scope.WORLD, {rank: hung(of(rank)) for rank in range(1024)}, JOB)
    assert len(listed) == 1 and len(listed[0].message) < 500, listed[0].message
    assert f"{1016 if many else 1020:,} ranks elsewhere" in listed[0].message


def test_a_rank_that_is_ahead_of_ranks_that_hang_is_not_blamed() -> None:
    """They may be late for what it rightly waits in."""
    ahead = hung(world(LEFT, (3, "all_reduce", 8, False)))
    late = hung(world(LEFT))
    assert {rank for _, rank, *_ in told({0: late, 1: ahead, 2: late, 3: late})} == {0, 2, 3}


def test_who_waits_in_another_group_is_not_what_the_world_waits_for() -> None:
    """Ranks 2 and 3 reduce together; rank 3 never comes, since it is in the world's collective; so 2 cannot come."""
    pair = (1, "all_gather", 4, False)
    outcomes = {
        0: IN_IT,
        1: IN_IT,
        2: hung(world(), group("2-3", [pair], world=False)),
        3: hung(world(WAITS), group("2-3", [], world=False)),
    }
    ((code, rank, noticed, message),) = told(outcomes)
    assert (code, rank, noticed) == (ODD, None, "0-3")
    assert "rank 2 inside all_gather of 4 float32 #1 of the group of ranks 2-3 instead" in message


def test_a_pair_that_all_others_wait_for_is_told_as_a_pair() -> None:
    pair = group("2-3", [(1, "all_gather", 4, False)], world=False)
    held = hung(world(), pair)
    ((code, rank, noticed, message),) = told({0: IN_IT, 1: IN_IT, 4: IN_IT, 2: held, 3: held})
    assert (code, rank, noticed) == ("fail timed_out", None, "0-4")
    assert message == (
        "ranks 2-3 did not leave all_gather of 4 float32 #1 of the group of ranks 2-3, and ranks 0-1,4 waited inside "
        "all_reduce of 8 float32 #2; expected all to leave it"
    )


def test_of_several_that_are_stuck_where_the_others_have_left_none_is_blamed() -> None:
    """As of an all-to-all over a network in which two of five do not reach each other."""
    stuck = hung(group("0-4", [(2, "all_to_all", 8, False)]))
    left = hung(group("0-4", [(2, "all_to_all", 8, True), (3, "barrier", 0, False)]))
    ((code, rank, noticed, message),) = told({0: left, 1: stuck, 2: stuck, 3: left, 4: left})
    assert (code, rank, noticed) == ("fail timed_out", None, "0-4")
    assert message == (
        "ranks 1-2 did not leave all_to_all of 8 float32 #2, and ranks 0,3-4 waited inside barrier #3; "
        "expected all to leave it"
    )


def test_in_a_part_of_the_world_its_own_majority_counts() -> None:
    part = "1-3"
    waits = hung(world(LEFT), group(part, [(1, "all_reduce", 4, False)], world=False))
    odd = hung(world(LEFT), group(part, [(1, "broadcast", 4, False)], world=False))
    ((code, rank, noticed, message),) = told({0: done(world(LEFT)), 1: waits, 2: odd, 3: waits})
    assert (code, rank, noticed) == (ODD, 2, "1,3")
    assert "broadcast of 4 float32 #1 of the group of ranks 1-3" in message


def test_of_two_groups_with_no_rank_in_common_each_has_its_own_culprit() -> None:
    """Ranks 1 and 4 broadcast; a group across both tells nothing more."""
    parts = {rank: "0-2" if rank < 3 else "3-5" for rank in range(6)}
    made_calls = {rank: "broadcast" if rank in (1, 4) else "all_reduce" for rank in range(6)}
    outcomes = {r: hung(group(parts[r], [(1, made_calls[r], 4, False)], world=False)) for r in range(6)}
    assert [(code, rank, noticed) for code, rank, noticed, _ in told(outcomes)] == [
        (ODD, 1, "0,2-3,5"), (ODD, 4, "0,2-3,5"),
    ]  # fmt: skip
    for rank, operation in {1: "all_gather", 2: "all_gather", 3: "barrier"}.items():
        across = group("1-3", [(1, operation, 4, False)], world=False)
        outcomes[rank] = hung(*(outcomes[rank].recorded or ()), across)
    assert {rank for _, rank, *_ in told(outcomes)} == {1, 4}


def test_an_older_record_that_has_gone_says_nothing() -> None:
    """Only the last calls are kept: what fell out is no omission."""
    short = hung(group("0-3", [(9, "all_reduce", 8, False)]))
    long = hung(group("0-3", [(n, "all_reduce", 8, n < 9) for n in range(1, 10)]))
    assert desync.find_desyncs({0: short, 1: long, 2: long, 3: long}) == []
    early = hung(group("0-3", [(n, "all_reduce", 8, n < 5) for n in range(1, 10)]))
    assert desync.find_desyncs({0: short, 1: early, 2: early, 3: early}) == []


def test_ranks_that_failed_have_not_left_one_alone() -> None:
    failed = Outcome("raised", 3.0, in_collective=True, recorded=[world(LEFT)])
    alone = hung(world(LEFT, (3, "all_reduce", 8, False)))
    (parted,) = desync.find_desyncs({0: done(world(LEFT)), 1: alone, 2: failed, 3: failed})
    assert not parted.odd


def test_a_call_that_has_just_begun_is_waited_for_by_nobody() -> None:
    just = hung(world((2, "all_reduce", 8, None)))
    assert desync.find_desyncs({0: just, 1: hung(world()), 2: just, 3: just}) == []


def test_a_thousand_ranks_are_compared_in_no_time() -> None:
    pairs = {rank: rank ^ 1 for rank in range(1024)}
    calls = [(number, "all_reduce", 8, True) for number in range(1, 16)]

    def of(rank: int, last: tuple[Any, ...]) -> Outcome:
        pair = rank_ranges.to_text((rank, pairs[rank]))
        return hung(group("0-1023", [*calls, last]), group(pair, calls, world=False))

    outcomes = {rank: of(rank, (16, "all_reduce", 8, False)) for rank in range(1024)}
    outcomes[700] = of(700, (16, "broadcast", 8, False))
    start = time.process_time()
    assert [parted.odd for parted in desync.find_desyncs(outcomes)] == [{700}]
    assert time.process_time() - start < 1.0


def test_the_log_lists_the_last_collectives() -> None:
    listed = desync.lines([world(WAITS), group("2-3", [(1, "barrier", 0, True)], world=False)])
    assert list(listed) == [
        "Collectives of the group of all ranks: 2 entered",
        "  #1 all_reduce of 4 float32",
        "  #2 all_reduce of 8 float32: not over",
        "Collectives of the group of ranks 2-3: 1 entered",
        "  #1 barrier",
    ]


@pytest.mark.parametrize(
    "operation",
    ["all_reduce", "ALLREDUCE", "_all_gather_base", "_ALLGATHER_BASE", "reduce_scatter_tensor_coalesced",
     "REDUCE_SCATTER_COALESCED", "all_gather_into_tensor_coalesced", "BROADCAST"],
)  # fmt: skip
def test_an_operation_with_one_size_is_known_in_both_spellings(operation: str) -> None:
    """The flight recorder's, and the watchdog's."""
    assert desync.has_same_size(operation)


@pytest.mark.parametrize("operation", ["all_to_all", "ALLTOALL_BASE", "gather", "SCATTER", "COALESCED", ""])
def test_the_sizes_of_other_operations_may_differ(operation: str) -> None:
    assert not desync.has_same_size(operation)
