"""The commands of the history room in this process: what they print and how they end."""

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.cli import main
from preflight.errors import UsageError


def diff(capsys: pytest.CaptureFixture[str], old: Path, new: Path, code: int) -> tuple[dict[str, Any], str]:
    """(the difference, the screen); it must end with this code."""
    return dispatched(capsys, "diff", str(old), str(new), code=code)


def dispatched(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """(what `--json -` holds, the screen in one line)."""
    capsys.readouterr()
    ended = main._dispatch([*words, "--json", "-"])
    printed = capsys.readouterr()
    assert ended == code, printed.err
    return json.loads(printed.out), " ".join(printed.err.split())


def refused(*words: str) -> str:
    """The sentence, without the end of a line."""
    with pytest.raises(UsageError) as error:
        main._dispatch(list(words))
    assert "\n" not in str(error.value)
    return str(error.value)
