"""Flight-recorder dumps of a hang: which ranks are out of step, and which are waited for."""

from typing import Any

import pytest

from tests.explain.made_dumps import FIRST, IN_IT, NOW_S, Entry, Told, call, dump, of


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (call(2, "broadcast", over=False, line=71), "was inside broadcast of 8 float32 #2"),
        (call(2, size=16, over=False, line=71), "was inside all_reduce of 16 float32 #2"),
        (call(2, input_dtypes=["BFloat16"], over=False, line=71), "was inside all_reduce of 8 bfloat16 #2"),
    ],
    ids=["operation", "size", "type"],
)
def test_a_rank_that_calls_another_thing_is_named_with_its_line(told: Told, odd: Entry, says: str) -> None:
    (candidate,) = told({0: IN_IT, 1: IN_IT, 2: IN_IT, 3: dump(FIRST, odd)})
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "collective_mismatch", {"rank": 3, "file": "/job/train.py", "line": 71}, (0, 1, 2),
    )  # fmt: skip
    assert candidate.message == (
        f"rank 3 {says} while ranks 0-2 waited inside all_reduce of 8 float32 #2; rank 3 at train.py:71, "
        "ranks 0-2 at train.py:40"
    )
    assert candidate.weight >= 80 and candidate.quotes[0][0].endswith("rank_3")


def test_a_rank_that_never_came_is_late_stuck_or_gone(told: Told) -> None:
    (candidate,) = told({0: IN_IT, 1: dump(FIRST), 2: IN_IT, 3: IN_IT})
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "slow_rank_timeout",
        {"rank": 1},
        (0, 2, 3),
    )
    assert candidate.message == (
        "rank 1 never entered all_reduce of 8 float32 #2, inside which ranks 0,2-3 waited; rank 1 last in all_reduce "
        "of 4 float32 #1 at train.py:40, ranks 0,2-3 at train.py:40: rank 1 is late, stuck or gone (the others' "
        "timeout is 600 s)"
    )


def test_a_rank_that_has_recorded_nothing_at_all_never_came(told: Told) -> None:
    waits = dump(call(1, over=False))
    (candidate,) = told({0: waits, 1: {"version": "2.10", "pg_config": {}}, 2: waits, 3: waits})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": 1})
    old = dump(*(call(number) for number in range(3000, 3003)))
    for entry in old["entries"]:
        entry |= {"process_group": ("7", "x"), "record_id": 5000}  # its ring is full of another group's
    assert [candidate.where for candidate in told({0: waits, 1: old, 2: waits, 3: waits})] == [{}]


def test_a_rank_still_inside_what_the_others_have_left_is_stuck(told: Told) -> None:
    ahead = dump(FIRST, call(2), call(3, "barrier", over=False))
    (candidate,) = told({0: ahead, 1: IN_IT, 2: ahead, 3: ahead})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": 1})
    assert candidate.message.startswith("rank 1 was still inside all_reduce of 8 float32 #2, and not inside barrier")


EXPERTS = {"1": [0, 1, 2, 3], "2": [0, 1], "3": [2, 3]}
"""Of a mixture of experts: a group over all, and two of pairs."""


def of_experts(rank: int, stuck: int | None, *, upto: int = 3) -> dict[str, Any]:
    """Calls of both groups by turns. A GPU that is `stuck` has them all queued; the others wait in the last ones."""
    pair = ("2", "0-1") if rank < 2 else ("3", "2-3")
    entries = []
    for number in range(1, upto + (rank != stuck)):
        over = rank != stuck and number < upto
        entries.append(of("1", "0-3", call(2 * number, "all_to_all", over=over, collective_seq_id=number)))
        entries.append(of(*pair, call(2 * number + 1, "_all_gather_base", over=over, collective_seq_id=number)))
    mine = {name: ranks for name, ranks in EXPERTS.items() if rank in ranks}
    return dump(*entries, groups=mine)


@pytest.mark.parametrize("stuck", [0, 2, 3])
def test_what_a_gpu_that_hangs_has_queued_in_other_groups_is_no_wait(told: Told, stuck: int) -> None:
    (candidate,) = told({rank: of_experts(rank, stuck) for rank in range(4)})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": stuck})
    assert (
        f"rank {stuck} was still inside all_to_all" in candidate.message and "look at that rank's GPU" in candidate.fix
    )
    assert stuck not in candidate.ranks


