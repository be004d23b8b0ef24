"""At which level a check runs: what its plan says about what the user has set, and about the backend."""

from types import ModuleType
from typing import Any

import pytest

from preflight.check import Asked, Level, Option, Plan, Scope, option
from preflight.planning import built_in, describe, levels, registry
from preflight.planning.registry import Check, Source
from tests import made

MODEL: Option[str] = option(str, "", "the model")
DATA: Option[str] = option(str, "", "the data")


def check(level: Any, **more: Any) -> Check:
    module = ModuleType("made")
    plan = Plan(Scope.RANK, level, **more)
    vars(module).update({"PLAN": plan, "measure": dict, "judge": list, "MODEL": MODEL, "DATA": DATA})
    return registry.describe(Source("plugin.made", "module", "made"), module)


def spec(made_check: Check, backend: str = "gloo", **settings: str) -> registry.Spec:
    job = made.job(1, backend=backend)
    return registry.spec_of(made_check, job, {f"plugin.made.{name}": text for name, text in settings.items()})


def only_with_both(asked: Asked) -> Level | None:
    return Level.STANDARD if asked.sets(MODEL) and asked.sets(DATA) else None


def sooner_with_data(asked: Asked) -> Level:
    return Level.STANDARD if asked.sets(DATA) else Level.FULL


def sooner_on_nccl(asked: Asked) -> Level:
    return Level.STANDARD if asked.backend == "nccl" else Level.FULL


def test_a_check_is_left_out_without_what_it_must_be_given() -> None:
    made_check = check(only_with_both)
    assert spec(made_check).left_out == "give --set plugin.made.model=VALUE"
    assert spec(made_check, model="m:f").left_out == "give --set plugin.made.data=VALUE"
    assert spec(made_check, model="m:f", data=" ").left_out == "give --set plugin.made.data=VALUE"
    both = spec(made_check, model="m:f", data="d:f")
    assert (both.left_out, both.level) == ("", Level.STANDARD)


def test_a_check_that_a_backend_leaves_out_says_so() -> None:
    made_check = check(lambda asked: Level.QUICK if asked.backend == "nccl" else None)
    assert spec(made_check).left_out == "there is nothing to check on gloo"
    assert spec(made_check, "nccl").left_out == ""


def test_a_full_check_runs_sooner_with_its_option_and_on_a_backend() -> None:
    assert spec(check(sooner_with_data)).level is Level.FULL
    assert spec(check(sooner_with_data), data="d:f").level is Level.STANDARD
    assert spec(check(sooner_on_nccl)).level is Level.FULL
    assert spec(check(sooner_on_nccl), "nccl").level is Level.STANDARD


def test_workers_are_replaced_where_the_plan_asks_for_it() -> None:
    made_check = check(Level.FULL, fresh=lambda asked: asked.sets(MODEL))
    assert not spec(made_check).fresh and spec(made_check, model="m:f").fresh
    assert spec(check(Level.FULL, fresh=True)).fresh and not spec(check(Level.FULL)).fresh


@pytest.mark.parametrize(
    ("level", "lowest", "given", "says"),
    [
        (Level.FULL, Level.FULL, (), "level full, measured by every rank alone, about 1 s, deadline 20 s"),
        (only_with_both, Level.STANDARD, ("model", "data"),
         ", only with --set plugin.made.model=VALUE and --set plugin.made.data=VALUE"),
        (sooner_with_data, Level.STANDARD, (), ", from standard on with --set plugin.made.data=VALUE"),
        (sooner_on_nccl, Level.STANDARD, (), ", from standard on with nccl"),
    ],
)  # fmt: skip
def test_list_and_describe_ask_the_plan(level: Any, lowest: Level, given: tuple[str, ...], says: str) -> None:
    made_check = check(level)
    known = levels.of(made_check)
    assert (known.lowest, known.given) == (lowest, given)
    assert describe.cost(made_check).endswith(says)
    entry = built_in.of(made_check)
    assert (entry.level, entry.lowest, entry.given) == (known.level, lowest, given)
