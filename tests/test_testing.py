import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from preflight import testing
from preflight.check import After, Code, Finding, Level, Outcome, Plan, Run, Scope, Severity, option
from preflight.checks.comm import init
from preflight.checks.env import launch
from preflight.core.facts import BadFacts
from preflight.errors import UsageError
from preflight.results import judging
from tests.made import assert_valid

FULL = Code("A disk is full.", fix="Empty {device}.")
LEAST_GB = option(int, 10, "least free space")
Judge = Callable[[Mapping[int, Any], Run], Iterator[Finding]]


def by_free_space(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
    for rank, disk in facts.items():
        if disk["free_gb"] < run[LEAST_GB]:
            yield FULL.fail(f"{disk['free_gb']} GB free", device="sda", **run.job.where(rank))


def check(judge: Judge = by_free_space, **more: object) -> ModuleType:
    """A check made here; its name ends as a plugin's file would."""
    module = ModuleType("site_checks.disk")
    plan = Plan(Scope.RANK, Level.QUICK, after={"site.mounts": After.READS})
    vars(module).update(PLAN=plan, FULL=FULL, LEAST_GB=LEAST_GB, measure=dict, judge=judge, **more)
    return module


# Made-up ranks


def test_findings_are_what_the_report_holds() -> None:
    found = testing.judge(check(), {0: {"free_gb": 0}, 1: {"free_gb": 20}})
    assert found == [
        {
            "severity": "fail", "code": "plugin.disk.full", "message": "0 GB free",
            "where": {"node": "node-0", "rank": 0, "device": "sda"}, "noticed_by": "", "evidence": {},
            "fix": "Empty sda.", "action": "fix_config",
        }
    ]  # fmt: skip


def test_a_built_in_check_has_its_own_id() -> None:
    (found,) = testing.judge(init, {0: {"init_s": 1.0, "first_s": 0.0, "total": 2.0}})
    assert found["code"] == "comm.init.wrong_sum"


def test_ranks_are_placed_on_nodes() -> None:
    facts = {0: {"free_gb": 20}, 3: {"free_gb": 0}}
    (found,) = testing.judge(check(), facts, nodes={"a": range(2), "b": range(2, 4)})
    assert found["where"] == {"node": "b", "rank": 3, "device": "sda"}


@pytest.mark.parametrize(("least_gb", "count"), [(1, 0), (6, 1), ("6", 1)])
def test_options_are_set_by_their_names(least_gb: object, count: int) -> None:
    assert len(testing.judge(check(), {0: {"free_gb": 5}}, settings={"least_gb": least_gb})) == count


def seen_by(**arguments: Any) -> tuple[Run, Mapping[int, Any], Mapping[int, Any]]:
    """What judge() is given: the run, the facts, and the facts of the check that it reads."""
    seen: list[Any] = []

    def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        seen.extend((run, facts, run.facts("site.mounts")))
        return iter(())

    testing.judge(check(judge), **arguments)
    run, facts, mounts = seen
    return run, facts, mounts


def test_judge_sees_the_job() -> None:
    run, _, _ = seen_by(facts={0: {}, 5: {}}, nodes={"a": range(4), "b": range(4, 8)}, backend="nccl")
    assert (run.job.world_size, run.job.backend, run.job.missing) == (8, "nccl", ())
    assert [(node.node, node.ranks) for node in run.job.nodes] == [("a", (0, 1, 2, 3)), ("b", (4, 5, 6, 7))]


def test_judge_sees_how_the_others_ended() -> None:
    lost = Outcome("lost", reason="gone")
    run, facts, _ = seen_by(facts={0: {}, 2: {}}, outcomes={1: lost})
    assert run.members == (0, 1, 2)
    assert run.outcomes[1] == lost and run.outcomes[0].kind == "measured"
    assert list(facts) == [0, 2]


def test_judge_reads_facts_of_other_checks() -> None:
    _, _, mounts = seen_by(facts={0: {}}, reads={"site.mounts": {0: {"mounts": 3}, 7: {}}})
    assert mounts == {0: {"mounts": 3}, 7: {}}


def test_facts_are_read_from_json_as_in_a_run() -> None:
    _, facts, _ = seen_by(facts={0: {"pair": (1, 2)}})
    assert facts == {0: {"pair": [1, 2]}}


def broken(text: str) -> Judge:
    def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        if text == "raise":
            raise ZeroDivisionError("on purpose")
        if text == "code":
            yield Code("Elsewhere.", fix="none").fail("x")
        if text == "reads":
            run.facts("gpu.inventory")
        if text == "no finding":
            yield "x"  # type: ignore[misc]
        if text == "evidence":
            yield FULL.fail("x", evidence={"object": object()})
        if text == "nan":
            yield FULL.fail("x", evidence={"number": float("nan")})
        if text == "where":
            yield FULL.fail("x", colour="red")

    return judge


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise", "plugin.disk: ZeroDivisionError: on purpose (test_testing.py line "),
        (
            "code",
            "plugin.disk: BrokenCheck: judge() used a Code that is not a constant of the module: Elsewhere. (test",
        ),
        ("reads", "plugin.disk: BrokenCheck: judge() reads the facts of gpu.inventory, which PLAN.after does not read"),
        ("no finding", "plugin.disk: BrokenCheck: judge() yielded str, not a Finding (test_testing.py line "),
        ("evidence", "plugin.disk: TypeError: Object of type object is not JSON serializable (test_testing.py line "),
        ("nan", "plugin.disk: ValueError: Out of range float values are not JSON compliant"),
        ("where", "plugin.disk: TypeError: a finding cannot blame colour; known are node, rank"),
    ],
)
def test_a_judge_that_breaks_the_contract_fails_the_test(text: str, says: str) -> None:
    with pytest.raises(AssertionError) as error:
        testing.judge(check(broken(text)), {0: {}})
    assert str(error.value).startswith(says)
    assert "Traceback" in str(error.value)


