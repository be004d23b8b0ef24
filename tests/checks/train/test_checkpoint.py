"""What train.checkpoint says of made-up facts of many ranks and nodes."""

from collections.abc import Mapping
from typing import Any

import pytest

from preflight.check import Finding, Job, Node, Run
from preflight.checks.train import checkpoint as check
from preflight.checks.train.checkpoint import folder, folder_calls, resumed, speed
from preflight.train_smoke.checkpoint.names import ALONE, CHECKPOINTS, HALF


def _run(nodes: int = 1, ranks: int = 4, **options: Any) -> Run:
    made = tuple(Node(f"node-{n}", n, tuple(range(n * ranks, (n + 1) * ranks))) for n in range(nodes))
    world = nodes * ranks
    named = {folder.DIR: "/ck", **{getattr(folder, name.upper()): value for name, value in options.items()}}
    return Run(Job("env", world, "gloo", made), tuple(range(world)), {}, named)


def _difference(kind: str, name: str, own: float | None = None, now: str = "0") -> dict[str, Any]:
    return {"kind": kind, "name": name, "share": 0.25, "own": own, "was": "0.5 at most", "now": now}


STEP = {"loss": 3.0, "norm": 2.0, "print": 0.5}


def _saved(into: Mapping[str, Any], error: str = "", name: str = "fsdp2/dcp") -> dict[str, Any]:
    sound = {"idle": False, "error": "", "damaged": [], "differences": [], "curve": [STEP, STEP]}
    return {
        name: {
            "error": error,
            "curve": [STEP, STEP],
            "into": {target: {**sound, **changed} for target, changed in into.items()},
        }
    }


SPREAD: Any = {"curves": 1e-6, "gradient": 1e-6, "end": 1e-3, "state": 1e-5}


def _told(saved: dict[int, Any]) -> list[Finding]:
    return [*resumed.judge(saved, [SPREAD], "/ck", _run(ranks=len(saved)))]


def test_a_sound_one_is_silent_and_says_how_near() -> None:
    saved: Any = {rank: _saved({"fsdp2": {}, ALONE: {"idle": rank > 0, "curve": []}}) for rank in range(4)}
    assert _told(saved) == []
    assert resumed.summarize(saved, [SPREAD]).endswith("equal to the last bit, then as without a stop to 0e+00")


def test_the_rank_whose_piece_is_wrong_is_named_and_no_other() -> None:
    saved = {
        rank: _saved({"fsdp2": {"differences": [_difference("moments", "up exp_avg", 0.5 if rank == 2 else 0.0)]}})
        for rank in range(4)
    }
    (found,) = _told(saved)
    assert found.where == {"node": "node-0", "rank": 2, "parameter": "up"} and found.noticed_by == "0-1,3"
    assert found.code is resumed.WRONG_OPTIMIZER
    assert "up exp_avg is 0 in 0.5 of its elements of this rank's piece" in found.message


@pytest.mark.parametrize("guilty", [(0, 1), (0, 1, 2, 3)])
def test_half_of_the_ranks_or_all_are_not_named(guilty: tuple[int, ...]) -> None:
    differences = {rank: [_difference("random", "torch's random state")] if rank in guilty else [] for rank in range(4)}
    (found,) = _told({rank: _saved({"fsdp2": {"differences": own}}) for rank, own in differences.items()})
    assert "rank" not in found.where and found.code is resumed.LOST_RANDOM


def test_one_fault_in_many_checkpoints_is_told_once() -> None:
    own = {"differences": [_difference("schedule", "the schedule's step")]}
    saved = {rank: {**_saved({"fsdp2": own, HALF: own}), **_saved({"ddp": own}, name="ddp/full")} for rank in range(2)}
    (found,) = _told(saved)
    assert found.message.startswith("fsdp2/dcp into FSDP2: the schedule's step is 0 in")
    assert found.message.endswith("the same with fsdp2/dcp into FSDP2 on half of the ranks and ddp/full into DDP")


FOLDER: Any = {
    "path": "/ck", "made": False, "owner": "", "free": None, "fsync": "", "rename": "", "failed": None, "hang": "",
    "seen": None, "written": 0, "write_s": 0.0, "read": 0, "read_s": 0.0, "left": "",
}  # fmt: skip
WRONG = {"file": "part-0", "offset": 4096, "read": 0x45, "written": 0x41}