def test_a_rank_that_waits_first_in_another_group_is_not_to_blame(told: Told) -> None:
    """Rank 2 waits for rank 3 in their pair, and has queued the call in which all others wait behind it."""
    by_rank = {rank: of_experts(rank, None) for rank in range(4)}
    pair = of("3", "2-3", call(1, "_all_gather_base", over=False, collective_seq_id=1))
    behind = [of("1", "0-3", call(number, "all_to_all", over=False, collective_seq_id=number)) for number in (2, 3)]
    groups = {name: ranks for name, ranks in EXPERTS.items() if 2 in ranks}
    first = of("1", "0-3", call(1, "all_to_all", collective_seq_id=1))
    by_rank[2] = dump({**first, "time_created_ns": 1}, pair, *behind[:1], groups=groups)
    found = told(by_rank)
    assert all(candidate.where != {"rank": 2} or candidate.weight < 70 for candidate in found)


def test_a_rank_without_a_dump_is_the_one_that_the_others_wait_for(told: Told) -> None:
    waits = dump(FIRST, call(2, over=False), world=8)
    (candidate,) = told({rank: waits for rank in range(8) if rank != 5})
    assert (candidate.slug, candidate.where, candidate.weight) == ("remote_peer_failure", {"rank": 5}, 50)
    assert candidate.message == (
        "rank 5 of 8 left no dump here, and ranks 0-4,6-7 wait inside all_reduce of 8 float32 #2 at train.py:40: "
        "rank 5 ended, or hung before a dump was written"
    )
    (half,) = told(dict.fromkeys(range(4), waits))
    assert half.weight < 50 and half.where == {} and "ended, or their dumps may be on" in half.message


def test_of_half_the_ranks_the_one_that_did_not_come_is_named_all_the_same(told: Told) -> None:
    waits = dump(FIRST, call(2, over=False), world=8)
    (candidate,) = told({0: waits, 1: dump(FIRST, world=8), 2: waits, 3: waits})
    assert (candidate.slug, candidate.where) == ("slow_rank_timeout", {"rank": 1})


def test_where_all_wait_in_one_collective_no_rank_is_named(told: Told) -> None:
    (first,) = told(dict.fromkeys(range(4), IN_IT))
    assert (first.slug, first.where) == ("p2p_acs_iommu", {})
    assert first.message.startswith("all 4 ranks wait inside all_reduce of 8 float32 #2, in step, and none has left it")
    (later,) = told(dict.fromkeys(range(4), dump(FIRST, call(2), call(3, over=False))))
    assert (later.slug, later.code, later.where) == ("explain.in_step", "explain.in_step", {})
    assert max(first.weight, later.weight) < 50 and later.fix


def test_in_a_broadcast_the_roots_may_differ(told: Told) -> None:
    """torch records none: each rank waits for another's tensor."""
    for operation, asks in (("broadcast", True), ("reduce", True), ("all_reduce", False), ("reduce_scatter", False)):
        (candidate,) = told(dict.fromkeys(range(4), dump(FIRST, call(2), call(3), call(4, operation, over=False))))
        assert candidate.code == "explain.in_step" and ("same src or dst" in candidate.fix) == asks


def test_a_gpu_that_has_not_begun_what_the_others_wait_in_is_named(told: Told) -> None:
    timed = {**call(2), "time_discovered_started_ns": int(NOW_S * 1e9)}
    begun = dump(timed, call(3, over=False, state="started"))
    (candidate,) = told({0: begun, 1: begun, 2: begun, 3: dump(timed, call(3, over=False))})
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == (
        "slow_rank_timeout",
        {"rank": 3},
        (0, 1, 2),
    )
    assert "all_reduce of 8 float32 #3 has not begun on the GPU of rank 3" in candidate.message
    half = {0: begun, 1: begun, **dict.fromkeys((2, 3), dump(timed, call(3, over=False)))}
    assert [(item.where, "has not begun" in item.message) for item in told(half)] == [({}, False)]
    untimed = dump(call(2), call(3, over=False, state="started"))
    assert [
        item.where for item in told({0: untimed, 1: untimed, 2: untimed, 3: dump(call(2), call(3, over=False))})
    ] == [{}]


def test_of_two_ranks_the_one_that_did_not_come_is_named_with_less_certainty(told: Told) -> None:
    waits, absent = dump(FIRST, call(2, over=False), world=2), dump(FIRST, world=2)
    (candidate,) = told({0: waits, 1: absent})
    assert (candidate.slug, candidate.where, candidate.weight) == ("slow_rank_timeout", {"rank": 1}, 55)