def test_the_place_is_the_authors_line_and_not_the_engines() -> None:
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, line in enumerate(lines, 1) if "colour=" in line)
    with pytest.raises(AssertionError, match=rf"known are node, .* \(test_testing\.py line {line}\)\n"):
        testing.judge(check(broken("where")), {0: {}})


def test_a_judge_that_returns_nothing_is_told() -> None:
    with pytest.raises(AssertionError, match=r"judge\(\) returned None, expected findings: yield them"):
        testing.judge(check(lambda *_: None), {0: {}})  # type: ignore[arg-type]


def test_facts_of_a_rank_that_no_node_has_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 9 is on none of the nodes a, b"):
        testing.judge(check(), {0: {"free_gb": 20}, 9: {"free_gb": 20}}, nodes={"a": [0], "b": [1]})


def test_a_summary_that_raises_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"plugin\.disk: summarize\(\) raised KeyError: 'free'"):
        testing.judge(check(summarize=lambda facts, _: facts[0]["free"]), {0: {"free_gb": 20}})


def test_a_module_that_is_no_check_fails_the_test() -> None:
    module = check()
    del vars(module)["PLAN"]
    with pytest.raises(AssertionError, match=r"plugin\.disk: BrokenCheck: it has no PLAN = Plan\(\.\.\.\)"):
        testing.judge(module, {0: {}})


def test_facts_that_are_none_are_refused() -> None:
    with pytest.raises(BadFacts, match=r"facts\['free_gb'\] is nan"):
        testing.judge(check(), {0: {"free_gb": float("nan")}})


def test_an_option_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"did you mean plugin\.disk\.least_gb\?"):
        testing.judge(check(), {0: {"free_gb": 20}}, settings={"leest_gb": 1})


# Real ranks


@pytest.mark.process
def test_real_ranks_measure(tmp_path: Path) -> None:
    path = tmp_path / "own_check.py"
    path.write_text(
        '''"""Who is here."""
from preflight.check import After, Code, Level, Plan, Scope, option
PLAN = Plan(Scope.RANK, Level.QUICK, after={"env.launch": After.NEEDS})
NAME = option(str, "nobody", "whom to greet")
def measure(ctx): return {"rank": ctx.rank, "greeting": f"hello {ctx[NAME]}", "level": ctx.level}
def judge(facts, run): return iter(())
'''
    )
    made = testing.measure(str(path), world=2, settings={"name": "world"}, level="full")
    assert_valid(made)
    assert (made["exit_code"], made["job"]["world_size"]) == (0, 2)
    launch_, own = made["checks"]
    assert (launch_["check"], launch_["status"]) == ("env.launch", "pass")
    assert own["facts"] == [
        {"ranks": "0", "facts": {"rank": 0, "greeting": "hello world", "level": "full"}},
        {"ranks": "1", "facts": {"rank": 1, "greeting": "hello world", "level": "full"}},
    ]


@pytest.mark.process
def test_ranks_that_leave_no_report_say_why() -> None:
    with pytest.raises(
        AssertionError,
        match=r"env\.launch: the ranks left no report\n(?s:.*)env\.launch\.speed: there is no such option",
    ):
        testing.measure(launch, world=1, settings={"speed": 3})


def test_a_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        testing.measure("gone.py")


@pytest.fixture(autouse=True)
def forget_the_made_up_check() -> Iterator[None]:
    yield
    sys.modules.pop("site_checks.disk", None)


def test_a_picture_that_takes_too_long_costs_no_finding() -> None:
    def for_ever(_facts: Mapping[int, Any], _run: Run) -> Iterator[str]:
        while True:
            yield from ()

    found = testing.judge(check(draw=for_ever), {0: {"free_gb": 0}})
    assert [finding["code"] for finding in found] == ["plugin.disk.full"]


def test_a_judge_may_not_yield_what_is_the_engines_own() -> None:
    def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        yield replace(FULL.fail("full", device="sda"), severity=Severity.ERROR)

    with pytest.raises(AssertionError, match="the severity error, which is the engine's own"):
        testing.judge(check(judge), {0: {}})


def test_a_judge_may_yield_as_many_findings_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(facts: Mapping[int, Any], run: Run) -> Iterator[Finding]:
        return iter([FULL.fail("full", device="sda")] * facts[0]["findings"])

    monkeypatch.setattr(judging, "FINDINGS_LIMIT", 3)
    assert len(testing.judge(check(judge), {0: {"findings": 3}})) == 3
    with pytest.raises(AssertionError, match="more than 3 findings"):
        testing.judge(check(judge), {0: {"findings": 4}})
