"""Collectives that timed out: the rank that is missing, ranks out of step, and those that were merely slow."""

from pathlib import Path

import pytest

from preflight.explain.candidates import Candidate
from preflight.explain.command import explain_paths
from tests.made_failures import conclude, lines, timeout, traceback

COMPLETE = [f"[rank{rank}]: comm 0x1 rank {rank} nranks 4 - Init COMPLETE" for rank in range(4)]


def conclusion(found: list[Candidate]) -> tuple[str, str, object]:
    return found[0].slug, found[0].confidence, found[0].where.get("rank")


def test_the_rank_that_is_missing_from_the_list_is_named() -> None:
    found = conclude(lines([timeout(rank) for rank in range(8) if rank != 5]))
    assert conclusion(found) == ("slow_rank_timeout", "medium", 5)
    assert found[0].message == (
        "rank 5 did not enter ALLREDUCE #12 of 4,096 elements, in which ranks 0-4,6-7 waited until the timeout in "
        "force, 600 s: late, or gone"
    )
    assert found[0].ranks == {0, 1, 2, 3, 4, 6, 7} and len(found) == 1


def test_the_last_rank_is_missing_where_the_world_is_told() -> None:
    known = conclude(lines([COMPLETE[0], *(timeout(rank) for rank in range(3))]))
    unknown = conclude(lines([timeout(rank) for rank in range(3)]))
    assert conclusion(known) == ("slow_rank_timeout", "medium", 3)
    assert conclusion(unknown) == ("slow_rank_timeout", "low", None)
    assert unknown[0].message.endswith("the missing rank is not visible in this log")


def test_most_ranks_missing_accuses_none_of_them() -> None:
    found = conclude(lines(["[rank0]: comm 0x1 rank 0 nranks 64 - Init COMPLETE", timeout(0), timeout(1)]))
    assert conclusion(found) == ("slow_rank_timeout", "low", None)


def test_a_rank_whose_last_call_is_an_earlier_one_is_late() -> None:
    late = "[rank{0}]: Received a dump signal. Last enqueued NCCL work: {1}, last completed NCCL work: {1}"
    found = conclude(lines([timeout(0), late.format(1, 12), late.format(2, -1), late.format(3, 11)]))
    assert conclusion(found) == ("slow_rank_timeout", "medium", 3) and "rank 3 did not enter" in found[0].message
    assert conclude(lines([timeout(0), late.format(1, 12), late.format(2, -1)]))[0].confidence == "low"


def test_a_hang_with_unlike_numbers_of_calls_is_a_mismatch() -> None:
    unlike = conclude(
        lines(["[rank0]: no heartbeat. workMetaList_.size()=3", "[rank4]: no heartbeat. workMetaList_.size()=2"])
    )
    assert conclusion(unlike) == ("collective_mismatch", "low", None) and "rank 0 3, rank 4 2" in unlike[0].message
    alike = conclude(
        lines(["[rank0]: no heartbeat. workMetaList_.size()=3", "[rank4]: no heartbeat. workMetaList_.size()=3"])
    )
    assert conclusion(alike) == ("unknown", "none", None)


def test_a_missing_rank_that_crashed_is_a_crash() -> None:
    crash = traceback("ValueError: bad batch", label="[rank5]: ")
    found = conclude(lines([*crash, *(timeout(rank) for rank in range(8) if rank != 5)]))
    assert conclusion(found) == ("app_crash", "high", 5)
    assert [(cause.severity, cause.slug) for cause in found[1:]] == [("info", "slow_rank_timeout")]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ((14, "_ALLGATHER_BASE", 513), "rank 0 waited in _ALLGATHER_BASE #14 of 513 elements"),
        ((12, "BROADCAST", 4096), "rank 0 waited in BROADCAST #12 of 4,096 elements"),
        ((12, "ALLREDUCE", 2048), "rank 0 waited in ALLREDUCE #12 of 2,048 elements"),
        ((13, "ALLREDUCE", 4096), "rank 0 waited in ALLREDUCE #13 of 4,096 elements"),
    ],
)
def test_ranks_in_unlike_collectives_have_parted(odd: tuple[int, str, int], words: str) -> None:
    found = conclude(lines([timeout(1), timeout(2), timeout(0, *odd)]))
    assert conclusion(found) == ("collective_mismatch", "high", 0)
    assert words in found[0].message and "ranks 1-2 waited in ALLREDUCE #12" in found[0].message
    assert found[0].lines[0].rank == 0 and found[0].ranks == {1, 2}


