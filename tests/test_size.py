"""Small functions and small files: what can be read at once (docs/design.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUNCTION_LINES, FILE_LINES = 60, 400
FILES = sorted(path for folder in ("preflight", "checks") for path in (ROOT / folder).rglob("*.py"))


def functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines from the first decorator to the end) of every function and method."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, (node.end_lineno or first) - first + 1


def test_there_are_files_to_look_at() -> None:
    assert len(FILES) > 20
    assert {path.parent.name for path in FILES} >= {"preflight", "env", "comm"}


def test_functions_are_measured_with_their_decorators() -> None:
    text = "class A:\n    @property\n    def short(self):\n        def inner():\n            pass\n        return 1\n"
    assert dict(functions(text)) == {"short": 5, "inner": 2}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_and_files_are_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES
    assert {name: lines for name, lines in functions(text) if lines > FUNCTION_LINES} == {}
