"""A fix that sends the reader to another check of the run says what that check has found."""

import re
from dataclasses import replace
from typing import Any

import pytest

from preflight.core.finding import Reported
from preflight.core.outcome import Outcome
from preflight.planning import registry
from preflight.results import already_measured
from preflight.results.result import Result
from tests.made import finding, job, made_report, measured, result

FIX, CLEARED = "Look for the slow link.", "No link is slower: see the ranks."
SEE = ["comm.rails", "gpu"]
TWO_NODES = job(2, 2)
ALL = measured(0, 1, 2, 3)


def fix_of(*others: Result, see: list[str] | None = None, cleared: str = CLEARED, **where: Any) -> str:
    """The fix of a finding, beside the results of these checks."""
    found = replace(finding("warn", fix=FIX, **where), see=SEE if see is None else see, cleared=cleared)
    own = result(found, check="comm.all_reduce", outcomes=ALL)
    resolved = already_measured.resolved([own, *others], TWO_NODES)
    return resolved[0].findings[0].fix


def rails(*found: Any, summary: str = "4 links: 1.2 GB/s median", **more: Any) -> Result:
    return result(*found, check="comm.rails", summary=summary, **{"outcomes": ALL, **more})


def health(*found: Any, **more: Any) -> Result:
    return result(*found, check="gpu.health", **{"outcomes": ALL, **more})


def test_what_the_run_has_cleared_is_not_advised() -> None:
    said = "comm.rails (4 links: 1.2 GB/s median) found nothing. No link is slower: see the ranks."
    assert fix_of(rails()) == said
    assert fix_of(rails(), health()).startswith(
        "comm.rails (4 links: 1.2 GB/s median) and gpu.health found nothing. No "
    )


def test_a_cause_that_the_run_has_found_comes_first() -> None:
    slow = finding("warn", code="comm.rails.slow_node", node="node-1")
    fix = fix_of(rails(slow), health())
    assert fix == f"This run has found comm.rails.slow_node (node-1), a possible cause: see to that first. Else: {FIX}"


NOT_MEASURED = {
    "not run": [],
    "skipped": [rails(outcomes={}, skipped="one node is left")],
    "skipped on a rank": [rails(outcomes={**ALL, 3: Outcome("skipped", reason="no")}, skipped="rank 3: no")],
    "crashed on a rank": [rails(outcomes={**ALL, 3: Outcome("crashed")})],
    "could not be judged": [rails(finding("error", code="comm.rails.raised"))],
    "no check that it names": [result(check="net.mesh", outcomes=ALL)],
}  # fmt: skip


@pytest.mark.parametrize("why", NOT_MEASURED)
def test_what_was_not_measured_changes_nothing(why: str) -> None:
    assert fix_of(*NOT_MEASURED[why]) == FIX


def test_another_check_alone_does_not_clear_what_the_first_one_measures() -> None:
    assert fix_of(health()) == f"{FIX} (gpu.health found nothing in this run.)"


@pytest.mark.parametrize(
    ("culprit", "cause", "counts"),
    [
        ({"node": "node-1"}, {"node": "node-1", "gpu": 3}, True),
        ({"rank": 3}, {"node": "node-1"}, True),
        ({"rank": 3}, {"rank": 3}, True),
        ({"rank": 3}, {"rank": 2}, False),
        ({"rank": 3}, {"node": "node-0"}, False),
        ({"node": "node-0", "peer_node": "node-1"}, {"node": "node-1"}, True),
        ({"node": "node-0"}, {"node": "node-1"}, False),
        ({}, {"node": "node-1"}, True),
        ({"rank": 0}, {}, True),
    ],
)
def test_only_a_cause_at_the_culprits_place_counts(culprit: Any, cause: Any, counts: bool) -> None:
    fix = fix_of(
        health(finding("warn", code="gpu.health.throttled", **cause)), see=["gpu.health"], cleared="", **culprit
    )
    assert fix.startswith("This run has found gpu.health.throttled") is counts
    assert fix.endswith("(gpu.health found nothing there in this run.)") is not counts


def test_infos_and_waived_findings_are_no_causes() -> None:
    waived = replace(finding("warn", code="comm.rails.slow_node"), waived={"until": "2027-01-01", "reason": "known"})
    for harmless in (waived, finding("info", code="comm.rails.slow_once")):
        assert CLEARED in fix_of(rails(harmless))


def test_no_check_is_its_own_witness() -> None:
    assert fix_of(see=["comm.all_reduce", "comm"]) == FIX


def test_neither_severity_nor_culprit_changes_and_the_report_is_valid() -> None:
    found = replace(finding("warn", fix=FIX, rank=3), see=SEE, cleared=CLEARED)
    report = made_report(result(found, check="comm.all_reduce", outcomes=ALL), rails())
    (told,) = report.checks[0].findings
    assert (told.severity, told.where) == ("warn", {"rank": 3}) and CLEARED in told.fix
    assert told.to_json().keys().isdisjoint({"see", "cleared"})


# All fixes


CODES = [
    (f"{id_}.{slug}", code)
    for id_, source in registry.sources().items()
    for slug, code in registry.load(source).codes.items()
]
NAMED = re.compile(
    r"\b(?:" + "|".join(map(re.escape, registry.BUILT_IN)) + r")\b(?![.=])|--only (comm|net|gpu|env)\b(?!\.)"
)


@pytest.mark.parametrize("family", sorted({id_.partition(".")[0] for id_ in registry.BUILT_IN}))
def test_each_fix_that_names_a_check_knows_what_it_found(family: str) -> None:
    for id_, code in CODES:
        own = id_.rpartition(".")[0]
        if own.startswith(f"{family}."):
            named = {match[1] or match[0] for match in NAMED.finditer(code.fix)} - {own, family}
            of_family = {name for name in named if name.partition(".")[0] in code.see}
            assert named <= {*code.see, *of_family}, f"{id_}: {code.fix}"


def test_each_check_that_is_seen_exists() -> None:
    known = {*registry.BUILT_IN, *(id_.partition(".")[0] for id_ in registry.BUILT_IN)}
    for id_, code in CODES:
        assert known >= {*code.see} and id_.rpartition(".")[0] not in code.see[:1], id_
        assert not code.cleared or code.see, id_


def test_a_job_of_16384_ranks_with_a_finding_on_each_is_resolved_in_linear_steps() -> None:
    """Each finding is held against those of its own node, not of all: 2,048 nodes here, with a cause on each."""
    nodes = [f"node-{number}" for number in range(2048)]
    big = job(*[8] * len(nodes))
    found = [replace(finding("warn", fix=FIX, node=node), see=["gpu.health"], cleared="") for node in nodes]
    causes = [
        _Counted(code="gpu.health.hot", severity="warn", message="", fix="", where={"node": node}) for node in nodes
    ]
    own = result(*found, check="comm.rails", outcomes=measured(*range(big.world_size)))
    resolved = already_measured.resolved([own, health(*causes)], big)
    assert all(f"gpu.health.hot ({node})" in it.fix for node, it in zip(nodes, resolved[0].findings, strict=True))
    assert _Counted.asked < 10 * len(nodes)


class _Counted(Reported):
    """Counts how often it is looked at."""

    asked = 0

    @property
    def counts(self) -> bool:
        _Counted.asked += 1
        return True
