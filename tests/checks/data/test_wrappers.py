"""Loaders of Accelerate, torchdata, webdataset and Lightning, by the packages themselves, on two ranks: nothing is said
of those that are right, and each mistake is found."""

import sys
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.checks.data import sampler
from tests.checks.data import on_ranks
from tests.loaders.expected import WRAPPED, Wrong

SOUND = {
    "accelerate": (
        "accelerate", "accelerate_seeded", "accelerate_settings", "accelerate_dispatches",
        "accelerate_endless seconds=2",
    ),
    "torchdata": ("stateful",),
    "webdataset": ("web",),
    "pytorch_lightning": ("Module",),
}  # fmt: skip
"""By package; and their first words are those of its mistakes."""
WORDS = {"accelerate": "accelerate", "torchdata": "stateful", "webdataset": "web", "pytorch_lightning": "Shares"}
INDEX = ("accelerate", "accelerate_seeded", "accelerate_settings", "stateful", "Module")
FOLDERS = (Path(sys.prefix, "wrappers"),)

Ranks = list[dict[str, Any]]


def _name(case: str) -> str:
    return f"tests.loaders.{'modules' if case[0].isupper() else 'wrapped'}:{case}"


def _told(case: str, ranks: Ranks) -> list[dict[str, Any]]:
    assert [of_rank["raised"] for of_rank in ranks] == [None, None], case
    settings = dict(setting.split("=") for setting in case.split()[1:])
    facts = {of_rank["rank"]: of_rank["sampler"] for of_rank in ranks}
    findings = testing.judge(sampler, facts, settings={"data": _name(case).split()[0], **settings})
    return [finding for finding in findings if finding["severity"] != "info"]


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(package, marks=() if package in ("accelerate", "pytorch_lightning") else pytest.mark.more)
        for package in SOUND
    ],
)
def test_right_ones_pass_and_mistakes_are_found(package: str) -> None:
    """In one test for a package, since each starts the ranks."""
    if not (FOLDERS[0] / package).is_dir():
        pytest.skip(f"{package} is not in {FOLDERS[0]}: make .venv/.dev puts it there")
    wrong = {name: its for name, its in WRAPPED.items() if name.partition("_")[0] == WORDS[package]}
    cases = [*SOUND[package], *wrong]
    made = on_ranks.measured(2, *map(_name, cases), path=tuple(map(str, FOLDERS)), package=package)
    for case in SOUND[package]:
        ranks = made[_name(case)]
        assert [(case, finding["code"], finding["message"]) for finding in _told(case, ranks)] == []
        known = {reading["known_by"] for of_rank in ranks for reading in of_rank["sampler"]["readings"]}
        assert known if case not in INDEX else known == {"index"}, case
    assert wrong
    for case, expected in wrong.items():
        _is_found(case, expected, made[_name(case)])


def _is_found(case: str, wrong: Wrong, ranks: Ranks) -> None:
    told = _told(case, ranks)
    assert [(finding["severity"], finding["code"]) for finding in told] == [("fail", f"data.sampler.{wrong.code}")], (
        case
    )
    assert wrong.says in told[0]["message"]
    assert "rank" not in told[0]["where"]
