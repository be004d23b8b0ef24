from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from preflight.check import After, Level, Plan, Scope
from preflight.errors import UsageError
from preflight.planning import plan
from preflight.planning.plan import CheckSelection, Request
from preflight.planning.registry import Source, Spec


def spec(
    id_: str, level: Level = Level.STANDARD, *, after: Mapping[str, After] = MappingProxyType({}), left_out: str = ""
) -> Spec:
    return Spec(Source(id_, "builtin"), id_, Plan(Scope.RANK, level, after=after), left_out)


ALL = [
    spec("env.launch", Level.QUICK),
    spec("gpu.inventory", Level.QUICK, after={"env.launch": After.NEEDS}),
    spec("gpu.nvlink", Level.QUICK, after={"gpu.inventory": After.NEEDS}),
    spec("comm.init", after={"env.launch": After.NEEDS}),
    spec("comm.all_reduce", after={"comm.init": After.NEEDS, "gpu.nvlink": After.READS}),
    spec("comm.pairs", Level.FULL, after={"comm.init": After.NEEDS, "comm.all_reduce": After.WHEN_BAD}),
]
KNOWN = {spec.id: spec.source for spec in ALL}


def chosen(selection: CheckSelection, specs: list[Spec] = ALL) -> list[str]:
    return [spec.id for spec in plan.choose(specs, Request(selection, {}, {spec.id: spec.source for spec in specs}))]


@pytest.mark.parametrize(
    ("level", "ids"),
    [
        (Level.QUICK, ["env.launch", "gpu.inventory", "gpu.nvlink"]),
        (Level.STANDARD, ["env.launch", "gpu.inventory", "gpu.nvlink", "comm.init", "comm.all_reduce"]),
        (Level.FULL, [spec.id for spec in ALL]),
    ],
)
def test_a_level_holds_the_one_before(level: Level, ids: list[str]) -> None:
    assert chosen(CheckSelection(level)) == ids


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        (("env.launch",), ["env.launch"]),
        (("gpu.nvlink",), ["env.launch", "gpu.inventory", "gpu.nvlink"]),
        (("comm.all_reduce",), ["env.launch", "gpu.inventory", "gpu.nvlink", "comm.init", "comm.all_reduce"]),
        (("gpu",), ["env.launch", "gpu.inventory", "gpu.nvlink"]),
        (("comm.init", "env"), ["env.launch", "comm.init"]),
        (("comm.pairs",), ["env.launch", "comm.init", "comm.pairs"]),
    ],
)
def test_only_takes_what_is_needed_and_read_along(only: tuple[str, ...], ids: list[str]) -> None:
    assert chosen(CheckSelection(only=only)) == ids


def test_only_does_not_ask_for_the_level() -> None:
    assert "comm.pairs" in chosen(CheckSelection(Level.QUICK, only=("comm",)))


def test_a_check_that_cannot_be_loaded_may_be_named() -> None:
    known = {**KNOWN, "plugin.broken": Source("plugin.broken", "file")}
    for words in (("plugin",), ("plugin.broken",)):
        assert plan.choose(ALL, Request(CheckSelection(only=words), {}, known)) == []
        skips, all_ = (
            plan.choose(ALL, Request(selection, {}, known))
            for selection in (CheckSelection(skip=words), CheckSelection())
        )
        assert skips == all_


def test_skip_wins_over_all_else() -> None:
    assert chosen(CheckSelection(Level.FULL, skip=("gpu", "comm.pairs"))) == [
        "env.launch",
        "comm.init",
        "comm.all_reduce",
    ]
    assert chosen(CheckSelection(only=("comm.init",), skip=("env",))) == ["comm.init"]


def test_a_check_runs_after_what_it_depends_on() -> None:
    early = [
        spec("plugin.needs", after={"env.launch": After.NEEDS}),
        spec("plugin.reads", after={"comm.init": After.READS}),
        spec("plugin.when", after={"comm.all_reduce": After.WHEN_BAD}),
    ]
    order = chosen(CheckSelection(), [*early, *ALL])
    assert order.index("plugin.needs") > order.index("env.launch")
    assert order.index("plugin.reads") > order.index("comm.init")
    assert order.index("plugin.when") > order.index("comm.all_reduce")
    assert [id_ for id_ in order if not id_.startswith("plugin")] == chosen(CheckSelection())


