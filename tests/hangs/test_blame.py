from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from preflight.check import Scope
from preflight.core import rank_ranges
from preflight.core.outcome import Outcome
from preflight.hangs import blame
from tests import made

JOB = made.job(2, 2, 2)


def in_(
    number: int = 3, operation: str = "all_reduce", shape: str = "64 MiB", *, inside: bool = True
) -> dict[str, Any]:
    return {"operation": operation, "shape": shape, "number": number, "inside": inside}


MEASURED = Outcome("measured", 1.0)
SKIPPED = Outcome("skipped", 0.1, reason="no such library")
HEARD = Outcome("raised", 6.0, reason="DistBackendError: Connection closed by peer", in_collective=True,
                collective=in_())  # fmt: skip
WAITS = Outcome("timed_out", 8.0, state="S", collective=in_())
ABORTED_INSIDE = Outcome("timed_out", 5.0, state="S", aborted=True, reason="rank 1 could not go on", collective=in_())
WATCHDOG = Outcome("crashed", 7.0, reason="ended by SIGABRT", signal="SIGABRT", collective=in_())
DRAGGED = Outcome("lost", reason="was sent SIGTERM", aborted=True)
VICTIMS = {"heard": HEARD, "waits": WAITS, "aborted": ABORTED_INSIDE, "watchdog": WATCHDOG, "dragged": DRAGGED}

SEGFAULT = Outcome("crashed", 0.5, reason="ended by SIGSEGV", signal="SIGSEGV")
EXITED = Outcome("crashed", 0.5, reason="ended with exit status 7")
SILENT = Outcome("lost", reason="no sign of life for 13 s, expected one every second")
STOPPED = Outcome("timed_out", 8.0, state="T", collective=in_())
TRACED = Outcome("timed_out", 8.0, state="t", collective=in_())
IN_KERNEL = Outcome("timed_out", 8.0, state="D", reason="nfs_wait", collective=in_())
ZOMBIE = Outcome("timed_out", 8.0, state="Z", collective=in_())
RAISED_ALONE = Outcome("raised", 0.5, reason="ValueError: on purpose", collective=in_(2, inside=False))
HANGS_OUTSIDE = Outcome("timed_out", 8.0, state="S", collective=in_(2, inside=False))
NEVER_ENTERED = Outcome("timed_out", 8.0, state="S")
CULPRITS = {
    "segfault": (SEGFAULT, "fail plugin.made.crashed"),
    "exited": (EXITED, "fail plugin.made.crashed"),
    "silent": (SILENT, "fail plugin.made.lost"),
    "stopped": (STOPPED, "fail plugin.made.timed_out"),
    "traced": (TRACED, "fail plugin.made.timed_out"),
    "in the kernel": (IN_KERNEL, "fail plugin.made.timed_out"),
    "zombie": (ZOMBIE, "fail plugin.made.timed_out"),
    "raised alone": (RAISED_ALONE, "error plugin.made.raised"),
    "hangs outside": (HANGS_OUTSIDE, "fail plugin.made.timed_out"),
    "never entered": (NEVER_ENTERED, "fail plugin.made.timed_out"),
    "stood aside": (SKIPPED, "error plugin.made.raised"),
}


def found(outcomes: Mapping[int, Outcome], scope: Scope = Scope.WORLD) -> list[dict[str, Any]]:
    """The findings, each valid by the report's schema."""
    listed = blame.findings("plugin.made", scope, outcomes, JOB)
    made.made_report(made.result(*listed, outcomes=dict(outcomes)), on=JOB)
    return [finding.to_json() for finding in listed]


def told(outcomes: Mapping[int, Outcome], scope: Scope = Scope.WORLD) -> list[tuple[str, Any, str]]:
    """(severity and code, culprit's rank, who noticed) of every finding."""
    return [(f"{f['severity']} {f['code']}", f["where"].get("rank"), f["noticed_by"]) for f in found(outcomes, scope)]


@pytest.mark.parametrize("scope", Scope)
def test_where_all_is_sound_nobody_is_blamed(scope: Scope) -> None:
    assert told({0: MEASURED, 1: MEASURED}, scope) == []
    assert told({0: MEASURED, 1: SKIPPED}, scope) == []


