"""What `make test` may leave to `make test-rest`: second variants of rows, never the only row of a kind."""

import ast
from collections.abc import Iterator

from tests import faults
from tests.faults.not_here import NOT_HERE
from tests.faults.row import Fault
from tests.running import ROOT

ROWS = (*faults.ALL, *faults.GPU_ROWS, *faults.ELSEWHERE.values())


CODES = faults.codes()


def kinds(fault: Fault) -> Iterator[tuple[str, str, frozenset[str]]]:
    """(severity, code, what the culprit is named by) of each of its findings. A code that several checks have from one
    place (such as checks/train/shared/parity) is one."""
    for find in fault.finds or ("nothing",):
        for found in find.split(" or "):
            severity, _, code = found.rpartition(" ")
            yield severity, CODES[code].meaning if code in CODES else code, frozenset(fault.culprit)


def test_each_code_is_found_in_make_test_on_each_kind_of_culprit() -> None:
    held = {kind for fault in ROWS if not fault.more for kind in kinds(fault)}
    lost = [f"{fault.name}: {kind}" for fault in ROWS for kind in kinds(fault) if kind not in held]
    assert not lost, "only `make test-rest` has these rows: take `more` off one of each kind\n" + "\n".join(lost)


def test_a_row_is_marked_as_its_test_is() -> None:
    """Of rows that a test names. The others are driven by tables, which take the marker from the row."""
    words: dict[bool, set[str]] = {True: set(), False: set()}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for is_more, word in _words(ast.parse(path.read_text()), is_more=False):
            words[is_more].add(word)
    left = [name for name in faults.ELSEWHERE if _names(name) & words[True] and not _names(name) & words[False]]
    assert sorted(left) == sorted(name for name, fault in faults.ELSEWHERE.items() if fault.more)


def _names(row: str) -> set[str]:
    """A file of tests may leave out the first word, which all its rows have."""
    return {row, row.partition("_")[2]}


def _words(node: ast.AST, *, is_more: bool) -> Iterator[tuple[bool, str]]:
    """(whether a marker keeps its test or case out of `make test`, the text) of all texts."""
    marks = [*getattr(node, "decorator_list", ()), *(key.value for key in getattr(node, "keywords", ()))]
    is_more |= any(ast.unparse(mark).startswith(("pytest.mark.more", "pytest.mark.soak")) for mark in marks)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield is_more, node.value
    for child in ast.iter_child_nodes(node):
        yield from _words(child, is_more=is_more)


def test_each_code_has_a_row_or_a_reason() -> None:
    """A new code needs a fault that a real `measure` finds, or a line in tests/faults/not_here.py."""
    assert set(faults.codes()) - faults.found() == set(NOT_HERE)
