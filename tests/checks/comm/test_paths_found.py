"""comm.paths: what it says of a search for a way that works, made up. For real ones see test_paths.py."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from preflight import testing
from preflight.check import ranges
from preflight.checks.comm import paths
from preflight.checks.comm.paths.search import SIMPLEST, Search
from preflight.checks.comm.paths.ways import AS_IT_IS, P2P, RDMA, Detour
from tests import made

HANGS = "no answer within 8.0 s"
CLOSED = "RuntimeError: Connection closed by peer"


def trial(without: str, failed: dict[int, str] | None = None) -> dict[str, Any]:
    by_text: dict[str, list[int]] = {}
    for rank, text in (failed or {}).items():
        by_text.setdefault(text, []).append(rank)
    texts = {text: ranges.to_text(ranks) for text, ranks in by_text.items()}
    return {"without": without, "works": not texts, "seconds": 2.0, "left_s": 60.0, "failed": texts}


def judged(
    *trials: dict[str, Any], pairs: tuple[tuple[int, int, str], ...] = (), nodes: tuple[int, ...] = (4,)
) -> dict[str, Any]:
    """The finding where all ranks have shared these trials; `nodes`: ranks on each."""
    starts = [0, *itertools.accumulate(nodes)]
    of = {f"node-{number}": list(range(starts[number], starts[number + 1])) for number in range(len(nodes))}
    met = [{"ranks": [a, b], "failed": failed} for a, b, failed in pairs]
    facts: dict[int, Any] = {
        rank: {"bytes": 1, "timings": [], "trials": [*trials], "pairs": met, "patience_s": 30.0}
        for rank in range(sum(nodes))
    }
    (found,) = testing.judge(paths, facts, nodes=of, backend="nccl")
    assert (found["code"], found["severity"]) == ("comm.paths.broken", "fail") and "expected it to work" in found[
        "message"
    ]
    return found


FAILS = trial(AS_IT_IS, dict.fromkeys(range(4), HANGS))
HELPS = [FAILS, trial(SIMPLEST.without), trial(P2P.without), FAILS, trial(P2P.without)]


def test_what_helps_twice_is_named_with_its_cure() -> None:
    found = judged(*HELPS)
    assert f"({'ranks 0-3'}: {HANGS}), twice, and works without P2P, twice" in found["message"]
    assert "export NCCL_P2P_DISABLE=1" in found["fix"] and found["where"] == {"node": "node-0"}


def test_a_rank_that_all_its_pairs_accuse_is_named_and_no_other_one() -> None:
    every = [(a, b, HANGS if 2 in (a, b) else "") for a, b in itertools.combinations(range(4), 2)]
    found = judged(*HELPS, pairs=tuple(every))
    assert found["where"]["rank"] == 2 and "of 6 pairs of GPUs 3 cannot do it" in found["message"]
    one = [(a, b, HANGS if (a, b) == (1, 3) else "") for a, b in itertools.combinations(range(4), 2)]
    assert judged(*HELPS, pairs=tuple(one))["where"] == {"node": "node-0", "link": "rank 1 and rank 3"}
    all_ = [(a, b, HANGS) for a, b in itertools.combinations(range(4), 2)]
    assert judged(*HELPS, pairs=tuple(all_))["where"] == {"node": "node-0"}
    none = [(a, b, "") for a, b in itertools.combinations(range(4), 2)]
    assert "each two GPUs of a node alone can do it (6 pairs)" in judged(*HELPS, pairs=tuple(none))["message"]


def test_of_several_nodes_only_the_one_whose_gpus_fail_is_named() -> None:
    pairs = ((0, 1, ""), (2, 3, HANGS))
    assert judged(*HELPS, pairs=pairs, nodes=(2, 2))["where"] == {"node": "node-1", "link": "rank 2 and rank 3"}
    assert judged(*HELPS, pairs=((0, 1, HANGS), (2, 3, HANGS)), nodes=(2, 2))["where"] == {}
    helps = [FAILS, trial(SIMPLEST.without), trial(RDMA.without), FAILS, trial(RDMA.without)]
    found = judged(*helps, nodes=(2, 2))
    assert found["where"] == {} and "works without InfiniBand and RoCE" in found["message"]


def test_who_hung_explains_whose_connection_was_closed() -> None:
    found = judged(trial(AS_IT_IS, {0: CLOSED, 1: HANGS}), trial(SIMPLEST.without, {1: HANGS}))
    assert f"(rank 1: {HANGS})" in found["message"] and "closed" not in found["message"]


NO_SINGLE_WAY = "works over sockets only, and without no single way"


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        ([FAILS, trial(SIMPLEST.without, {0: HANGS})], "and in no other way (over sockets only)"),
        ([FAILS, trial(SIMPLEST.without), trial(P2P.without, {0: HANGS})], NO_SINGLE_WAY),
        ([*HELPS[:3], trial(AS_IT_IS)], "once, and works once"),
        ([*HELPS[:4], trial(P2P.without, {0: HANGS})], NO_SINGLE_WAY),
    ],
)
def test_where_nothing_helps_twice_no_way_is_to_blame(trials: list[dict[str, Any]], says: str) -> None:
    found = judged(*trials)
    assert says in found["message"] and found["fix"].startswith("No transport is to blame") and found["where"] == {}


def test_what_helped_once_before_the_time_was_over_is_said_and_names_nobody() -> None:
    found = judged(*HELPS[:3])
    assert "has worked once without P2P: there was no time" in found["message"] and "P2P_DISABLE" in found["fix"]
    assert found["where"] == {}


def test_where_no_process_had_the_time_to_start_nothing_is_said_of_ways() -> None:
    short = [FAILS, trial(SIMPLEST.without, dict.fromkeys(range(4), HANGS))]
    facts: dict[int, Any] = {0: {"bytes": 1, "timings": [], "trials": short, "pairs": [], "patience_s": 8.0}}
    (found,) = testing.judge(paths, facts, nodes={"a": [0]}, backend="nccl")
    assert found["code"] == "comm.paths.not_timed" and found["not_measured"]
    assert "and in no other way" in judged(*short)["message"]


# The search itself


def searched(helps: str, *, simple_s: float = 2.0, own_works: bool = False) -> tuple[bool, list[str], list[float]]:
    """(whether the job's own way works, the ways that were tried, how long each was waited for) where only sockets, and
    what leaves `helps` out, end."""
    ctx: Any = SimpleNamespace(job=made.job(2), members=(0, 1), rank=0)
    search, patience = Search(ctx, 30.0, 1e9), []

    def attempt(way: Detour, _: Any) -> Any:
        patience.append(search._patience_s)
        works = way.without in (SIMPLEST.without, helps) or (own_works and way.without == AS_IT_IS)
        return {**trial(way.without, None if works else {0: HANGS}), "seconds": simple_s}

    search._attempt = attempt  # type: ignore[method-assign, assignment]
    works = search.works()
    if not works:
        search.run()
    return works, [each["without"] for each in search.trials], patience


def test_the_time_of_sockets_says_how_long_a_hang_is_waited_for() -> None:
    works, tried, patience = searched(P2P.without)
    assert not works and tried == [SIMPLEST.without, AS_IT_IS, P2P.without, AS_IT_IS, P2P.without]
    assert patience == [30.0, 10.0, 8.0, 8.0, 8.0]
    assert searched(P2P.without, simple_s=20.0)[2] == [30.0] * 5
    assert searched("", own_works=True) == (True, [SIMPLEST.without, AS_IT_IS], [30.0, 10.0])
