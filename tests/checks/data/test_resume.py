"""data.resume on one rank of two: each mistake is found, and nothing is said of loaders that are right."""

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch  # noqa: F401 -- before the forks of all tests

from preflight import testing
from preflight.check import Context, Job, Level, Node, Skip, UserCode
from preflight.checks.data import resume
from preflight.checks.data.resume.compare import compare
from tests import forked
from tests.faults import data_resume

pytestmark = pytest.mark.process
WRAPPERS = Path(sys.prefix, "wrappers")


def nothing(*_: object) -> NoReturn:
    raise AssertionError("each rank is to be alone")


def facts(name: str, rank: int = 0, world: int = 2, **settings: str) -> resume.Facts:
    given = {getattr(resume, key.upper()): text for key, text in settings.items()}
    context = Context(
        check="data.resume", job=Job("env", world, "gloo", (Node("node-0", 0, tuple(range(world))),)), rank=rank,
        local_rank=rank, members=tuple(range(world)), environ={}, deadline_s=60, page=forked.NoPage(),
        make_group=nothing, make_part=nothing, make_store=nothing, level=Level.STANDARD,
        options={resume.DATA: UserCode.parse(name), **{option: option.type(text) for option, text in given.items()}},
    )  # fmt: skip
    return resume.measure(context)


def told(name: str, world: int = 2, **settings: str) -> tuple[list[dict[str, Any]], str]:
    """(findings, summary)."""
    by_rank = {rank: facts(name, rank, world, **settings) for rank in range(world)}
    found = testing.judge(resume, by_rank, settings={"data": name})
    return found, resume.summarize(by_rank, None)  # type: ignore[arg-type] # it does not look at the run


@pytest.mark.parametrize("row", [*data_resume.ALL, *data_resume.ELSEWHERE], ids=lambda row: row.name)
def test_a_mistake_is_found(row: Any) -> None:
    found, summary = told(f"tests.loaders.resumed:{row.name.removeprefix('resume_')}")
    assert row.is_told_by(found), found
    assert row.says in found[0]["message"]
    assert summary == "wrong, see its findings"


@pytest.mark.parametrize("name", ["by_sampler", "by_loader", "by_skipping", "torchs_default", "stream"])
def test_of_right_ones_nothing_is_said(name: str) -> None:
    found, summary = told(f"tests.loaders.resumed:{name}")
    assert found == []
    assert "the same 13 batches and the next epoch" in summary
    assert ("load_state_dict" in summary) == (name in ("by_sampler", "by_loader"))


SOUND = (
    "even", "padded", "in_workers", "for_validation", "of_tensors", "of_a_split", "augmented", "all_alike", "named",
    "own_sampler", "own_batches", "by_tokens", "weighted", "subsets", "short_epochs", "own_part", "own_files",
    "endless_sampler", "own_part_of_a_split", "broadcasts_more",
)  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_of_sound_loaders_nothing_is_said(name: str) -> None:
    found, _ = told(f"tests.loaders.sound:{name}", batches="1")
    assert found == []


STREAMS = (
    "stream", "stream_in_workers", "stream_of_batches", "equal_contents", "endless", "windows", "own_loader",
    "scattered",
)  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_of_sound_streams_nothing_is_said(name: str) -> None:
    found, _ = told(f"tests.loaders.streams:{name}", batches="1", seconds="1")
    assert found == []


def test_a_state_that_is_kept_and_not_used_is_found() -> None:
    """Its load_state_dict skips nothing."""
    (found,), _ = told("tests.loaders.streams:stateful", batches="1")
    assert found["code"] == "data.resume.epoch_reset"


def test_torchdatas_own(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (WRAPPERS / "torchdata").is_dir():
        pytest.skip(f"torchdata is not in {WRAPPERS}: make .venv/.dev puts it there")
    monkeypatch.syspath_prepend(str(WRAPPERS))
    found, summary = told("tests.loaders.wrapped:stateful", world=1)
    assert found == []
    assert "resumed by load_state_dict of the loader, twice" in summary


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tests.loaders.mistaken:returns_none", "a NoneType is not a loader"),
        ("tests.loaders.sound:fewer_samples_than_ranks", "the first epoch has no more than 3 batches"),
        ("tests.loaders.mistaken:raises_everywhere", "sampler option is mutually exclusive with shuffle"),
    ],
)
def test_what_cannot_be_looked_at_is_said(name: str, why: str) -> None:
    with pytest.raises(Skip, match=why):
        facts(name)


def test_random_content_is_not_called_another_order() -> None:
    (found,), summary = told("tests.loaders.resumed:noise")
    assert (found["severity"], found["code"], found["not_measured"]) == ("info", "data.resume.not_compared", True)
    assert "its content is random" in summary


def test_differences() -> None:
    """Of made-up orders."""
    order = [7, 3, 9, 1, 5, 8, 2]
    before, rest = order[:3], order[3:]

    def kind(got: list[int]) -> tuple[str, int, int, int]:
        found = compare(before, rest, got)
        assert found is not None
        return found["kind"], found["shift"], found["lost"], found["again"]

    assert compare(before, rest, rest) is None
    assert kind(order) == ("restarted", 3, 0, 3)
    assert kind(rest[2:]) == ("lost", 2, 2, 0)
    assert kind(order[2:]) == ("repeated", 1, 0, 1)
    assert kind([]) == ("empty", 4, 4, 0)
    assert kind([8, 5, 1, 2]) == ("order", 0, 0, 0)
    assert kind([7, 5, 1, 2]) == ("order", 0, 1, 1)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    facts("tests.loaders.resumed:by_sampler")
    assert os.listdir(tmp_path) == []