@pytest.mark.parametrize("operation", ["SEND", "RECV", "COALESCED"])
def test_what_each_rank_has_of_its_own_is_no_mismatch(operation: str) -> None:
    found = conclude(lines([timeout(0, 3, operation, 5), timeout(1, 9, operation, 7)]))
    assert found[0].slug == "slow_rank_timeout"


def test_an_operation_that_is_not_known_is_not_an_unlike_one() -> None:
    """A terminal may have wrapped the line."""
    cut = "[rank{0}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpTy"
    found = conclude(lines([cut.format(0), timeout(1), cut.format(2)]))
    assert found[0].slug == "slow_rank_timeout" and "ranks 0-2 waited in ALLREDUCE #12 of 4,096 el" in found[0].message


def test_an_all_to_all_may_have_unlike_sizes() -> None:
    found = conclude(lines([timeout(0, 3, "ALLTOALL", 5), timeout(1, 3, "ALLTOALL", 7)]))
    assert found[0].slug == "slow_rank_timeout" and "ALLTOALL #3 of 5 to 7 elements" in found[0].message


def test_groups_that_only_share_a_number_of_their_own_are_compared_with_doubt() -> None:
    """torch numbers a process's groups by itself: two ranks' PG 3 may be different ones."""
    found = conclude(lines([timeout(0, 3, group="[PG 3] "), timeout(1, 9, group="[PG 3] ")]))
    assert (found[0].slug, found[0].confidence) == ("collective_mismatch", "low")
    same = conclude(lines([timeout(0, 3, group="[PG 3] "), timeout(2, 3, group="[PG 3] ")]))
    assert conclusion(same) == ("slow_rank_timeout", "low", None), "rank 1 may be no member"
    apart = conclude(lines([timeout(0, 3, group="[PG 3] "), timeout(1, 9, group="[PG 4] ")]))
    assert apart[0].slug == "slow_rank_timeout"


def test_the_group_is_told_by_the_watchdogs_next_line() -> None:
    """Rank 5 is no member of theirs."""
    named = "[rank{0}]: [PG ID 2 PG GUID 9 Rank {0}] at work: 12, last enqueued NCCL work: 13"
    texts = [text for rank in (4, 6) for text in (timeout(rank), named.format(rank))]
    assert conclusion(conclude(lines(texts))) == ("slow_rank_timeout", "low", None)
    world = [text.replace("ID 2 PG GUID 9", "ID 0 PG GUID 0") for text in texts]
    assert conclusion(conclude(lines([*world, timeout(7)]))) == ("slow_rank_timeout", "low", None), "more are missing"
    assert conclusion(conclude(lines([*world, timeout(3)]))) == ("slow_rank_timeout", "low", None)
    few = [text for rank in (0, 1, 3) for text in (timeout(rank), named.format(rank).replace("2 PG GUID 9", "0"))]
    assert conclusion(conclude(lines(few))) == ("slow_rank_timeout", "medium", 2)


def test_one_ranks_word_quotes_the_time_out_in_force() -> None:
    found = conclude(lines([timeout(5, 6336)]))
    assert conclusion(found) == ("slow_rank_timeout", "low", None) and found[0].ranks == {5}
    assert "the timeout in force, 600 s" in found[0].message and "not visible in this log" in found[0].message


@pytest.mark.parametrize("prefix", ["", "ERROR:    "])
def test_a_message_of_several_lines_is_one_also_without_prefixes(prefix: str, tmp_path: Path) -> None:
    """Its first line names a rank, the others do not. Torch's message, wrapped by whoever pasted it."""
    texts = (
        "`Trainer.fit` stopped: `max_epochs=3` reached.",
        "[Rank 0] Watchdog caught collective operation timeout:",
        "  WorkNCCL(..., OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)",
        "  ran for 600090 milliseconds before timing out.",
    )
    log = tmp_path / "job.log"
    log.write_text("".join(f"{prefix}{text}\n" for text in texts))
    (found,) = explain_paths([str(log)]).findings
    assert found.code == "explain.collective_mismatch" and "until the timeout in force, 600 s" in found.message


