"""Exceptions behind a prefix that preflight does not know: a job is never called healthy because of its logger."""

from pathlib import Path

import pytest

from preflight.core.finding import Reported
from preflight.explain.command import explain_paths
from preflight.failure_book.book import book
from tests.made_failures import conclude, lines

PREFIXES = (
    "ERROR:    ", "(worker_7) : ", "2026-11-01 10:00:0{} - name - ERROR - ", "3: ", "10:00:0{} | ERROR | train | ",
    "E1101 10:00:00.00000{}       1 main.go:12] ", "stderr: ", "R3| ", "> ", "[worker-3] ", "train.py:5{} ERROR ",
    "wandb: ERROR ", "10:00:0{} ", "INFO:     127.0.0.1 - ", "2026-11-01 10:00:0{} - name - WARNING - ",
)  # fmt: skip
"""With a digit that differs from line to line."""
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 41, in <module>',
    "    load()",
    '  File "/job/data.py", line 7, in load',
    '    raise BadSample("17 has no label")',
)
CUSTOM = "job.errors.BadSample: 17 has no label"
CAUGHT = (
    "retrying after ConnectionError: reset by peer",
    "INFO:     127.0.0.1 - ConnectionError: reset by peer",
    "2026-11-01 10:00:00 - name - WARNING - ConnectionError: reset by peer",
    "WARNING: ConnectionError: reset by peer",
    "could not load the optional extension: ImportError: libfoo.so",
)


def explained(folder: Path, texts: tuple[str, ...], prefix: str = "") -> Reported | None:
    log = folder / "job.log"
    log.write_text("".join(f"{prefix.format(number % 10)}{text}\n" for number, text in enumerate(texts)))
    made = explain_paths([str(log)])
    first = next(iter(made.findings), None)
    assert (made.exit_code == 0) == (first is None)
    return first


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
@pytest.mark.parametrize("raised", ["ValueError: 17 has no label", CUSTOM])
def test_a_traceback(prefix: str, raised: str, tmp_path: Path) -> None:
    first = explained(tmp_path, (*TRACEBACK, raised), prefix)
    assert first and first.code == "explain.app_crash"
    assert (first.where["file"], first.where["line"]) == ("/job/data.py", 7)
    assert f"{raised.rpartition('.')[2]} (/job/data.py:7)" in first.message


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_exception_without_its_traceback(prefix: str, tmp_path: Path) -> None:
    first = explained(tmp_path, ("ValueError: 17 has no label",), prefix)
    assert first and (first.code, first.evidence["confidence"]) == ("explain.app_crash", "low")


def test_an_exception_that_is_not_recognized(tmp_path: Path) -> None:
    """Its traceback is reported though much else follows; not if the job went on."""
    texts = (*TRACEBACK, *["and so on"] * 200)
    first = explained(tmp_path, texts)
    assert first and "which is not visible in this log" in first.message
    steps = [f"iteration {step}/1000 | lm loss: 7.1" for step in (10, 20, 30)]
    assert conclude(lines([*texts, *steps]), book=book()) == []


@pytest.mark.parametrize("line", CAUGHT)
def test_an_exception_that_is_only_mentioned(line: str, tmp_path: Path) -> None:
    assert explained(tmp_path, ("step 1 loss 2.0", line, "step 2 loss 1.0")) is None
