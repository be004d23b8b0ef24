"""The old names of a plan's fields: they mean what they meant, and a warning says what to write today."""

import re
from pathlib import Path

import pytest

from preflight.check import After, Level, Outcome, Plan
from preflight.core.answer import Returned
from preflight.core.facts import FactsStore
from preflight.core.plan import OLD_NAMES
from preflight.errors import BrokenCheck
from preflight.planning import levels, registry
from preflight.planning.policy import Policy
from preflight.planning.registry import Check
from preflight.results import judging
from tests import made

OLD = '''"""A disk that answers."""
from preflight.check import Level, Plan, Scope, option
PLAN = Plan(Scope.NODE, Level.FULL, {})
MODEL = option(str, "", "the model")
def measure(ctx): return {{}}
def judge(facts, run): return iter(())
'''
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def loaded(folder: Path, fields: str) -> Check:
    (folder / "disk.py").write_text(OLD.format(fields))
    return registry.load(registry.plugin_source(str(folder / "disk.py")))


def test_relations_to_other_checks(tmp_path: Path) -> None:
    fields = "needs=('a.a',), reads=['a.a', 'b.b'], uses=('c.c',), when=('d.d',), unless=('e.e',)"
    plan = loaded(tmp_path, fields).plan
    assert plan.after == {
        "a.a": After.NEEDS | After.READS, "b.b": After.READS, "c.c": After.USES, "d.d": After.WHEN_BAD,
        "e.e": After.UNLESS_FAILED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "backend", "without", "with_it"),
    [
        ("given", "gloo", None, Level.STANDARD),
        ("sooner_with", "gloo", Level.FULL, Level.STANDARD),
    ],
)
def test_options(field: str, backend: str, without: Level | None, with_it: Level, tmp_path: Path) -> None:
    check = loaded(tmp_path, f"{field}=('model',)")
    unset, is_set = (registry.spec_of(check, made.job(1), settings) for settings in ({}, {"plugin.disk.model": "m"}))
    assert (unset.left_out == "") is (without is not None)
    assert without is None or unset.level is without
    assert (is_set.left_out, is_set.level) == ("", with_it)
    assert levels.of(check).lowest is Level.STANDARD


def test_a_backend(tmp_path: Path) -> None:
    check = loaded(tmp_path, "sooner_on=('nccl',)")
    jobs = [made.job(1, backend=backend) for backend in ("gloo", "nccl")]
    assert [registry.spec_of(check, job, {}).level for job in jobs] == [Level.FULL, Level.STANDARD]


def test_fresh_with(tmp_path: Path) -> None:
    check = loaded(tmp_path, "fresh_with=('model',)")
    settings: tuple[dict[str, str], ...] = ({}, {"plugin.disk.model": "m"})
    assert [registry.spec_of(check, made.job(1), each).fresh for each in settings] == [False, True]


@pytest.mark.parametrize("aside", [True, False])
def test_what_a_plan_draws_aside_stays_aside(aside: bool, tmp_path: Path) -> None:
    check = loaded(tmp_path, f"aside={aside}")
    book, ended = FactsStore(), {0: Outcome("measured")}
    book.add(check.id, [0], "{}")
    answer = Returned(judging.call_judge(check.source, made.job(1), ended, book, {}))
    spec = registry.spec_of(check, made.job(1), {})
    assert judging.result_of(spec, ended, made.job(1), answer, Policy()).aside is aside


@pytest.mark.parametrize("name", OLD_NAMES)
def test_each_old_name_is_told_with_the_new_one(name: str, tmp_path: Path) -> None:
    value = "True" if name in ("baseline", "aside") else "('nccl',)" if name == "sooner_on" else "('model',)"
    with pytest.warns(DeprecationWarning, match=re.escape(f"Plan({name}=...) is now {OLD_NAMES[name]}")) as warned:
        check = loaded(tmp_path, f"{name}={value}")
    assert warned[0].filename.endswith("disk.py")
    assert check.old_names == (f"PLAN.{name} is now {OLD_NAMES[name]}",)
    assert registry.spec_of(check, made.job(1), {}).old_names == check.old_names


def test_today_s_names_are_told_nothing(tmp_path: Path) -> None:
    assert loaded(tmp_path, "last=True").old_names == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("needs=('env.launch')", "PLAN.needs is the text 'env.launch', expected a tuple: ('env.launch',) with a comma"),
        ("reads=(1,)", "PLAN.reads is (1,), expected a tuple of names"),
        ("when=None", "PLAN.when is None, expected a tuple of names"),
        ("given=('modle',)", "PLAN.given names modle, which is not an option of it; did you mean model?"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(fields: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenCheck) as error:
        loaded(tmp_path, fields)
    assert str(error.value) == f"{says} (disk.py line 3)"


def test_a_name_that_never_was_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'need'"):
        Plan("node", "quick", need=())  # type: ignore[call-arg,arg-type]