def test_a_barrier_behind_the_end_of_the_training_is_one_too_many() -> None:
    end = "`Trainer.fit stopped`"
    after = conclude(lines([end, timeout(0, 900, elements=1)]))
    assert conclusion(after) == ("collective_mismatch", "medium", 0)
    assert conclude(lines([end, timeout(0, 900)]))[0].slug == "slow_rank_timeout", "no barrier"
    assert conclude(lines([timeout(0, 900, elements=1), end]))[0].slug == "slow_rank_timeout", "before the end"


def test_a_first_small_collective_that_never_ends_points_to_the_way_between_gpus() -> None:
    waits = [timeout(rank, 1, elements=1) for rank in range(4)]
    found = conclude(lines([*COMPLETE, *waits], node="node-a"))
    assert conclusion(found) == ("p2p_acs_iommu", "medium", None) and found[0].where == {"node": "node-a"}
    assert conclude(lines([*COMPLETE, *waits[1:]]))[0].where == {"rank": 0}, "one did not enter"
    assert conclude(lines(waits))[0].slug == "slow_rank_timeout", "the communicator never was complete"
    large = [timeout(rank, 1, elements=10**7) for rank in range(4)]
    assert conclude(lines([*COMPLETE, *large]))[0].slug == "slow_rank_timeout"
    later = [timeout(rank, 900, elements=1) for rank in range(4)]
    assert conclude(lines([*COMPLETE, *later]))[0].slug == "slow_rank_timeout"
    halves = (lines(waits[:2], "a", node="node-a"), lines([*COMPLETE, *waits[2:]], "b", node="node-b"))
    assert conclude(*halves)[0].slug == "slow_rank_timeout", "two nodes"


@pytest.mark.parametrize(
    ("bar", "message"),
    [
        ("Map:  92%|####  | 92/100 [29:58<02:00]", "a rank was still working, 92 % done after 29:58"),
        ("Map: 100%|######| 100/100 [29:58<00:00]", ""),
        ("Epoch 3:  35%|##  | 35/100 [5:00:01<9:00:00]", ""),
    ],
)
@pytest.mark.parametrize("wait", ["[rank1]: wait timeout after 1800000ms", timeout(1, 1, elements=1, limit=1800)])
def test_a_bar_that_moved_until_the_time_out_is_slow_preparation(bar: str, message: str, wait: str) -> None:
    found = conclude(lines(["Map:   1%|  | 1/100 [00:10<10:00]", bar, wait]))
    assert found[0].slug == "slow_rank_timeout"
    assert found[0].message.startswith(message) and ("still working" in found[0].message) == bool(message)


def test_one_nodes_ranks_that_expect_more_nodes() -> None:
    came = [f"GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/32" for rank in range(8)]
    found = conclude(lines(came))
    assert (found[0].slug, found[0].ranks) == ("world_size_wrong", frozenset(range(8)))
    assert found[0].message.startswith("8 ranks of 32 joined (0-7): only this node's ranks were started")
    assert conclude(lines([*came, "All distributed processes registered"])) == []
    assert conclude(lines([f"GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/8" for rank in range(8)])) == []
    two = (
        lines(came, "a", node="node-a"),
        lines([cause.replace("RANK: ", "RANK: 1") for cause in came], "b", node="node-b"),
    )
    assert conclude(*two)[0].slug == "rdzv_incomplete"
    halves = (lines(came[:4], "a", node="node-a"), lines(came[4:], "b", node="node-b"))
    assert conclude(*halves)[0].slug == "rdzv_incomplete", "of two nodes each has come"