def test_one_rank_alone_in_a_collective_has_called_one_too_many(told: Told) -> None:
    (candidate,) = told({0: IN_IT, 1: dump(FIRST), 2: dump(FIRST), 3: dump(FIRST)})
    assert (candidate.slug, candidate.where) == ("collective_mismatch", {"rank": 0})
    assert candidate.message.startswith("rank 0 alone entered all_reduce of 8 float32 #2, which ranks 1-3 never did")


def test_without_a_majority_both_sides_are_told(told: Told) -> None:
    other = dump(FIRST, call(2, "reduce", over=False))
    (candidate,) = told({0: IN_IT, 1: other, 2: IN_IT, 3: other})
    assert (candidate.slug, candidate.where) == ("collective_mismatch", {})
    assert "ranks 0,2 inside all_reduce of 8 float32 #2, ranks 1,3 inside reduce of 8 float32 #2" in candidate.message


def test_ranks_that_call_two_groups_in_another_order_wait_for_each_other(told: Told) -> None:
    """Rank 3 is in the group of all data-parallel ranks (which are all, too), the others are in the world."""
    groups = {"5": [0, 1, 2, 3]}
    odd = dump(FIRST, of("5", "0-3", call(1, over=False)), groups=groups)
    world = dump(FIRST, call(2, over=False), groups=groups)
    (candidate,) = told({0: world, 1: world, 2: world, 3: odd})
    assert (candidate.slug, candidate.weight) == ("collective_mismatch", 70)
    assert "rank 3 inside all_reduce of 8 float32 #1 of the group of ranks 0-3 instead" in candidate.message


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (5, "ranks 2-3 did not leave all_reduce of 8 float32 #1 of the group of ranks 2-3, and ranks 0-1,4 waited "
         "inside all_reduce of 8 float32 #2; expected all to leave it; the ranks are not at fault"),
        (4, "the ranks are out of step: ranks 0-1 inside all_reduce of 8 float32 #2, ranks 2-3 inside "
         "all_reduce of 8 float32 #1 of the group of ranks 2-3 instead; ranks 2-3 last in all_reduce of 4 float32 "
         "#1 at train.py:40, ranks 0-1 at train.py:40; expected them to leave it; the ranks are not at fault"),
    ],
)  # fmt: skip
def test_a_pair_that_all_others_wait_for_hangs_below(told: Told, world: int, says: str) -> None:
    waits = dump(FIRST, call(2, over=False), world=world)
    pair = dump(FIRST, of("5", "2-3", call(1, over=False)), groups={"5": [2, 3]}, world=world)
    (candidate,) = told({rank: pair if rank in (2, 3) else waits for rank in range(world)})
    assert (candidate.slug, candidate.code, candidate.where, candidate.message) == (
        "explain.in_step",
        "explain.in_step",
        {},
        says,
    )


def test_who_waits_for_a_rank_without_a_dump_in_another_group_is_not_to_blame(told: Told) -> None:
    groups = {"5": [4, 5]}
    world = dump(FIRST, call(2, over=False), world=8)
    held = dump(FIRST, of("5", "4-5", call(1, over=False)), world=8, groups=groups)
    (candidate,) = told({**dict.fromkeys((0, 1, 2, 3, 6, 7), world), 4: held})
    assert (candidate.slug, candidate.where) == ("remote_peer_failure", {"rank": 5})


def send(number: int, words: str, over: bool = False) -> Entry:
    return call(1, words, over=over, is_p2p=True, p2p_seq_id=number)


def test_a_receive_without_its_send_names_the_end_of_the_chain(told: Told) -> None:
    made = {0: dump(FIRST, send(1, "recv 0<-1")), 1: dump(FIRST, send(1, "recv 1<-2")), 2: dump(FIRST), 3: dump(FIRST)}
    (candidate,) = told(made)
    assert (candidate.slug, candidate.where, tuple(sorted(candidate.ranks))) == ("slow_rank_timeout", {"rank": 2}, (1,))
    assert candidate.message == (
        "rank 1 waits in a receive from rank 2 at train.py:40, expected rank 2 to be in its send, but it is not"
    )
    both = {**made, 1: dump(FIRST, send(1, "send 1->0"))}
    assert [(candidate.slug, candidate.where) for candidate in told(both)] == [("explain.in_step", {})]
    batch = dump(FIRST, send(1, "send 0->1"), send(1, "coalesced", over=True))
    assert told({**made, 0: batch, 1: dump(FIRST)}) == []