def test_the_last_one_comes_after_plugins_and_what_it_reads() -> None:
    late = replace(
        spec("gpu.released", after={"plugin.a": After.READS}),
        plan=replace(spec("gpu.released", after={"plugin.a": After.READS}).plan, last=True),
    )
    assert chosen(CheckSelection(), [late, spec("plugin.a"), spec("plugin.b")]) == [
        "plugin.a",
        "plugin.b",
        "gpu.released",
    ]


def test_what_it_only_uses_comes_along_and_may_be_skipped() -> None:
    late = spec("plugin.late", after={"gpu.nvlink": After.USES})
    only = CheckSelection(only=("plugin.late",))
    assert chosen(only, [*ALL, late]) == ["env.launch", "gpu.inventory", "gpu.nvlink", "plugin.late"]
    assert "plugin.late" in chosen(replace(only, skip=("gpu.nvlink",)), [*ALL, late])


@pytest.mark.parametrize(
    ("selection", "is_there_without", "is_there_with"),
    [
        (CheckSelection(Level.QUICK), False, False),
        (CheckSelection(Level.STANDARD), False, True),
        (CheckSelection(Level.FULL), False, True),
        (CheckSelection(only=("plugin",)), False, True),
        (CheckSelection(only=("plugin.own",), ids=("plugin.own",)), True, True),
        (CheckSelection(Level.FULL, skip=("plugin",)), False, False),
    ],
)
def test_a_check_that_is_left_out_runs_only_by_its_id(
    selection: CheckSelection, is_there_without: bool, is_there_with: bool
) -> None:
    assert ("plugin.own" in chosen(selection, [spec("plugin.own", left_out="give a")])) is is_there_without
    assert ("plugin.own" in chosen(selection, [spec("plugin.own")])) is is_there_with


def test_checks_that_need_each_other_are_still_listed() -> None:
    circle = [spec("plugin.a", after={"plugin.b": After.NEEDS}), spec("plugin.b", after={"plugin.a": After.NEEDS})]
    assert chosen(CheckSelection(), circle) == ["plugin.a", "plugin.b"]


def test_a_need_that_is_not_there_is_left_to_the_coordinator() -> None:
    assert chosen(CheckSelection(), [spec("plugin.a", after={"gpu.gone": After.NEEDS})]) == ["plugin.a"]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((), set()),
        (("gpu",), {"gpu.inventory", "gpu.nvlink"}),
        (("gpu", "gpu.nvlink", "env.launch"), {"gpu.inventory", "gpu.nvlink", "env.launch"}),
    ],
)
def test_families_and_ids_become_ids(words: tuple[str, ...], ids: set[str]) -> None:
    assert plan.expand(words, KNOWN, "--only") == ids


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("gpu.nvlnk", "--skip gpu.nvlnk: there is no such check or family; did you mean gpu.nvlink"),
        ("com", "--skip com: there is no such check or family; did you mean comm"),
        ("gp", "--skip gp: there is no such check or family; did you mean gpu"),
        ("nvlink", "--skip nvlink: there is no such check or family; did you mean gpu.nvlink"),
    ],
)
def test_an_unknown_word_is_a_usage_error_with_near_misses(word: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        plan.expand([word], KNOWN, "--skip")
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("selection", "named"),
    [
        (CheckSelection(), True),
        (CheckSelection(only=("plugin",)), True),
        (CheckSelection(only=("plugin.a",)), True),
        (CheckSelection(only=("comm",)), False),
        (CheckSelection(skip=("plugin",)), False),
        (CheckSelection(only=("plugin",), skip=("plugin.a",)), False),
    ],
)
def test_a_plugin_that_cannot_be_loaded_may_have_been_asked_for(selection: CheckSelection, named: bool) -> None:
    assert selection.names("plugin.a") is named
