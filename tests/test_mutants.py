"""The rows of mutants.toml fit the tree as it is. `make mutants` runs them."""

import ast

from tests.mutants import Mutant, mutants, not_applicable
from tests.sizes import ROOT, folder, product_files

WITHOUT_LOGIC = {"checks"}
"""Folders that hold nothing but other folders."""


def test_every_mutation_can_be_applied() -> None:
    assert [mutant.shown() for mutant in not_applicable(mutants())] == []


def test_every_mutation_is_another_line_of_python() -> None:
    texts = [(mutant, mutant.applied((ROOT / mutant.file).read_text()) or "") for mutant in mutants()]
    assert [mutant.shown() for mutant, text in texts if mutant.before == mutant.after or not _is_python(text)] == []


def test_every_folder_of_the_product_has_mutants() -> None:
    folders = {folder(path) for path in product_files()} - WITHOUT_LOGIC
    assert folders - {folder(ROOT / mutant.file) for mutant in mutants()} == set()


def test_a_line_that_is_gone_or_stands_twice_cannot_be_applied() -> None:
    mutant = Mutant("made.py", "return a < b", "return a <= b", ())
    assert mutant.applied("def f(a, b):\n    return a < b\n") == "def f(a, b):\n    return a <= b\n"
    assert mutant.applied("def f(a, b):\n    return a < b + 1\n") is None
    assert mutant.applied("    return a < b\n    return a < b\n") is None


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
