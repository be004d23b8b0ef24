"""The place of an exception or a hang: the author's line."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.core import exceptions
from preflight.hangs import blame

ENGINE = os.path.join(exceptions.ENGINE, "results", "judging.py")
STANDARD = os.path.join(os.path.dirname(os.__file__), "subprocess.py")
INSTALLED = "/opt/venv/lib/python3.11/site-packages/yaml/parser.py"


@pytest.mark.parametrize(
    ("path", "own", "is_it"),
    [
        ("/home/me/disk.py", "", True),
        ("/home/me/disk.py", "/home/me/disk.py", True),
        (os.path.join(exceptions.ENGINE, "checks", "comm", "rails.py"), "", True),
        (os.path.join(exceptions.ENGINE, "train_smoke", "trainer", "train.py"), "", True),
        (ENGINE, "", False),
        (ENGINE, exceptions.ENGINE, True),
        (STANDARD, "", False),
        ("<frozen importlib._bootstrap>", "", False),
        ("/build/torch/nn/module.py", "", False),
        (INSTALLED, "", False),
        (INSTALLED, "/opt/venv/lib/python3.11/site-packages/yaml", True),
        (INSTALLED, "/opt/venv/lib/python3.11/site-packages/ya", False),
    ],
)
def test_whose_line_it_is(path: str, own: str, is_it: bool) -> None:
    assert exceptions.is_the_authors(path, own) == is_it


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_the_innermost_line_of_the_author_is_the_place() -> None:
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads("no JSON")
    assert exceptions.place_of(error.value) == f" (test_exceptions.py line {line_of(chr(34) + 'no JSON')})"


def test_without_a_line_of_the_author_it_is_the_innermost() -> None:
    assert exceptions.innermost_line([(STANDARD, 7), (ENGINE, 8)]) == " (subprocess.py line 7)"
    assert exceptions.innermost_line([(STANDARD, 7), ("/a/b.py", 9), (ENGINE, 8)]) == " (b.py line 9)"
    assert exceptions.innermost_line([]) == ""


def test_a_syntax_error_of_its_own_file_names_the_line_itself(tmp_path: Path) -> None:
    assert exceptions.place_of(SyntaxError("invalid syntax", ("disk.py", 3, 1, ""))) == ""
    with pytest.raises(SyntaxError) as error:
        ast.parse("1 +")
    assert exceptions.place_of(error.value).startswith(" (test_exceptions.py line ")


def test_a_hang_is_told_at_the_authors_line() -> None:
    stack = f"""Current thread 0x00007f0000000002 (most recent call first):
  File "{STANDARD}", line 2004 in _wait
  File "/home/me/disk.py", line 12 in listing
  File "/home/me/disk.py", line 30 in measure
  File "{ENGINE}", line 124 in _call_measure
"""
    assert blame.waits_at(stack) == " at disk.py line 12 in listing"


def test_a_hang_outside_of_its_code_is_told_where_it_is() -> None:
    code = "import faulthandler, sys; faulthandler.dump_traceback(file=sys.stdout)"
    stack = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    assert blame.waits_at(stack) == " at <string> line 1 in <module>"