# Each rank alone


@pytest.mark.parametrize("scope", [Scope.RANK, Scope.NODE])
def test_alone_every_rank_stands_for_itself(scope: Scope) -> None:
    outcomes = {0: MEASURED, 1: HANGS_OUTSIDE, 2: SEGFAULT, 3: RAISED_ALONE}
    assert told(outcomes, scope) == [
        ("fail plugin.made.timed_out", 1, ""),
        ("fail plugin.made.crashed", 2, ""),
        ("error plugin.made.raised", 3, ""),
    ]


def test_alone_a_skip_is_no_fault() -> None:
    assert told({0: SKIPPED, 1: SEGFAULT}, Scope.RANK) == [("fail plugin.made.crashed", 1, "")]


def test_alone_a_rank_lost_with_its_node_is_a_victim() -> None:
    assert told({0: MEASURED, 2: SILENT, 3: DRAGGED}, Scope.RANK) == [("fail plugin.made.lost", 2, "3")]


def test_bad_facts_are_the_checks_fault() -> None:
    bad = Outcome("raised", reason="facts['a'] is nan: JSON has no such number", slug="bad_facts")
    assert told({0: MEASURED, 1: bad}, Scope.RANK) == [("error plugin.made.bad_facts", 1, "")]
    (finding,) = found({1: bad}, Scope.RANK)
    assert finding["message"] == "facts['a'] is nan: JSON has no such number"
    assert finding["fix"] == blame.FIXES["bad_facts"]


# All together


@pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS)
@pytest.mark.parametrize(("culprit", "code"), CULPRITS.values(), ids=CULPRITS)
def test_the_silent_rank_explains_the_loud_ones(culprit: Outcome, code: str, victim: Outcome) -> None:
    outcomes = {0: victim, 1: culprit, 2: victim, 3: victim}
    assert told(outcomes) == [(code, 1, "0,2-3")]


def test_the_sound_ranks_of_a_bad_check_noticed_nothing() -> None:
    assert told({0: MEASURED, 1: SEGFAULT, 2: HEARD, 3: MEASURED}) == [("fail plugin.made.crashed", 1, "2")]


def test_several_culprits_are_all_named() -> None:
    outcomes = {0: HEARD, 1: SEGFAULT, 2: STOPPED, 3: WATCHDOG}
    assert told(outcomes) == [("fail plugin.made.crashed", 1, "0,3"), ("fail plugin.made.timed_out", 2, "0,3")]


def test_a_dead_rank_is_a_surer_sign_than_one_that_waits_elsewhere() -> None:
    outcomes = {0: HEARD, 1: SEGFAULT, 2: HANGS_OUTSIDE, 3: RAISED_ALONE}
    assert told(outcomes) == [("fail plugin.made.crashed", 1, "0,2-3")]


def test_a_watchdogs_sigabrt_alone_stands_for_itself() -> None:
    assert told({0: MEASURED, 1: WATCHDOG}) == [("fail plugin.made.crashed", 1, "")]


def test_an_exception_out_of_a_collective_that_nobody_explains_stands_for_itself() -> None:
    assert told({0: MEASURED, 1: HEARD, 2: MEASURED}) == [("fail plugin.made.raised", 1, "")]


def test_a_lost_node_that_nobody_explains_stands_for_itself() -> None:
    assert told({0: MEASURED, 2: DRAGGED, 3: DRAGGED}) == [
        ("fail plugin.made.lost", 2, ""),
        ("fail plugin.made.lost", 3, ""),
    ]


# Out of step


@pytest.mark.parametrize(
    ("kind", "code"),
    [("timed_out", "fail plugin.made.timed_out"), ("raised", "fail plugin.made.raised")],
)
def test_the_rank_that_is_behind_is_the_culprit(kind: str, code: str) -> None:
    def at(number: int) -> Outcome:
        return Outcome(kind, 8.0, reason="Timeout", in_collective=kind == "raised", collective=in_(number))

    outcomes = {0: at(3), 1: at(2), 2: at(3), 3: at(3)}
    assert told(outcomes) == [(code, 1, "0,2-3")]
    assert found(outcomes)[0]["message"] == (
        "was inside all_reduce 64 MiB #2 while ranks 0,2-3 waited inside all_reduce 64 MiB #3"
    )


