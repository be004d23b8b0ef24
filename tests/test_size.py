"""Small functions, small files and names that say what they hold (CONTRIBUTING.md)."""

import ast
from collections.abc import Iterator

from tests.sizes import FILE_LINES, FUNCTION_LINES, file_lines, folder, function_lines, functions, over, relative
from tests.sizes import product_files as files

UNNAMED = {
    "checks/comm", "checks/data", "checks/env", "checks/gpu", "checks/net", "checks/node", "checks/train",
    "preflight/nccl", "preflight/rendezvous", "train_smoke",
}  # fmt: skip
"""Folders that still have variables called `one`."""


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


def given_names(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every parameter, loop variable and variable that is assigned."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def test_names_are_found_wherever_they_are_given() -> None:
    text = "def f(a, *, b):\n    c = [d for d in a]\n    with b as e:\n        return lambda g: c + e\n"
    assert [name for _, name in sorted(given_names(text))] == ["a", "b", "c", "d", "e", "g"]


def test_no_variable_is_called_one() -> None:
    """A name says what it holds: a rank, a line, a finding."""
    named = [path for path in files() if folder(path) not in UNNAMED]
    found = [
        f"{relative(path)}:{line}" for path in named for line, name in given_names(path.read_text()) if name == "one"
    ]
    assert found == []
