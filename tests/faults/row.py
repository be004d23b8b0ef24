"""One row of the fault table, and rows that share a run."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.running import PLUGINS, ROOT


@dataclass(frozen=True)
class Fault:
    """One row. The culprit is rank 1 on this machine unless said otherwise."""

    name: str
    story: str
    """What goes wrong, for people."""
    made: str
    """How it is made, for people."""
    finds: tuple[str, ...]
    """`severity code` of every finding above info, in any order; "x or y" where the moment decides which."""
    culprit: Mapping[str, Any] = field(default_factory=lambda: {"rank": 1})
    """What `where` of every one of them must hold (beside the node)."""
    noticed_by: str = ""
    exit_code: int = 1
    world: int = 3
    only: tuple[str, ...] = ("plugin",)
    """What `--only` names."""
    plugins: tuple[str, ...] = ("alone", "after")
    settings: Mapping[str, str] = field(default_factory=dict)
    after: int | None = 3
    """How many members measure in the sound check that follows; None where none can."""
    launcher: str = "plain"
    """plain, torchrun, or agent (plain ranks on a store that another process serves)."""
    says: str = ""
    """Words that the first finding's message holds."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Of all ranks."""
    environ_of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Of single ranks, over that."""
    also: tuple[str, ...] = ()
    """Consequences that may be found beside it."""
    stopped: tuple[int, ...] = ()
    """Ranks that the fault leaves stopped: the test ends them after the run."""
    deadline_s: float = 60
    more: bool = False
    """Whether it has the marker `more`: another row has the same code and the same kind of culprit."""
    shares: str = ""
    """Rows with the same word happen in one run, each with a culprit of its own."""

    def is_told_by(self, findings: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all that had to be found was, nothing else but its consequences, and the culprit named."""
        found = {f"{finding['severity']} {finding['code']}" for finding in findings}
        named = [finding["where"] for finding in findings]
        is_named = not self.culprit or any(self.culprit.items() <= where.items() for where in named)
        return set(self.finds) <= found <= {*self.finds, *self.also} and is_named


def runs(rows: Sequence[Fault]) -> list[tuple[Fault, ...]]:
    """The rows of each run, in order."""
    shared: dict[str, list[Fault]] = {}
    for row in rows:
        shared.setdefault(row.shares or row.name, []).append(row)
    return [tuple(rows) for rows in shared.values()]


def params(runs: Iterable[tuple[Fault, ...]]) -> list[Any]:
    """For `pytest.mark.parametrize`: a case for each run."""
    return [
        pytest.param(rows, marks=pytest.mark.more if all(row.more for row in rows) else (), id=names(rows))
        for rows in runs
    ]


def names(rows: Iterable[Fault]) -> str:
    return "+".join(row.name for row in rows)


def as_one(rows: Sequence[Fault]) -> Fault:
    """What happens where these rows share a run: all of it, on ranks or in variables of their own."""
    environ_of: dict[int, dict[str, str]] = {}
    for row in rows:
        for rank, environ in row.environ_of.items():
            mine = environ_of.setdefault(rank, {})
            is_new = all(mine.get(name, value) == value for name, value in environ.items())
            assert is_new, f"{row.name} overwrites what another row of its run sets"
            mine |= environ
    code = next(code for code in (1, 3, 0) if code in {row.exit_code for row in rows})
    plugins = tuple(dict.fromkeys(plugin for row in rows for plugin in row.plugins))
    finds = tuple(found for row in rows for found in row.finds)
    stopped = tuple(rank for row in rows for rank in row.stopped)
    run = replace(rows[0], environ_of=environ_of, plugins=plugins, exit_code=code, finds=finds, stopped=stopped)
    own = {
        "name", "story", "made", "finds", "culprit", "noticed_by", "exit_code", "says", "environ_of", "plugins",
        "stopped",
    }  # fmt: skip
    alike = [{key: value for key, value in vars(row).items() if key not in own} for row in (run, *rows)]
    assert all(row == alike[0] for row in alike), f"rows of the run {run.shares} want different runs"
    return run


def sick(deed: str) -> dict[str, str]:
    """An environment in which torch does this deed (tests/sick/sitecustomize.py), or several."""
    return {"SICK": deed, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "sick", ROOT, PLUGINS)))}


def briefly_alone(environ: Mapping[str, str]) -> dict[str, str]:
    """The same environment, in which train.alone is short: for ranks of a run that is about another check of
    training. Half of what such a run computes is that."""
    deeds = [deed for deed in (environ.get("SICK", ""), "one_step_alone") if deed]
    own, folders = sick(",".join(deeds)), environ["PYTHONPATH"].split(os.pathsep)
    more = [folder for folder in own["PYTHONPATH"].split(os.pathsep) if folder not in folders]
    return {**environ, **own, "PYTHONPATH": os.pathsep.join([*more, *folders])}


def in_check(name: str, story: str, made: str, *finds: str, only: str, **more: Any) -> Fault:
    """A fault that a built-in check finds on plain ranks, made by their environments alone (rank 1's is the odd
    one of three): run by tests/test_faults.py."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    return Fault(name, story, made, finds, only=(only,), plugins=(), after=None, **{"exit_code": exit_code, **more})


def elsewhere(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    """A fault whose test needs more, and stands elsewhere: it holds what was found against `is_told_by`."""
    return Fault(name, story, made, finds, **more)