def test_where_one_is_ahead_nobody_is_named() -> None:
    """It may have left a collective out, or be done with it: the others may not be blamed for waiting."""
    outcomes = {0: at_number(3), 1: at_number(4), 2: at_number(3)}
    (finding,) = found(outcomes)
    assert (finding["where"], finding["noticed_by"]) == ({}, "0-2")
    assert "ranks 0,2 inside all_reduce 64 MiB #3, rank 1 inside all_reduce 64 MiB #4" in finding["message"]


def at_number(number: int) -> Outcome:
    return Outcome("timed_out", 8.0, collective=in_(number))


@pytest.mark.parametrize(
    ("other", "called"),
    [
        (in_(operation="barrier", shape=""), "barrier #3"),
        (in_(shape="1 KiB"), "all_reduce 1 KiB #3"),
    ],
    ids=["operation", "shape"],
)
def test_the_few_in_another_collective_are_the_culprits(other: dict[str, Any], called: str) -> None:
    strange = Outcome("timed_out", 8.0, state="S", collective=other)
    outcomes = {0: WAITS, 1: WAITS, 2: strange, 3: WAITS}
    assert told(outcomes) == [("fail plugin.made.desync", 2, "0-1,3")]
    expected = f"was inside {called} while ranks 0-1,3 waited inside all_reduce 64 MiB #3"
    assert found(outcomes)[0]["message"] == expected


def test_a_mark_that_was_left_says_nothing_of_where_a_rank_waits() -> None:
    """Parts of the world are made in unlike sizes; and what a check does then, it may not mark."""

    def left(shape: str) -> Outcome:
        return Outcome("raised", 3.0, reason="x", in_collective=True, collective=in_(2, "made", shape, inside=False))

    outcomes = {0: left("3 of 4 ranks"), 1: left("3 of 4 ranks"), 2: left("3 of 4 ranks"), 3: left("1 of 4 ranks")}
    (finding,) = found(outcomes)
    assert (finding["where"], finding["noticed_by"]) == ({}, "0-3")
    assert finding["message"].startswith("4 of 4 ranks failed inside a collective (x)")


NO_CULPRIT = {
    "all in one": (dict.fromkeys(range(4), WAITS), "fail plugin.made.timed_out", "4 of 4"),
    "all heard": (dict.fromkeys(range(4), HEARD), "fail plugin.made.raised", "4 of 4"),
    "some heard, some wait": ({0: HEARD, 1: WAITS, 2: HEARD}, "fail plugin.made.timed_out", "3 of 3"),
    "a tie": (
        {0: WAITS, 1: WAITS, **{r: Outcome("timed_out", 8.0, collective=in_(operation="barrier")) for r in (2, 3)}},
        "fail plugin.made.timed_out",
        "4 of 4",
    ),
    "three ways": (
        {r: Outcome("timed_out", 8.0, collective=in_(shape=shape)) for r, shape in enumerate("abbccc")},
        "fail plugin.made.timed_out",
        "6 of 6",
    ),
    "one came out": ({0: MEASURED, 1: WAITS, 2: WAITS}, "fail plugin.made.timed_out", "2 of 3"),
}


@pytest.mark.parametrize(("outcomes", "code", "failed"), NO_CULPRIT.values(), ids=NO_CULPRIT)
def test_where_nothing_tells_who_it_is_nobody_is_named(outcomes: dict[int, Outcome], code: str, failed: str) -> None:
    (finding,) = found(outcomes)
    assert f"{finding['severity']} {finding['code']}" == code
    assert finding["where"] == {}
    assert finding["noticed_by"] == rank_ranges.to_text(r for r, o in outcomes.items() if not o.sound)
    assert finding["message"].startswith(f"{failed} ranks failed") and "inside all_reduce" in finding["message"]
    assert finding["message"].endswith("expected all to leave it; no rank is known to be the cause")


# What is said