@pytest.mark.parametrize(
    ("nodes", "wrong", "where", "says"),
    [
        (3, {2: WRONG, 3: WRONG}, [{"node": "node-1", "file": "/ck"}],
         "byte 4,096 of a file in /ck is 0x45 when it is read back, expected 0x41 as it was written (1 bit flipped) on "
         "rank 2"),
        (3, {0: WRONG, 2: WRONG, 4: WRONG}, [{"file": "/ck"}], "on rank 0, and so on all 3 nodes"),
        (1, {1: WRONG}, [{"file": "/ck"}], "(1 bit flipped) on rank 1"),
        (2, {1: {**WRONG, "read": -1}}, [{"node": "node-0", "file": "/ck"}], "and is not there when it is read back"),
        (3, {}, [], ""),
    ],
    ids=["a node", "all nodes", "the only node", "short", "sound"],
)  # fmt: skip
def test_the_medium_is_judged_by_node(
    nodes: int, wrong: Mapping[int, Any], where: list[dict[str, Any]], says: str
) -> None:
    facts: Any = {rank: {**FOLDER, "wrong": wrong.get(rank)} for rank in range(2 * nodes)}
    found = [*folder.judge(facts, _run(nodes, 2))]
    assert [finding.where for finding in found] == where
    assert all(finding.code is folder.CORRUPTS and says in finding.message for finding in found)


def test_a_short_or_other_file_is_a_wrong_byte() -> None:
    data = bytes(range(256)) * 20
    for read, first in ((data, None), (data[:-1], 5119), (b"\1" + data[1:], 0), (data[:300] + b"\0" + data[301:], 300)):
        wrong = folder_calls._wrong_byte("/ck/a", 1000, read, data)
        assert (wrong and wrong["offset"]) == (first if first is None else 1000 + first)


@pytest.mark.parametrize(
    ("left_out", "asked", "severities"),
    [
        ({"fsdp2/dcp": resumed.NEEDS_NUMPY}, False, [("info", True)]),
        ({"fsdp2/dcp": resumed.NEEDS_NUMPY}, True, [("warn", False)]),
        ({"fsdp2/async": "async_save needs a gloo group besides NCCL's"}, False, []),
        ({"fsdp2/async": "async_save needs a gloo group besides NCCL's"}, True, [("info", True)]),
    ],
)
def test_what_was_not_made_is_counted(
    left_out: dict[str, str], asked: bool, severities: list[tuple[str, bool]]
) -> None:
    options = {check.FORMS: dict.fromkeys(left_out, ())} if asked else {}
    job = Job("env", 1, "gloo", (Node("node-0", 0, (0,)),))
    facts: Any = {
        0: {"folder": FOLDER, "alone": None, "has_numpy": False, "left_out": left_out, "spread": None, "saved": {}}
    }
    found = [*check.judge(facts, Run(job, (0,), {}, options))]
    assert [(str(finding.severity), finding.not_measured) for finding in found] == severities


def test_causes_come_before_consequences() -> None:
    """A file that is damaged, what torch says of it, and what of it came back; a tie before the weight."""
    damaged = {"damaged": [{"file": "full.pt", "told": "is missing, expected it as it was written"}], "error": "E: no"}
    (found,) = _told({0: _saved({"fsdp2": damaged}), 1: _saved({"fsdp2": {"error": "E: no"}})})
    assert found.code is resumed.DAMAGED and found.where == {"file": "full.pt"} and "rank" not in found.where
    own = {"differences": [_difference("weights", "tokens.weight"), _difference("tie", "head.weight")]}
    (found,) = _told({rank: _saved({"fsdp2": own}) for rank in range(2)})
    assert found.code is resumed.UNTIED and found.where == {"parameter": "head.weight"}


def test_what_drifts_is_told_of_the_first_step_that_is_off() -> None:
    near, far = {**STEP, "norm": 2.00001}, {**STEP, "norm": 2.1}
    assert _told({0: _saved({"fsdp2": {"curve": [near, STEP]}})}) == []
    (found,) = _told({0: _saved({"fsdp2": {"curve": [near, far]}})})
    assert found.code is resumed.DRIFT and found.where == {"step": 1}
    (found,) = _told({0: _saved({"fsdp2": {"curve": [{**STEP, "loss": "nan"}, STEP]}})})
    assert found.where == {"step": 0} and "is nan, expected 3" in found.message


