"""Ways that NCCL takes, left out one after the other: on real ranks with a stand-in for NCCL, whose all-reduces are
slow or hang unless a variable turns their way off; and judged from made-up times."""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight import testing
from preflight.check import NotApplicable, Skip
from preflight.checks.comm import paths
from preflight.checks.comm.paths import timed, ways
from preflight.checks.comm.paths.timed import RUNS
from preflight.checks.comm.paths.ways import AS_IT_IS, NETWORK
from tests import made, running
from tests.checks.comm import at_work
from tests.faults import ELSEWHERE
from tests.running import Finished

NVLS, P2P = list(ways.VARIANTS)[1:3]


def run(
    folder: Path, path: str, *, of: int | None = None, facts: bool = False, only: str = "comm.paths", world: int = 2,
    deadline_s: float = 60, **more: str,
) -> Finished:  # fmt: skip
    """`path`: as in tests/nccl_at_work; `of`: on this rank only."""
    environ = at_work.written(folder, {}, {})
    (folder / "report").mkdir()
    ranks = [{**rank, **environ, **more} for rank in running.plain_ranks(world)]
    for rank in ranks if of is None else ranks[of : of + 1]:
        rank["PREFLIGHT_TEST_PATH"] = path
    shown = ("--json", str(folder / "report" / "report.json"), "--facts") if facts else ()
    return running.run_ranks(folder / "report", ranks, "--only", only, *shown, deadline_s=deadline_s)


def test_a_way_that_is_slow_is_found_by_leaving_it_out(tmp_path: Path) -> None:
    finished = run(tmp_path, "NCCL_P2P_DISABLE=1 0.1")
    found = finished.findings(finds=ELSEWHERE["slow_path"].finds)
    assert ELSEWHERE["slow_path"].is_told_by(found) and len(found) == 1, finished.told()
    assert found[0]["message"].endswith(f" {P2P}, expected no gain"), finished.told()
    assert finished.left_over == [], finished.told()


def test_a_way_that_hangs_is_found_by_leaving_it_out(tmp_path: Path) -> None:
    finished = run(tmp_path, "NCCL_NVLS_ENABLE=0 1000", of=1)
    found = finished.findings(finds=ELSEWHERE["broken_path"].finds)
    assert ELSEWHERE["broken_path"].is_told_by(found) and len(found) == 1, finished.told()
    assert "no answer within" in found[0]["message"] and NVLS in found[0]["message"], finished.told()
    assert finished.left_over == [], finished.told()


def first_fails(folder: Path, row: str, path: str, **more: Any) -> str:
    """The message, where a job's first all-reduce fails in this way, and comm.init says where to look."""
    finished = run(folder, path, only="comm.init,comm.paths", deadline_s=120, PREFLIGHT_TEST_INIT_S="6", **more)
    told, fault = finished.told(), ELSEWHERE[row]
    (found,) = (finding for finding in finished.findings() if finding["code"] == "comm.paths.broken")
    assert fault.is_told_by(finished.findings()) and fault.says in found["message"], told
    assert fault.culprit.items() <= found["where"].items() and finished.left_over == [], told
    (init,) = (finding for finding in finished.findings() if finding["code"].startswith("comm.init."))
    assert "comm.paths.broken" in init["fix"] and "between the nodes" not in init["fix"], told
    return str(found["message"])


@pytest.mark.parametrize(
    ("row", "switch"),
    [
        ("first_p2p", "NCCL_P2P_DISABLE=1 1000 0"),
        ("first_shm", "NCCL_SHM_DISABLE=1 1000 0"),
        pytest.param("first_cumem", "NCCL_CUMEM_HOST_ENABLE=0 1000 0", marks=pytest.mark.more),
        pytest.param("first_hangs_in_plugin", "NCCL_NET_PLUGIN=none 1000 0", marks=pytest.mark.more),
        pytest.param("first_hangs_on_interface", "NCCL_SOCKET_IFNAME=lo 1000 0", marks=pytest.mark.more),
        ("first_wrong", "NCCL_P2P_DISABLE=1 wrong 0"),
    ],
)
def test_a_first_collective_that_fails_is_tried_without_each_way(row: str, switch: str, tmp_path: Path) -> None:
    first_fails(tmp_path, row, switch)


def test_of_four_gpus_the_pair_is_named(tmp_path: Path) -> None:
    text = first_fails(tmp_path, "first_pair", "NCCL_P2P_DISABLE=1 1000 0 1,3", world=4)
    assert "of 6 pairs of GPUs 1 cannot do it: GPUs 1 and 3 of " in text, text


@pytest.mark.more
def test_what_hangs_from_a_mebibyte_on_leaves_time_to_say_why(tmp_path: Path) -> None:
    """The search comes at once, before the other collectives, which would take all the time."""
    only = "comm.init,comm.all_reduce,comm.all_gather,comm.paths"
    finished = run(tmp_path, "NCCL_P2P_DISABLE=1 1000", only=only, deadline_s=110)
    assert ELSEWHERE["hangs_when_large"].is_told_by(finished.findings()), finished.told()
    ended = [check["check"] for check in finished.report["checks"]]
    assert ended.index("comm.paths") < ended.index("comm.all_reduce"), finished.told()


