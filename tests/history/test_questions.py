"""What a history of made-up runs answers: who fails again and again, what came back, when a figure became worse."""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from preflight.history import archive, questions
from preflight.history.run_entry import RunEntry
from preflight.history.steps import steps
from tests.history import made
from tests.history.made import entry, finding

XID = "node.kernel.xid"
KEEP = 36500.0


def _asked(path: Path, entries: Iterable[RunEntry]) -> dict[str, Any]:
    for each in entries:
        archive.write(str(path), each, KEEP)
    with archive.reading(str(path)) as database:
        return questions.answers(database).to_json()


def test_a_node_that_fails_again_and_again_stands_first_and_one_that_failed_once_does_not(tmp_path: Path) -> None:
    bad = {3: "node-1", 7: "node-1", 8: "node-1", 15: "node-1", 9: "node-0"}
    found = _asked(
        tmp_path / "h", (entry(n, findings=[finding("gpu.health.xid", bad[n])] if n in bad else []) for n in range(20))
    )
    (node,) = found["failing"]
    assert (node["node"], node["failed"], node["runs"], node["spells"]) == ("node-1", 4, 20, 3)
    assert node["codes"] == ["gpu.health.xid"] and 0.07 < node["score"] < 0.09
    assert found["runs"] == 20 and found["steps"] == []


def test_the_score_trusts_many_runs_more_than_few() -> None:
    assert questions.score(1, 1) < questions.score(10, 20) < questions.score(100, 200) < 0.5
    assert questions.score(0, 50) < 1e-9


def test_a_failure_on_all_runs_is_one_spell_and_older_ones_do_not_count(tmp_path: Path) -> None:
    old = [entry(n, findings=[finding("gpu.health.xid", "node-0")] * (n % 2), hours=n) for n in range(6)]
    new = [entry(6 + n, findings=[finding("gpu.health.xid", "node-1")], hours=24 * 40 + n) for n in range(6)]
    assert _asked(tmp_path / "h", [*old, *new])["failing"] == []


def test_a_card_that_was_repaired_and_came_back_is_known_by_its_uuid_in_another_node(tmp_path: Path) -> None:
    def of(number: int) -> RunEntry:
        node = "node-0" if number < 4 else "node-1"
        bad = [finding("gpu.health.ecc", node, gpu="GPU-1")] if number in (2, 3, 9) else []
        return entry(number, findings=bad, places={"GPU-1": node})

    found = _asked(tmp_path / "h", map(of, range(10)))
    (card,) = found["came_back"]
    assert (card["unit"], card["node"], card["code"], card["found"]) == ("GPU-1", "node-1", "gpu.health.ecc", 3)
    assert found["repaired"] == [] and card["first"] == made.started(2) and card["last"] == made.started(9)
    later = _asked(tmp_path / "h", [entry(n, places={"GPU-1": "node-1"}) for n in range(10, 13)])
    assert later["came_back"] == [] and [spell["unit"] for spell in later["repaired"]] == ["GPU-1"]


def test_a_run_in_which_the_check_was_skipped_is_no_repair(tmp_path: Path) -> None:
    runs = [entry(n, findings=[finding("gpu.health.ecc", "node-0")] if n in (0, 9) else []) for n in range(10)]
    skipped = [replace(each, checks={**each.checks, "gpu.health": "skip"}) for each in runs[1:9]]
    assert _asked(tmp_path / "h", [runs[0], *skipped, runs[9]])["came_back"] == []


def test_a_step_down_of_5_percent_in_noise_of_2_is_found_with_what_changed_then(tmp_path: Path) -> None:
    noise = random.Random(7)
    runs = [
        entry(
            n,
            busbw=noise.gauss(400.0, 8.0) * (0.95 if n >= 60 else 1.0),
            software=dict.fromkeys(("node-0", "node-1"), "2.9" if n < 60 else "2.10"),
        )
        for n in range(100)
    ]
    (step,) = _asked(tmp_path / "h", runs)["steps"]
    assert (step["check"], step["name"], step["unit"]) == (*made.BUSBW[:2], "")
    assert 0.93 < step["ratio"] < 0.97 and not step["over"]
    assert made.started(57) <= step["since"] <= made.started(63)
    if step["since"] == made.started(60):
        assert step["changed"] == ["software torch: 2.9 to 2.10 on node-0 and node-1"]


def test_a_step_of_one_card_names_it(tmp_path: Path) -> None:
    places = {"GPU-1": "node-0", "GPU-2": "node-1"}
    gemm = [{"GPU-1": 700.0 + n % 3, "GPU-2": (700.0 if n < 30 else 500.0) + n % 3} for n in range(60)]
    runs = [entry(n, places=places, gemm=gemm[n], software={"node-0": f"1.{n}", "node-1": "2.9" if n < 30 else "2.10"})
            for n in range(60)]  # fmt: skip
    (step,) = _asked(tmp_path / "h", runs)["steps"]
    assert (step["unit"], step["since"]) == ("GPU-2", made.started(30))
    assert step["changed"] == ["software torch: 2.9 to 2.10 on node-1"], "what changed on its own node only"


def test_no_step_is_found_in_100_series_without_one() -> None:
    noise = random.Random(11)
    for number in range(100):
        series = [noise.gauss(100.0, 2.0) for _ in range(15 + 2 * number)]
        series[number % len(series)] /= 2  # one bad run
        assert steps(series) == []


def test_a_step_that_is_over_and_one_up_are_told_apart(tmp_path: Path) -> None:
    values = [100.0 + n % 2 for n in range(20)]
    values += [80.0 + n % 2 for n in range(20)] + values
    assert [round(step.after / step.before, 1) for step in steps(values)] == [0.8, 1.2]
    (step,) = _asked(tmp_path / "h", (entry(n, busbw=value) for n, value in enumerate(values)))["steps"]
    assert step["over"] and step["since"] == made.started(20)


def test_equal_values_and_short_series_have_no_step() -> None:
    assert steps([]) == steps([1.0]) == steps([0.0] * 40) == steps([5.0] * 40) == []
    assert [step.at for step in steps([100.0] * 20 + [95.0] * 20)] == [20]


def test_an_empty_history_answers(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    assert _asked(tmp_path / "h", [])["runs"] == 0
