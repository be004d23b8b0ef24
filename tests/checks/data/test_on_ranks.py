"""Loaders as users have them, on real ranks: each mistake is found, named and nothing else is; of the sound ones
nothing is said. Those that are killed, or need the engine, are in tests/faults/data_sampler.py."""

import functools
import re
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.data import sampler, seeds
from tests.checks.data import on_ranks
from tests.faults import ELSEWHERE
from tests.loaders import broken, mistaken, sound, streams
from tests.loaders import seeds as seeding
from tests.loaders.expected import INFOS, LAST, NOBODY, ODD, ODD_SEED, ONE, SEEDS, WRONG, Wrong

WORLDS = (2, 3, 4)
SOUND = (
    "endless_sampler", "even", "padded", "tails_dropped", "in_workers", "for_validation", "of_tensors", "of_a_split",
    "fewer_samples_than_ranks", "augmented", "all_alike", "listed", "named", "rank_0_prints", "own_sampler",
    "own_batches", "evened_out", "by_tokens", "weighted", "subsets", "short_epochs", "own_part", "own_part_of_a_split",
    "own_part_of_own_files", "own_files",
    "stream", "stream_in_workers", "stream_of_batches", "augmented_stream", "equal_contents",
    "endless samples=400", "windows samples=400", "own_loader", "stateful", "scattered",
)  # fmt: skip
ON_FOUR = "in_groups data_parallel=2"
AT_THE_END = "broadcasts_more"
"""After which no other loader that needs the world group can be read."""
ALONE = ("alone", "alone_in_workers", "padded", "stream_in_workers", "own_loader", "weighted", "named")

FILES = ("tests/loaders/mistaken.py", "tests/loaders/broken.py")


def _case(name: str) -> str:
    module = next(entry for entry in (sound, streams, mistaken, broken) if hasattr(entry, name.split()[0]))
    return f"{module.__name__}:{name}"


def _sound(world: int) -> tuple[str, ...]:
    return (*(SOUND if world > 1 else ALONE), *((ON_FOUR,) if world == 4 else ()))


def _wrong(world: int) -> dict[str, Wrong]:
    return {f"{name} {wrong.settings}".strip(): wrong for name, wrong in WRONG.items() if wrong.least <= world > 1}


@functools.cache
def measured(world: int) -> dict[str, dict[int, dict[str, Any]]]:
    """By the case: what each rank left. One start of the ranks for all of a world."""
    infos = INFOS if world == 4 else ()
    last = (AT_THE_END,) if world > 1 else ()
    names = dict.fromkeys([*_sound(world), *_wrong(world), *infos, *last])
    made = on_ranks.measured(world, *map(_case, names))
    assert all(len(ranks) == world for ranks in made.values())
    assert not [of_rank["raised"] for ranks in made.values() for of_rank in ranks if of_rank["raised"]]
    return {name: {of_rank["rank"]: of_rank for of_rank in made[_case(name)]} for name in names}


def found(world: int, name: str) -> list[dict[str, Any]]:
    facts = {rank: of_rank["sampler"] for rank, of_rank in measured(world)[name].items()}
    settings = dict(setting.split("=") for setting in name.split()[1:])
    return testing.judge(sampler, facts, settings={"data": _case(name).split()[0], **settings})


def _of_seeds(world: int, name: str) -> list[dict[str, Any]]:
    facts = {rank: of_rank["seeds"] for rank, of_rank in measured(world)[name].items()}
    return testing.judge(seeds, facts, settings={"data": _case(name).split()[0]})


def _named(wrong: Wrong, world: int) -> int | None:
    return {NOBODY: None, ODD: 1 if world > 2 else None, ONE: 1, LAST: world - 1}[wrong.named]


def _above_info(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["severity"] != "info"]


def _told(findings: list[dict[str, Any]]) -> list[str]:
    """For the message of a failed assertion."""
    return [f"{finding['severity']} {finding['code']}: {finding['message']} {finding['where']}" for finding in findings]


def _is_told(wrong: Wrong, findings: list[dict[str, Any]], world: int) -> bool:
    if [(finding["severity"], finding["code"]) for finding in findings] != [
        (wrong.severity, f"data.sampler.{wrong.code}")
    ]:
        return False
    (finding,) = findings
    where = finding["where"]
    begins = f"{where.get('file')}:{where.get('line')} in " if ": " in wrong.says else f"{where.get('file')}:"
    has_line = where.get("file") in FILES and finding["message"].startswith(begins)
    return (
        where.get("rank") == _named(wrong, world)
        and wrong.says in finding["message"]
        and bool(finding["fix"])
        and (has_line or not wrong.file)
    )