STACK = """Timeout (0:00:06)!
Thread 0x00007f0000000001 (most recent call first):
  File "/opt/lib/threading.py", line 320 in wait
  File "/opt/lib/threading.py", line 1012 in _bootstrap

Current thread 0x00007f0000000002 (most recent call first):
  File "/site/checks/data.py", line 12 in load
  File "/site/checks/data.py", line 30 in measure
"""


def test_a_hang_is_told_with_the_main_threads_place() -> None:
    assert blame.waits_at(STACK) == " at data.py line 12 in load"


@pytest.mark.parametrize("stack", ["", "no stack\n", "Thread 0x1 (most recent call first):\n  <no Python frame>\n"])
def test_without_a_stack_no_place_is_told(stack: str) -> None:
    assert blame.waits_at(stack) == ""


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome("timed_out", 8.04, state="S"), "measure() did not end within 8.0 s"),
        (Outcome("timed_out", 90.4, state="S", stack=STACK, doing="loading file=a"),
         "measure() did not end within 90 s at data.py line 12 in load; last doing: loading file=a"),
        (STOPPED, "measure() did not end within 8.0 s: the process is stopped; inside all_reduce 64 MiB #3"),
        (ZOMBIE, "measure() did not end within 8.0 s: the process is a zombie; inside all_reduce 64 MiB #3"),
        (Outcome("timed_out", 8.0, state="D", reason="nfs_wait"),
         "measure() did not end within 8.0 s: it is in uninterruptible sleep (nfs_wait)"),
        (Outcome("timed_out", 8.0, state="D"),
         "measure() did not end within 8.0 s: it is in uninterruptible sleep (the kernel does not say where)"),
        (Outcome("timed_out", 3.5, aborted=True, reason="rank 1 could not go on"),
         "measure() was ended after 3.5 s: rank 1 could not go on"),
        (Outcome("crashed", reason="ended by SIGSEGV", doing="step=3"),
         "the worker ended by SIGSEGV, expected it to live; last doing: step=3"),
        (Outcome("lost"), "the rank stopped responding"),
        (SILENT, "no sign of life for 13 s, expected one every second"),
        (SKIPPED, "was skipped (no such library) while the other ranks waited for it"),
        (Outcome("raised", reason="ValueError: on purpose (a.py line 3)"),
         "measure() raised ValueError: on purpose (a.py line 3)"),
    ],
)  # fmt: skip
def test_each_outcome_is_one_sentence(outcome: Outcome, says: str) -> None:
    assert blame.message(outcome) == says


@pytest.mark.parametrize(
    ("outcome", "fix"),
    [
        (STOPPED, "stopped"),
        (TRACED, "stopped"),
        (IN_KERNEL, "uninterruptible"),
        (NEVER_ENTERED, "timed_out"),
        (SEGFAULT, "crashed"),
        (SILENT, "lost"),
    ],
)
def test_each_outcome_has_its_fix(outcome: Outcome, fix: str) -> None:
    assert found({1: outcome})[0]["fix"] == blame.FIXES[fix].replace("{check}", "plugin.made")


def test_what_it_was_doing_is_evidence() -> None:
    (finding,) = found({1: Outcome("crashed", reason="ended by SIGKILL", signal="SIGKILL", doing="step=3")})
    assert finding["evidence"] == {"doing": "step=3"}


def test_the_culprit_is_named_with_its_node() -> None:
    assert found({0: HEARD, 3: SEGFAULT})[0]["where"] == {"node": "node-1", "rank": 3}


def test_an_innocent_that_was_aborted_is_a_victim() -> None:
    aborted = Outcome("timed_out", 4.0, state="S", aborted=True, reason="rank 1 could not go on")
    raised = Outcome("raised", reason="ValueError: x")
    (found,) = blame.findings("a.b", Scope.WORLD, {0: aborted, 1: raised, 2: aborted}, JOB)
    assert (found.where["rank"], found.noticed_by) == (1, "0,2")