def test_saving_on_one_rank_names_it_and_a_full_disk_has_its_own_code() -> None:
    (found,) = _told({rank: _saved({}, "OSError: no" if rank == 1 else "") for rank in range(3)})
    assert found.code is resumed.REFUSED and found.where["rank"] == 1
    (found,) = _told({rank: _saved({}, "OSError: [Errno 28] No space left on device") for rank in range(3)})
    assert found.code is folder.NO_ROOM and found.where == {"file": "/ck"}


def _folder(rates: Mapping[int, float], ranks: int = 2) -> dict[int, Any]:
    """Of nodes that write so many MB/s."""
    return {
        node * ranks + place: {"path": "/ck", "written": 100e6, "write_s": 100 * ranks / rate, "read": 0, "read_s": 0.0}
        for node, rate in rates.items()
        for place in range(ranks)
    }


@pytest.mark.parametrize(
    ("rates", "odd"),
    [
        ((100, 100, 20), 4),
        ((100, 100, 30), None),  # within what fair queues make
        ((100, 20, 20), None),  # no majority
        ((100, 60, 10, 45), 4),
        ((200, 60, 14, 40), None),  # noisy: the next slowest is far, too
        ((100, 10), None),  # of two nodes it cannot be told
    ],
)
def test_a_node_is_slow_only_far_from_all_others(rates: tuple[float, ...], odd: int | None) -> None:
    run = _run(len(rates), 2)
    facts = _folder(dict(enumerate(rates)))
    assert speed.slowest(speed._of_nodes(speed.by_node(facts, run, "write"))) == odd


@pytest.mark.parametrize(("slow", "is_told"), [(20e6, True), (90e6, False)])
def test_a_node_that_is_quick_alone_is_not_named(slow: float, is_told: bool) -> None:
    facts, run = _folder({0: 100, 1: 100, 2: 10}), _run(3, 2)
    found = [*speed.judge(facts, {"rank": 4, "slow": slow, "usual": 100e6}, run)]
    assert [finding.where for finding in found] == ([{"node": "node-2", "file": "/ck"}] if is_told else [])
    assert [*speed.judge(facts, None, run)] == []


def _looked(**changed: Any) -> dict[str, Any]:
    sound = {
        "path": "/ck", "made": False, "owner": "it is user 0's", "free": 2**40, "fsync": "", "rename": "",
        "failed": None, "hang": "", "seen": True, "left": "",
    }  # fmt: skip
    return {**sound, **changed}


def test_all_nodes_with_the_same_trouble_are_one_finding_that_names_none() -> None:
    run, failed = _run(3, 1), {"call": "mkdir", "error": "EROFS", "text": "Read-only file system"}
    (found,) = folder.judge({rank: _looked(failed=failed) for rank in range(3)}, run)  # type: ignore[misc]
    assert found.where == {"file": "/ck"} and found.message.endswith("on all 3 nodes")
    (found,) = folder.judge({rank: _looked(failed=failed if rank == 1 else None) for rank in range(3)}, run)  # type: ignore[misc]
    assert found.where == {"node": "node-1", "file": "/ck"}
    assert [*folder.judge({rank: _looked() for rank in range(3)}, run)] == []  # type: ignore[misc]


def test_where_no_node_sees_the_first_ones_file_none_is_named() -> None:
    facts: Any = {rank: _looked(seen=None if rank == 0 else False) for rank in range(3)}
    (found,) = folder.judge(facts, _run(3, 1))
    assert found.where == {"file": "/ck"} and "on node-1 and node-2 (2 of 2 other nodes)" in found.message
    facts[2]["seen"] = True
    (found,) = folder.judge(facts, _run(3, 1))
    assert found.where == {"node": "node-1", "file": "/ck"}


def test_options() -> None:
    assert folder.DIR.type("/ck/run-7/") == "/ck/run-7"
    assert check.FORMS.type("all") == CHECKPOINTS
    for option, text in ((folder.DIR, "ck"), (folder.GIB, "-1"), (check.FORMS, "fsdp2/zip")):
        with pytest.raises(ValueError, match=r"is no"):
            option.type(text)
