from dataclasses import replace
from typing import Any

import pytest

from preflight.check import Level, Plan, Scope
from preflight.errors import UsageError
from preflight.planning import plan
from preflight.planning.plan import CheckSelection, Request
from preflight.planning.registry import Source, Spec


def spec(id_: str, level: Level = Level.STANDARD, **more: tuple[str, ...]) -> Spec:
    fields = ("needs", "reads", "uses", "when", "unless", "given", "sooner_with", "sooner_on")
    lists: dict[str, Any] = {name: more.get(name, ()) for name in fields}
    return Spec(Source(id_, "builtin"), id_, Plan(Scope.RANK, level, **lists))


ALL = [
    spec("env.launch", Level.QUICK),
    spec("gpu.inventory", Level.QUICK, needs=("env.launch",)),
    spec("gpu.nvlink", Level.QUICK, needs=("gpu.inventory",)),
    spec("comm.init", needs=("env.launch",)),
    spec("comm.all_reduce", needs=("comm.init",), reads=("gpu.nvlink",)),
    spec("comm.pairs", Level.FULL, needs=("comm.init",), when=("comm.all_reduce",)),
]
KNOWN = {spec.id: spec.source for spec in ALL}


def chosen(selection: CheckSelection, specs: list[Spec] = ALL, **settings: str) -> list[str]:
    """`settings`: of plugin.own, by their options."""
    texts = {f"plugin.own.{name}": value for name, value in settings.items()}
    return [spec.id for spec in plan.choose(specs, Request(selection, texts, {spec.id: spec.source for spec in specs}))]


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
        spec("plugin.needs", needs=("env.launch",)),
        spec("plugin.reads", reads=("comm.init",)),
        spec("plugin.when", when=("comm.all_reduce",)),
    ]
    order = chosen(CheckSelection(), [*early, *ALL])
    assert order.index("plugin.needs") > order.index("env.launch")
    assert order.index("plugin.reads") > order.index("comm.init")
    assert order.index("plugin.when") > order.index("comm.all_reduce")
    assert [id_ for id_ in order if not id_.startswith("plugin")] == chosen(CheckSelection())


def test_the_last_one_comes_after_plugins_and_what_it_reads() -> None:
    late = replace(
        spec("gpu.released", reads=("plugin.a",)),
        plan=replace(spec("gpu.released", reads=("plugin.a",)).plan, last=True),
    )
    assert chosen(CheckSelection(), [late, spec("plugin.a"), spec("plugin.b")]) == [
        "plugin.a",
        "plugin.b",
        "gpu.released",
    ]


def test_what_it_only_uses_comes_along_and_may_be_skipped() -> None:
    late = spec("plugin.late", uses=("gpu.nvlink",))
    only = CheckSelection(only=("plugin.late",))
    assert chosen(only, [*ALL, late]) == ["env.launch", "gpu.inventory", "gpu.nvlink", "plugin.late"]
    assert "plugin.late" in chosen(replace(only, skip=("gpu.nvlink",)), [*ALL, late])


OWN = [spec("env.launch", Level.QUICK), spec("plugin.own", Level.FULL, given=("model", "data"), needs=("env.launch",))]


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
def test_a_check_that_must_be_given_something_runs_where_it_is(
    selection: CheckSelection, is_there_without: bool, is_there_with: bool
) -> None:
    for settings in ({}, {"model": "m:f"}, {"model": "m:f", "data": " "}):
        assert ("plugin.own" in chosen(selection, OWN, **settings)) is is_there_without
    assert ("plugin.own" in chosen(selection, OWN, model="m:f", data="m:g")) is is_there_with


def test_what_is_given_waits_for_no_all_and_a_quick_check_stays_quick() -> None:
    assert plan.first_level(Level.FULL, ()) is Level.FULL
    assert plan.first_level(Level.FULL, ("model",)) is Level.STANDARD
    assert plan.first_level(Level.QUICK, ("model",)) is Level.QUICK


def test_a_full_check_runs_sooner_with_its_option() -> None:
    own = [spec("plugin.own", level=Level.FULL, sooner_with=("dir",))]
    assert "plugin.own" not in chosen(CheckSelection(Level.STANDARD), own)
    assert "plugin.own" not in chosen(CheckSelection(Level.STANDARD), own, dir=" ")
    assert "plugin.own" in chosen(CheckSelection(Level.STANDARD), own, dir="/ck")
    assert "plugin.own" in chosen(CheckSelection(Level.FULL), own)


def test_checks_that_need_each_other_are_still_listed() -> None:
    circle = [spec("plugin.a", needs=("plugin.b",)), spec("plugin.b", needs=("plugin.a",))]
    assert chosen(CheckSelection(), circle) == ["plugin.a", "plugin.b"]


def test_a_need_that_is_not_there_is_left_to_the_coordinator() -> None:
    assert chosen(CheckSelection(), [spec("plugin.a", needs=("gpu.gone",))]) == ["plugin.a"]


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


def test_an_option_is_given_where_any_of_them_is_set() -> None:
    assert not plan.is_given("plugin.made", ("model", "data"), {"plugin.made.model": " ", "plugin.other.data": "x"})
    assert plan.is_given("plugin.made", ("model", "data"), {"plugin.made.data": "x"})
