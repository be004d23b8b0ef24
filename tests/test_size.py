"""Small functions, small files and names that say what they hold (CONTRIBUTING.md)."""

import ast
import functools
from collections.abc import Iterator

from tests.sizes import FILE_LINES, FUNCTION_LINES, file_lines, folder, function_lines, functions, over, relative
from tests.sizes import product_files as files


def test_every_folder_of_the_product_is_measured() -> None:
    assert {folder(path) for path in files()} >= {"preflight", "preflight/explain", "checks/env", "train_smoke"}


def test_functions_are_measured_with_their_decorators() -> None:
    text = "class A:\n    @property\n    def short(self):\n        def inner():\n            pass\n        return 1\n"
    assert list(functions(text)) == [("short", 2, 5), ("inner", 4, 2)]


def test_what_is_over_a_limit_is_listed_with_the_largest_first() -> None:
    assert list(over({"a": 3, "b": 1, "c": 5, "d": 2}, 2).items()) == [("c", 5), ("a", 3)]


def test_functions_are_small() -> None:
    assert over(function_lines(files()), FUNCTION_LINES) == {}


def test_files_are_small() -> None:
    assert over({relative(path): file_lines(path) for path in files()}, FILE_LINES) == {}


@functools.cache  # two tests read all files
def given_names(text: str) -> tuple[tuple[int, str], ...]:
    """(line, name) of every function, parameter, loop variable, and variable or attribute that is assigned."""
    return (*_given_names(text),)


def _given_names(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_names_are_found_wherever_they_are_given() -> None:
    text = (
        "def f(a, *, b):\n    c = [d for d in a]\n    with b as e:\n        e.h = 1\n        return lambda g: c + e\n"
    )
    assert [name for _, name in sorted(given_names(text))] == ["a", "b", "f", "c", "d", "e", "h", "g"]


def test_no_variable_is_called_one() -> None:
    """A name says what it holds: a rank, a line, a finding."""
    given = {relative(path): given_names(path.read_text()) for path in files()}
    assert [f"{path}:{line}" for path, names in given.items() for line, name in names if name == "one"] == []


SAY_NOTHING = {"told", "said", "its", "made"}
"""A reader of these must look up whose, and what: a sentence, a report, a mistake, a model."""
STILL_SAY_NOTHING = {
    "checks/train", "checks/train/checkpoint", "checks/train/model", "checks/train/shared",
    "checks/train/shared/parity", "checks/train/speed", "preflight/checkpoint", "preflight/debug",
    "preflight/debug/injected", "preflight/explain/read", "train_smoke", "train_smoke/checkpoint", "train_smoke/speed",
    "train_smoke/strategies", "train_smoke/trainer", "train_smoke/user",
}  # fmt: skip
"""Folders whose names are older than the rule. No folder comes in; one that needs it no more goes."""


def test_a_name_says_what_it_holds() -> None:
    say_nothing = [
        f"{relative(path)}:{line} {name}"
        for path in files()
        for line, name in given_names(path.read_text())
        if name.strip("_") in SAY_NOTHING
    ]
    assert [place for place in say_nothing if place.rpartition("/")[0] not in STILL_SAY_NOTHING] == []
    assert STILL_SAY_NOTHING - {place.rpartition("/")[0] for place in say_nothing} == set()


def unformatted(text: str) -> Iterator[int]:
    """The lines at which the formatter is told to skip what is no table: a table is a constant, read by column."""
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    for number, line in enumerate(text.splitlines(), 1):
        if line.endswith("# fmt: skip"):
            around = [node for node in statements if node.lineno <= number <= (node.end_lineno or 0)]
            if not _is_constant(min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)):
                yield number


def _is_constant(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    return isinstance(target, ast.Name) and (target.id.isupper() or target.id.startswith("__"))


def test_a_table_may_skip_the_formatter_and_nothing_else() -> None:
    assert [*unformatted("A = {\n    1: 2,\n}  # fmt: skip\n__all__ = [1]  # fmt: skip\n")] == []
    assert [*unformatted("def f():\n    a = g(\n        1,\n    )  # fmt: skip\n    raise a  # fmt: skip\n")] == [4, 5]


LEFT_UNFORMATTED = {
    "checks/net/mesh", "checks/node/storage", "checks/train", "checks/train/checkpoint", "checks/train/shared/parity",
    "checks/train/speed", "preflight", "preflight/checkpoint", "preflight/cli",
    "preflight/cluster", "preflight/debug", "preflight/engine", "preflight/explain", "preflight/explain/artifacts",
    "preflight/explain/causes", "preflight/history", "preflight/nccl", "preflight/rendezvous", "preflight/results",
    "preflight/results/page", "preflight/sinks", "train_smoke/checkpoint", "train_smoke/strategies",
    "train_smoke/trainer", "train_smoke/user",
}  # fmt: skip
"""Folders that are older than the rule. No folder comes in; one that needs it no more goes."""


def test_only_tables_skip_the_formatter() -> None:
    folders = {relative(path).rpartition("/")[0] for path in files() if [*unformatted(path.read_text())]}
    assert folders == LEFT_UNFORMATTED