@pytest.mark.parametrize("more", ["100%|##| 1/1 [00:10<00:00]", "internal error", "nranks 32 x - Init COMPLETE"])
def test_ranks_that_went_on_or_died_are_not_said_to_wait_for_others(more: str) -> None:
    came = [f"GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/32" for rank in range(8)]
    assert not {"world_size_wrong", "rdzv_incomplete"} & {cause.slug for cause in conclude(lines([*came, more]))}
    assert conclude(lines(came[:1])) == [], "one rank's own log"
    assert conclude(lines([*came, "wait timeout after 1800000ms"]))[0].slug == "world_size_wrong"


def test_a_bar_on_the_line_of_a_rank_that_waits_is_another_ranks() -> None:
    bar = "Map:  92%|####  | 92/100 [29:58<02:00]"
    assert conclude(lines([f"[rank1]: {bar} wait timeout after 1800000ms"]))[0].where == {}
    assert conclude(lines([f"[rank0]: {bar}", "[rank1]: wait timeout after 1800000ms"]))[0].where == {"rank": 0}


def test_of_two_sides_of_one_size_nobody_is_blamed() -> None:
    two = conclude(lines([timeout(0, 5), timeout(1, 6, "BROADCAST")]))[0]
    assert (two.slug, two.where, two.ranks) == ("collective_mismatch", {}, frozenset())
    three = conclude(lines([timeout(0, 5), timeout(1, 6, "BROADCAST"), timeout(2, 5)]))[0]
    assert (three.where["rank"], three.ranks) == (1, frozenset({0, 2}))


EXIT = "failed (exitcode: -6) local_rank: 0 (pid: 4242)"


@pytest.mark.parametrize("numbers", [(812, 99), (99, 812), (12, 12)])
def test_a_rank_that_waited_in_the_next_attempt_only_is_no_culprit_of_a_mismatch(numbers: tuple[int, int]) -> None:
    first = [timeout(rank, numbers[0]) for rank in range(8) if rank != 5]
    second = [timeout(rank, numbers[1]).replace("031 ms", "047 ms") for rank in (5, 0, 1, 2, 3, 4, 7)]
    found = conclude(lines([*first, EXIT, *second, EXIT]))
    assert conclusion(found) == ("slow_rank_timeout", "medium", 5)
    assert found[0].message.startswith(f"rank 5 did not enter ALLREDUCE #{numbers[0]} of")


def test_two_jobs_of_one_folder_are_two_hangs() -> None:
    cause = lines([COMPLETE[0], *(timeout(rank, 812) for rank in range(3))], "job_1.out")
    other = lines([COMPLETE[0], *(timeout(rank, 99) for rank in range(4) if rank != 1)], "job_2.out")
    larger = lines(["[rank0]: comm 0x1 rank 0 nranks 64 - Init COMPLETE"], "job_3.out")
    found = conclude(cause, other, larger)
    assert conclusion(found) == ("slow_rank_timeout", "medium", 3) and "#812" in found[0].message


def test_a_wait_that_may_belong_to_two_hangs_is_missing_in_none() -> None:
    ranks = {"031": (0, 1, 2, 3, 4, 6, 7), "047": (0, 1, 2, 3, 4, 5, 7)}
    texts = {f"{ran}_{rank}.err": timeout(rank).replace("031", ran) for ran, those in ranks.items() for rank in those}
    found = conclude(*(lines([text], name) for name, text in texts.items()))
    assert conclusion(found) == ("slow_rank_timeout", "low", None)


def test_a_copy_of_a_log_is_no_second_hang() -> None:
    texts = [timeout(rank) for rank in range(8) if rank != 5]
    found = conclude(lines(texts, "all.log"), *(lines([text], f"{at}.log") for at, text in enumerate(texts)))
    assert conclusion(found) == ("slow_rank_timeout", "medium", 5) and len(found) == 1


def test_a_number_that_stands_for_an_unknown_one_is_not_said() -> None:
    text = timeout(0).replace(
        "NumelIn=4096, NumelOut=4096", "NumelIn=18446744073709551615, NumelOut=18446744073709551615"
    )
    found = conclude(lines([text, text.replace("[rank0]", "[rank1]")]))
    assert found[0].slug == "slow_rank_timeout" and "elements" not in found[0].message and "184" not in found[0].message
