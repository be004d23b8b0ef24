"""Small functions and small files: what can be read at once (CONTRIBUTING.md)."""

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
