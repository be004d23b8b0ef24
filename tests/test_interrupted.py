"""Ctrl-C before a command has begun its work: one sentence, and nothing left."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import running

AT = """
import os, runpy, signal, sys
moment = sys.argv.pop(1).split()
def strike(event, arguments):
    if moment and event == moment[0] and (not moment[1:] or arguments[0] == moment[1]):
        moment.clear()
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(strike)
runpy.run_module("preflight", run_name="__main__", alter_sys=True)
"""
"""Ctrl-C at an event of Python's: "import preflight.cli.main", "os.fork" (of the process that makes the folder)."""
DEBUG = ("debug", "--", sys.executable, "-c", "import time; time.sleep(1000)")


def interrupted(moment: str, words: Sequence[str], folder: Path) -> tuple[int, str]:
    done = running.run_to_end([sys.executable, "-c", AT, moment, *words], cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("moment", "words", "code", "says"),
    [
        ("import preflight.cli.main", ("list",), 3, "interrupted"),
        ("import preflight.debug.job", DEBUG, 130, "interrupted"),
        ("os.fork", DEBUG, 130, "debug: SIGINT came before the job was started"),
    ],
)
def test_ctrl_c_at_once_is_one_sentence(
    moment: str, words: Sequence[str], code: int, says: str, tmp_path: Path
) -> None:
    assert interrupted(moment, words, tmp_path) == (code, f"preflight: {says}\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_the_job_is_started_is_passed_to_it(tmp_path: Path) -> None:
    # Not Python: it ends with 1, not by SIGINT, where SIGINT meets it while it starts.
    code, output = interrupted("subprocess.Popen", ("debug", "--", "sleep", "1000"), tmp_path)
    assert code == 130 and "the job was ended by SIGINT, after SIGINT was passed to it" in output, output
