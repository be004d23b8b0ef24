"""Our own reports as candidates, and the codes by which causes are seen live."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.core import finding
from preflight.core.finding import RUN_SLUGS, Reported
from preflight.errors import UsageError
from preflight.explain.artifacts import reports
from preflight.explain.candidates import Candidate, from_artifact
from preflight.failure_book.book import book
from preflight.planning import registry
from preflight.rendezvous import codes
from preflight.results import report_files
from tests import made

CAUSES = book().causes


def read(folder: Path, *findings: Reported) -> list[Candidate]:
    path = folder / "report.json"
    path.write_text(report_files.as_text(made.made_report(made.result(*findings))))
    return reports.find_candidates(str(path), CAUSES)


def test_a_finding_that_means_a_cause_is_a_candidate_of_it(tmp_path: Path) -> None:
    seen = made.finding("fail", "has 3 uncorrected errors, expected 0", code="gpu.health.uncorrected", noticed_by="0-3",
                        node="node-1", gpu=4, fix="return the GPU")  # fmt: skip
    (candidate,) = read(tmp_path, seen)
    assert candidate == from_artifact(
        slug="gpu_hw_fault", message="preflight's check found: has 3 uncorrected errors, expected 0",
        where={"node": "node-1", "gpu": 4}, ranks=(0, 1, 2, 3), file=str(tmp_path / "report.json"), weight=80,
        quote="gpu.health.uncorrected: has 3 uncorrected errors, expected 0", fix="return the GPU",
        code="gpu.health.uncorrected",
    )  # fmt: skip


@pytest.mark.parametrize(("severity", "weight"), [("fail", 80), ("error", 60), ("warn", 30), ("info", None)])
def test_what_is_worse_weighs_more(tmp_path: Path, severity: str, weight: int | None) -> None:
    found = read(tmp_path, made.finding(severity, code="node.limits.shm"))
    assert [(candidate.slug, candidate.weight) for candidate in found] == (
        [("shm_exhausted", weight)] if weight else []
    )


def test_what_was_waived_does_not_count(tmp_path: Path) -> None:
    waived = replace(made.finding(code="node.limits.shm"), waived={"until": "2099-01-01", "reason": "known"})
    assert read(tmp_path, waived) == []
    ended = replace(made.finding(code="node.limits.shm"), waiver_ended={"until": "2020-01-01", "reason": "known"})
    assert [candidate.slug for candidate in read(tmp_path, ended)] == ["shm_exhausted"]


def test_a_finding_that_means_no_cause_keeps_its_code(tmp_path: Path) -> None:
    found = read(tmp_path, made.finding(code="node.storage.slow", node="node-0"), made.finding(code="plugin.mine.bad"))
    assert [(candidate.slug, candidate.code, candidate.weight) for candidate in found] == [
        ("node.storage.slow", "node.storage.slow", 80), ("plugin.mine.bad", "plugin.mine.bad", 80),
    ]  # fmt: skip


def test_a_failure_does_not_become_a_slower_path(tmp_path: Path) -> None:
    codes_of = ("fail", "gpu.pcie.width"), ("warn", "gpu.pcie.width")
    found = read(tmp_path, *(made.finding(severity, code=code) for severity, code in codes_of))
    assert [(candidate.slug, candidate.code) for candidate in found] == [
        ("gpu.pcie.width", "gpu.pcie.width"),
        ("degraded_path", "gpu.pcie.width"),
    ]


def test_a_finding_that_may_mean_two_causes_is_first_of_all_the_likelier(tmp_path: Path) -> None:
    found = read(tmp_path, made.finding(code="comm.init.fabric_manager", noticed_by="1"))
    assert [(candidate.slug, candidate.weight, tuple(sorted(candidate.ranks))) for candidate in found] == [
        ("fabric_manager", 80, (1,)), ("nvls_issue", reports.SECOND, ()),
    ]  # fmt: skip


def test_equal_findings_of_many_tell_whose_they_are(tmp_path: Path) -> None:
    of_ranks = replace(made.finding(code="node.limits.shm"), ranks="0-199", nodes=["node-0", "node-1"])
    of_nodes = replace(made.finding(code="node.limits.shm"), nodes=[f"node-{number}" for number in range(120)])
    assert [candidate.message for candidate in read(tmp_path, of_ranks, of_nodes)] == [
        "preflight's check found: ranks 0-199: it is 1, expected 2",
        "preflight's check found: node-0, node-1, node-2 and 117 more: it is 1, expected 2",
    ]


def test_what_explain_has_told_before_is_taken_as_it_is(tmp_path: Path) -> None:
    def before(severity: str, confidence: str, slug: str = "gpu_oom") -> Reported:
        evidence = {"confidence": confidence, "lines": [], "also": []}
        return made.finding(severity, "out of memory", code=f"explain.{slug}", evidence=evidence, rank=3)

    found = read(tmp_path, before("fail", "high"), before("fail", "low"), before("warn", "high"),
                 before("info", "high", "remote_peer_failure"), before("fail", "low", "in_step"),
                 before("error", "high", "unreadable"))  # fmt: skip
    assert [(candidate.slug, candidate.weight, candidate.message, candidate.code) for candidate in found] == [
        ("gpu_oom", 80, "out of memory", "explain.gpu_oom"), ("gpu_oom", 40, "out of memory", "explain.gpu_oom"),
        ("explain.in_step", 40, "out of memory", "explain.in_step"),
        ("gpu_oom", 30, "out of memory", "explain.gpu_oom"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read as JSON"),
        ("[]", "is not a preflight report"), ('{"schema": 2, "checks": []}', "of schema 1"),
        ('{"schema": 1, "checks": 3}', "is not a complete report"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"schema": 1, "checks": [{"findings": [{"severity": "fail"}]}]}', "is not a complete report"),
        ('{"schema": 1, "checks": [{"findings": ["fail"]}]}', "is not a complete report"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as raised:
        reports.find_candidates(str(path), CAUSES)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_random_changes_of_a_report_raise_nothing_else(tmp_path: Path) -> None:
    chance = random.Random(9)
    path = tmp_path / "report.json"
    read(tmp_path, made.finding(code="node.limits.shm", noticed_by="0-3", rank=1), made.finding(code="gpu.pcie.errors"))
    sound = json.loads(path.read_text())
    for _ in range(300):
        changed = json.loads(json.dumps(sound))
        (check,) = changed["checks"]
        finding = chance.choice(check["findings"])
        at = chance.choice([changed, check, finding, finding, finding, finding["where"]])
        at[chance.choice([*at, "rank"])] = chance.choice([None, 1, "x", [], {}, [{}], {"a": []}, 1e400, "0-9999999"])
        path.write_text(json.dumps(changed))
        try:
            for candidate in reports.find_candidates(str(path), CAUSES):
                hash((candidate.slug, candidate.message, candidate.ranks, tuple(candidate.where.items())))
        except UsageError as error:
            assert "\n" not in str(error)


# The causes' own lists


def live_codes() -> set[str]:
    """All that a check, a run or a rendezvous may find."""
    sources = registry.sources()
    loaded = {name: registry.load(sources[name]) for name in registry.BUILT_IN}
    own = {f"{name}.{slug}" for name, check in loaded.items() for slug in (*check.codes, *finding.OWN_SLUGS)}
    run = {f"preflight.run.{slug}" for slug in RUN_SLUGS}
    return own | run | {f"{codes.FAMILY}.{slug}" for slug in codes.by_slug()}


def test_causes_are_seen_by_codes_that_there_are() -> None:
    known = live_codes()
    families = {f"{code.rpartition('.')[0]}.*" for code in known}
    for slug, cause in CAUSES.items():
        assert len(set(cause.seen_by)) == len(cause.seen_by), slug
        assert set(cause.seen_by) <= known | families, f"{slug}: {set(cause.seen_by) - known - families}"