@pytest.mark.parametrize("world", [1, *(pytest.param(n, marks=pytest.mark.more if n != 2 else ()) for n in WORLDS)])
def test_mistakes_are_found_and_nothing_else(world: int) -> None:
    """In one test, since each process of pytest-xdist that has one of several would start the ranks."""
    right = (*_sound(world), *((AT_THE_END,) if world > 1 else ()))
    said = {name: _above_info([*found(world, name), *_of_seeds(world, name)]) for name in right}
    blamed = [f"{name}: {line}" for name, findings in said.items() for line in _told(findings)]
    assert not blamed, "\n".join(["of sound loaders", *blamed])
    missed = []
    for name, wrong in _wrong(world).items():
        findings = _above_info(found(world, name))
        if not _is_told(wrong, findings, world):
            missed.append(f"{name}: expected {wrong}, found {_told(findings)}")
    assert not missed, "\n".join(missed)
    if world == 4:
        _summaries_are_right()
        _infos_are_told()


def _infos_are_told() -> None:
    for name, (slug, says) in INFOS.items():
        findings = found(4, name)
        assert ELSEWHERE[f"loader_{name}"].is_told_by(findings) and len(findings) == 1, _told(findings)
        assert findings[0]["code"] == f"data.sampler.{slug}" and says in findings[0]["message"], _told(findings)
    assert found(4, "rank_0_prints") == []


def summary(world: int, name: str) -> str:
    facts = {rank: of_rank["sampler"] for rank, of_rank in measured(world)[name].items()}
    job = Job("env", world, "gloo", (Node("node-0", 0, tuple(range(world))),))
    data = sampler.DATA.type(_case(name).split()[0])
    text = sampler.summarize(facts, Run(job, tuple(range(world)), {}, {sampler.DATA: data}))
    return re.sub(r"; [\d,]+( (or|to) [\d,]+)? per rank x [^;]*", "", text)  # the effective batch


EVEN = "24 samples, 4 ranks x 6, disjoint, complete"
RESHUFFLED = "reshuffled each epoch"
SUMMARIES = {
    "even": f"{EVEN}, {RESHUFFLED}",
    "padded": f"25 samples, 4 ranks x 7 (3 padded), disjoint, complete, {RESHUFFLED}",
    "tails_dropped": f"35 samples, 4 ranks x 5 (15 dropped), disjoint, {RESHUFFLED}",
    "for_validation": "25 samples, 4 ranks x 7 (3 padded), disjoint, complete",
    "in_workers": f"{EVEN}, {RESHUFFLED}",
    "endless_sampler": "24 samples again and again, 4 ranks, in an order of each rank's own",
    "own_part": f"{EVEN}, {RESHUFFLED}",
    "own_sampler": f"{EVEN}, {RESHUFFLED}",
    "named": f"train: {EVEN}, {RESHUFFLED}; val: 25 samples, 4 ranks x 7 (3 padded), disjoint, complete",
    "own_loader": f"24 samples by content, 4 ranks x 6, disjoint, {RESHUFFLED}",
}
NOT_PROVEN = {
    "augmented_stream": ("complete", "disjoint"),
    "windows samples=400": ("complete", "disjoint"),
    "weighted": ("complete", "disjoint"),
    "endless samples=400": ("complete", "disjoint"),
    "own_files": ("complete", "disjoint"),
    "own_part_of_a_split": ("complete",),
    "own_part_of_own_files": ("complete", "disjoint"),
    "short_epochs": ("complete",),
    "other_order_on_one": ("complete", "disjoint"),
    "other_order_everywhere": ("complete", "disjoint"),
    "shorter_on_one": ("complete", "disjoint"),
    "unsharded": ("complete", "disjoint"),
    "overlapping": ("disjoint",),
    "leaves_out": ("complete",),
}
"""Words that may not stand in the line, on 4 ranks."""


def _summaries_are_right() -> None:
    assert {name: summary(4, name) for name in SUMMARIES} == SUMMARIES
    lines = {name: summary(4, name) for name in NOT_PROVEN}
    assert {name: line for name, line in lines.items() if any(word in line for word in NOT_PROVEN[name])} == {}


# data.seeds

SEEDED = (
    "nothing_seeded", "all_seeded_alike", "seeded_by_rank", "workers_seeded_rightly", "own_generator_for_workers",
    "drawn_in_main", "drawn_by_index", "stream_seeded_by_rank",
)  # fmt: skip


@pytest.mark.more
def test_seeds_that_repeat_are_found_and_nothing_else() -> None:
    names = {name: f"{seeding.__name__}:{name}" for name in (*SEEDED, *SEEDS)}
    made = on_ranks.measured(3, *names.values())
    assert not [of_rank["raised"] for ranks in made.values() for of_rank in ranks if of_rank["raised"]]
    for name, case in names.items():
        told = testing.judge(
            seeds, {of_rank["rank"]: of_rank["seeds"] for of_rank in made[case]}, settings={"data": case}
        )
        asked = [finding for finding in told if f"info {finding['code'].rpartition('.')[2]}" in SEEDS.get(name, ())]
        findings = [*_above_info(told), *asked]
        if name in SEEDS:
            assert ELSEWHERE[f"seeds_{name}"].is_told_by(findings), (name, _told(told))
        else:
            assert findings == [], (name, _told(told))
        rank = 1 if name == ODD_SEED else None
        assert all(finding["where"].get("rank") == rank for finding in findings), (name, _told(told))