@pytest.mark.more
def test_where_every_way_hangs_in_a_short_run_nothing_is_said_of_ways(tmp_path: Path) -> None:
    """A process had 11 s, in which NCCL may not have started on a sound machine."""
    finished = run(tmp_path, "NCCL_NO_SUCH=1 1000", of=1)
    check = finished.check("comm.paths")
    assert finished.findings() == [] and check["status"] == "skip", finished.told()
    assert "no first all-reduce ended, in any way" in check["skipped"], finished.told()
    assert finished.left_over == [], finished.told()


@pytest.mark.more
def test_where_all_ways_are_as_quick_nothing_is_said(tmp_path: Path) -> None:
    """So slow that a busy machine does not matter."""
    finished = run(tmp_path, "NCCL_NO_SUCH=1 0.1")
    assert finished.check("comm.paths")["status"] == "pass", finished.told()
    assert "an all-reduce of 64 MiB: " in finished.check("comm.paths")["summary"], finished.told()


# Judged


def judged(
    *seconds: float | None, again: float | None = None, second: tuple[float | None, ...] = ()
) -> list[tuple[str, str]]:
    """(severity and code, message) where both ranks took so long in the four variants, and `again` or as long in the
    first one, and `second` in the others, when all was timed again."""
    times = (*seconds, again if again is not None else seconds[0], *(second or seconds)[1:])
    failed = "no answer within 30.0 s"
    timings = [
        {"variant": variant, "seconds": value, "failed": "" if value else failed}
        for variant, value in zip(RUNS, times, strict=True)
    ]
    facts: dict[int, Any] = {
        rank: {"bytes": timed.SIZE, "timings": timings, "trials": [], "pairs": [], "patience_s": 30.0}
        for rank in range(2)
    }
    found = testing.judge(paths, facts, nodes={"a": [0], "b": [1]}, backend="nccl")
    return [(f"{each['severity']} {each['code'].rpartition('.')[2]}", each["message"]) for each in found]


def test_the_way_with_the_fewest_left_out_is_named() -> None:
    ((code, text),) = judged(0.010, 0.005, 0.0049, 0.020)
    assert (code, text) == ("warn slow", f"an all-reduce takes 10 ms {AS_IT_IS}, and 5 ms {NVLS}, expected no gain")
    ((code, text),) = judged(0.102, 0.102, 0.0012, 0.0007)
    assert code == "warn slow" and P2P in text
    ((code, text),) = judged(0.010, 0.011, 0.012, 0.004)
    assert code == "warn slow" and NETWORK in text
    ((code, text),) = judged(None, None, 0.012, 0.020)
    assert code == "fail broken" and text.endswith(f"and takes 12 ms {P2P}; expected it to work")
    assert "(ranks 0-1: no answer within 30.0 s)" in text


SOUND: dict[str, tuple[tuple[float | None, ...], float | None]] = {
    "sound": ((0.002, 0.003, 0.02, 0.05), None),
    "the network sets the pace": ((0.010, 0.010, 0.0101, 0.0105), None),
    "as quick": ((0.010, 0.0095, 0.0099, 0.02), None),
    "slow once": ((0.010, 0.005, 0.005, 0.02), 0.005),
    "no network on one node": ((0.002, 0.003, 0.02, None), None),
    "cold once": ((None, 0.003, 0.02, 0.05), 0.003),
}


@pytest.mark.parametrize(("seconds", "again"), SOUND.values(), ids=SOUND)
def test_what_shows_no_way_to_be_at_fault(seconds: tuple[float | None, ...], again: float | None) -> None:
    assert judged(*seconds, again=again) == []


def test_where_no_way_works_none_is_to_blame() -> None:
    ((code, text),) = judged(None, None, None, None)
    assert code == "fail broken" and "and no variant with disabled transports worked twice" in text


def test_what_is_quicker_once_is_not_told() -> None:
    assert judged(0.010, 0.005, 0.010, 0.020, second=(0.010, 0.010, 0.010, 0.020)) == []
    assert judged(0.010, 0.007, 0.010, 0.020, again=0.013) == [], "two runs of one way differ by as much"


def test_each_variant_turns_more_off() -> None:
    """In variables that env.variables knows, and that a job's own environment does not win over."""
    settings = list(ways.VARIANTS.values())
    assert all(before.items() < after.items() for before, after in itertools.pairwise(settings))
    assert not settings[0] and not set(settings[-1]) & set(os.environ)


def test_only_nccl_has_ways_and_only_ranks_with_time_look_for_them() -> None:
    def measure(backend: str, members: tuple[int, ...], deadline_s: float) -> None:
        job = made.job(2, backend=backend)
        context: Any = SimpleNamespace(job=job, members=members, deadline_s=deadline_s)
        paths.measure(context)

    with pytest.raises(NotApplicable, match="the backend is gloo"):
        measure("gloo", (0, 1), 300)
    with pytest.raises(NotApplicable, match="one rank"):
        measure("nccl", (0,), 300)
    with pytest.raises(Skip, match="the run has left 4"):
        measure("nccl", (0, 1), 24)
