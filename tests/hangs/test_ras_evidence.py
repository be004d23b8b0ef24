import json
from dataclasses import replace
from typing import Any

import pytest

from preflight.check import Scope
from preflight.core.outcome import Outcome
from preflight.hangs import blame
from preflight.nccl import ras_snapshot
from tests import made
from tests.nccl.ras_standin import answer, communicator, missing, rank

JOB = made.job(2, 2, 2)
FIVE = {"AllReduce": 5}
ALL = [rank(number, launched=FIVE) for number in range(4)]


def seen(text: str, *, still: bool | None = True) -> str:
    snapshot = ras_snapshot.parse(text)
    assert snapshot
    return json.dumps({**snapshot, "still": still})


def call(number: int, operation: str = "all_reduce", elements: int = 4, *, over: bool = False) -> dict[str, Any]:
    return {"seq": number, "operation": operation, "sizes": [[elements]], "elements": elements, "dtype": "float32",
            "over": over, "stuck": not over}  # fmt: skip


def hung(*calls: dict[str, Any], ras: str | None = None) -> Outcome:
    group = {"ranks": "0-3", "world": True, "entered": calls[-1]["seq"], "calls": list(calls)}
    return Outcome("timed_out", 8.0, state="S", recorded=[group], ras=ras)


def found(ras: str, odd: dict[str, Any] | None, *, second: str | None = None) -> tuple[Any, str, Any]:
    """(rank blamed, message, RAS's words) where ranks 0, 2 and 3 wait in #5, and rank 1 has called `odd` last."""
    waits = call(5)
    outcomes = {0: hung(waits, ras=ras), 1: hung(odd or waits), 2: hung(waits, ras=second), 3: hung(waits)}
    (first,) = blame.findings("plugin.made", Scope.WORLD, outcomes, JOB)
    made.made_report(made.result(first, outcomes=outcomes), on=JOB)
    return first.where.get("rank"), first.message, first.evidence.get("ras")


LATE = call(4, over=True)
BEHIND = [ALL[0], rank(1, launched={"AllReduce": 4}), *ALL[2:]]
COUNTED = "NCCL has launched AllReduce 4 on rank 1, 5 on ranks 0,2-3"
SILENT = "NCCL's RAS has no answer from rank 1"


@pytest.mark.parametrize(
    ("status", "says"),
    [(answer(BEHIND), COUNTED), (answer([ALL[0], *ALL[2:]], [missing(1)]), SILENT),
     (answer([ALL[0], *ALL[2:]], [missing(1, dead=True)]), f"{SILENT}, and has given up on rank 1")],
)  # fmt: skip
def test_where_ras_agrees_it_is_evidence(status: str, says: str) -> None:
    culprit, message, ras = found(seen(status), LATE)
    assert (culprit, ras) == (1, says) and "RAS" not in message


@pytest.mark.parametrize(
    ("status", "says"),
    [(answer(ALL), "NCCL has launched AllReduce 5 on ranks 0-3"),
     (answer(ALL[:3], [missing(3)]), "NCCL's RAS has no answer from rank 3")],
)  # fmt: skip
def test_a_contradiction_is_said(status: str, says: str) -> None:
    culprit, message, _ = found(seen(status), LATE)
    assert culprit == 1 and message.endswith(f"; NCCL's RAS does not agree: {says}")


def test_where_nobody_else_knows_ras_is_told_and_nobody_named() -> None:
    culprit, message, _ = found(seen(answer(BEHIND)), None)
    assert culprit is None and message.endswith(f"; {COUNTED}")
    culprit, message, ras = found(seen(answer(ALL)), None)
    assert (culprit, ras) == (None, "NCCL has launched AllReduce 5 on ranks 0-3") and "NCCL" not in message


def test_of_ranks_that_wait_and_have_recorded_nothing_ras_says_who_is_behind() -> None:
    """As on an H100 where torch's other recorder was read: rank 1 has left the last all-reduce out."""
    waits = Outcome("timed_out", 8.0, state="R", recorded=[{"ranks": "0-3", "world": True, "entered": 5, "calls": []}])
    sound = Outcome("measured", 1.0)
    outcomes = {0: replace(waits, ras=seen(answer(BEHIND))), 1: sound, 2: waits, 3: waits}
    first, *_ = blame.findings("plugin.made", Scope.WORLD, outcomes, JOB)
    assert first.message.endswith(f"; NCCL's RAS does not agree: {COUNTED}")
    outcomes[0] = replace(waits, ras=seen(answer(ALL)))
    first, *_ = blame.findings("plugin.made", Scope.WORLD, outcomes, JOB)
    assert "RAS" not in first.message


def test_a_size_is_not_counted_and_no_contradiction() -> None:
    culprit, message, _ = found(seen(answer(ALL)), call(5, elements=8))
    assert culprit == 1 and "NCCL" not in message
    culprit, message, _ = found(seen(answer(ALL)), call(5, "broadcast"))
    assert culprit == 1 and "NCCL's RAS does not agree" in message


def test_of_another_group_the_worlds_counts_say_nothing() -> None:
    def in_group(*calls: dict[str, Any], ras: str | None = None) -> Outcome:
        outcome = hung(*calls, ras=ras)
        return replace(outcome, recorded=[{**(outcome.recorded or [{}])[0], "ranks": "0-2", "world": False}])

    outcomes = {0: in_group(call(5), ras=seen(answer(ALL))), 1: in_group(LATE), 2: in_group(call(5)), 3: hung(LATE)}
    first, *_ = blame.findings("plugin.made", Scope.WORLD, outcomes, JOB)
    assert first.where["rank"] == 1 and "NCCL" not in first.message, first
    assert first.evidence["ras"] == "NCCL has launched AllReduce 5 on ranks 0-3"


@pytest.mark.parametrize(
    "ras",
    [seen(answer(ALL), still=None), seen(answer(ALL), still=False), seen(answer(ALL))[:-20], "Job summary",
     seen(answer(ALL[:2])), seen(answer(ALL, more=[communicator(ALL)]))],
    ids=["asked once", "moves", "cut", "text", "no world", "two of the world's size"],
)  # fmt: skip
def test_what_proves_nothing_says_nothing(ras: str) -> None:
    culprit, message, said = found(ras, LATE)
    assert (culprit, said) == (1, None) and "NCCL" not in message


def test_where_two_nodes_hear_different_things_both_are_told() -> None:
    here = seen(answer(ALL[:2], [missing(2), missing(3)]))
    there = seen(answer(ALL[2:], [missing(0), missing(1)]))
    culprit, message, ras = found(here, LATE, second=there)
    assert culprit == 1 and "NCCL" not in message
    assert ras == (
        "asked on rank 0: NCCL's RAS has no answer from ranks 2-3; "
        "asked on rank 2: NCCL's RAS has no answer from ranks 0-1"
    )