def test_an_abort_outside_a_collective_explains_the_others() -> None:
    heard = Outcome("raised", reason="connection closed", in_collective=True, collective=in_())
    (found,) = blame.findings("a.b", Scope.WORLD, {0: heard, 1: Outcome("crashed", signal="SIGABRT"), 2: heard}, JOB)
    assert (found.where["rank"], found.noticed_by) == (1, "0,2")


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome("timed_out", 2.0, state="S", cut_short=True), "all the time that the run's deadline left"),
        (Outcome("lost", reason="preflight itself failed there", own_fault=True), "preflight itself failed"),
    ],
)
def test_what_is_not_the_machines_fault_is_an_error(outcome: Outcome, says: str) -> None:
    (found,) = blame.findings("a.b", Scope.RANK, {1: outcome}, JOB)
    assert found.severity == "error" and says in found.message


def test_a_start_that_the_runs_deadline_cut_short_is_no_fault_of_the_network() -> None:
    """Seen on a sound machine at load 60, where NCCL's start took 9 s."""
    joining = in_(operation="process group", shape="3 ranks")
    cut = Outcome("timed_out", 8.9, state="R", cut_short=True, collective=joining)
    (found,) = blame.findings("a.b", Scope.WORLD, dict.fromkeys(range(3), cut), JOB)
    assert (found.severity, found.where) == ("error", {}) and "--deadline" in found.fix and "network" not in found.fix
    assert "in the 8.9 s that the run's deadline left" in found.message
    whole = replace(cut, cut_short=False)
    (found,) = blame.findings("a.b", Scope.WORLD, {0: cut, 1: cut, 2: whole}, JOB)
    assert found.severity == "fail" and "network" in found.fix


def test_who_is_met_at_work_when_the_runs_time_is_over_is_not_blamed() -> None:
    """Seen on three sound ranks at load 15: one had ended, two were in their own code."""
    at_work = Outcome("timed_out", 7.9, state="R", cut_short=True, doing="step 0: backward")
    further = replace(at_work, doing="step 0: forward")
    (found,) = blame.findings("a.b", Scope.WORLD, {0: at_work, 1: further, 2: Outcome("measured")}, JOB)
    assert (found.severity, found.where, found.code) == ("error", {}, "a.b.timed_out")
    assert "rank 0: measure() did not end" in found.message and "step 0: forward" in found.message
    for state in ("T", "S"):
        hung = replace(at_work, state=state)
        (found,) = blame.findings("a.b", Scope.WORLD, {0: hung, 1: replace(at_work, collective=in_())}, JOB)
        assert found.where["rank"] == 0, "who is stopped, or sleeps, is known"
    gave_up = Outcome("raised", 5.5, reason="timed out", in_collective=True, collective=in_())
    (found,) = blame.findings("a.b", Scope.WORLD, {0: replace(at_work, doing="cuInit"), 1: gave_up}, JOB)
    assert found.where["rank"] == 0, "it spins, and the others' patience was over"


@pytest.mark.parametrize(
    ("outcome", "is_cut_short"),
    [
        (Outcome("timed_out", 30.0, state="S"), True),
        (Outcome("timed_out", 21.0, state="S", aborted=True), True),  # the others gave up sooner than they would have
        (Outcome("timed_out", 20.9, state="S", aborted=True), False),
        (Outcome("timed_out", 30.0, state="D"), False),
        (Outcome("raised", 30.0), False),
    ],
)
def test_what_a_deadline_ended_that_the_run_made_shorter(outcome: Outcome, is_cut_short: bool) -> None:
    assert outcome.cut_short_by_the_run(21.0).cut_short == is_cut_short


@pytest.mark.parametrize(
    ("outcomes", "is_needed"),
    [
        ({0: MEASURED, 1: MEASURED}, False),
        ({0: HEARD, 1: WAITS}, True),
        ({0: HEARD, 1: SEGFAULT}, False),
        ({0: HEARD, 1: NEVER_ENTERED}, False),
    ],
    ids=["all is sound", "only victims", "one is dead", "one waits elsewhere"],
)
def test_what_others_recorded_is_asked_for_where_no_sure_sign_says_why(
    outcomes: dict[int, Outcome], is_needed: bool
) -> None:
    assert blame.needs_more_evidence(outcomes) is is_needed


def test_of_two_ranks_the_one_behind_is_not_the_culprit() -> None:
    assert told({0: at_number(3), 1: at_number(2)}) == [("fail plugin.made.timed_out", None, "0-1")]
