"""A log whose last word is an error that nobody knows is of a job that failed; sound ends stay quiet."""

import re
from pathlib import Path

import pytest

from preflight.explain.command import explain_paths
from preflight.failure_book import last_words
from preflight.results import report_nodes
from preflight.results.report import Report
from tests.explain.healthy import KINDS, TRAINS
from tests.explain.last_words import FAILED, SOUND, STEPS


def reported(folder: Path, text: str, name: str = "job.log") -> Report:
    (folder / name).write_text(text)
    return explain_paths([str(folder)])


def test_there_are_enough_of_both() -> None:
    assert len(FAILED) >= 30 and len(SOUND) >= 40


@pytest.mark.parametrize("kind", FAILED)
def test_an_unknown_error_at_the_end_is_a_failure_of_an_unknown_cause(kind: str, tmp_path: Path) -> None:
    made = reported(tmp_path, FAILED[kind])
    first = next(iter(made.findings), None)
    assert first is not None and (first.severity, made.exit_code) == ("fail", 1), first
    if first.code == "explain.unknown":
        assert first.where == {} and first.evidence["confidence"] == "none"
        quoted = [line["text"] for line in first.evidence["lines"]]
        assert quoted and set(quoted) <= {text.strip() for text in re.split(r"[\r\n]", FAILED[kind])}, first
    assert report_nodes.bad_nodes(made) == [] or first.code != "explain.unknown"


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_end_has_no_finding(kind: str, tmp_path: Path) -> None:
    assert reported(tmp_path, SOUND[kind]).findings == []


@pytest.mark.parametrize("kind", sorted(TRAINS))
def test_what_went_on_after_an_error_is_no_failure(kind: str, tmp_path: Path) -> None:
    """Whatever form the progress has."""
    for error in ("logging", "glog, E", "slurmstepd"):
        text = FAILED[error].removeprefix(STEPS)
        assert reported(tmp_path, text + KINDS[kind]).findings == []


def test_the_line_s_rank_and_host_are_said_and_nobody_is_accused(tmp_path: Path) -> None:
    line = "node-b: 2026-04-22 19:14:05,120 ERROR trainer: no plan\n"
    made = reported(tmp_path, f"[rank3]: step 1\n[rank3]: 2026-04-22 19:14:05,120 ERROR trainer: no plan\n{line}")
    (first,) = made.findings
    assert "rank 3" in first.message and first.evidence["seen_at"] == {"rank": 3} and first.where == {}
    assert first.noticed_by == ""


def test_a_log_that_ended_well_beside_it_rules(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(f"{STEPS}State: COMPLETED (exit code 0)\n")
    assert reported(tmp_path, FAILED["logging"], "job.err").findings == []


def test_each_file_counts_and_the_rest_are_counted(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text(FAILED["logging"])
    (first,) = explain_paths([str(tmp_path)]).findings
    assert "2 more logs end with an error" in first.message


def test_a_known_cause_is_the_only_one(tmp_path: Path) -> None:
    text = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + FAILED["logging"]
    assert [finding.code for finding in reported(tmp_path, text).findings] == ["explain.gpu_oom"]


def test_the_end_of_a_long_log_is_what_counts(tmp_path: Path) -> None:
    filler = "a line of a program that nobody knows\n" * 20_000
    (first,) = reported(tmp_path, filler + FAILED["logging"]).findings
    assert first.evidence["lines"][0]["line"] == 20_001
    assert reported(tmp_path, FAILED["logging"] + filler).findings == []


@pytest.mark.parametrize("form", last_words.forms(), ids=lambda form: form.name)
def test_each_form_fits_its_example_and_not_its_near_miss(form: last_words.LastWord) -> None:
    assert last_words.form_of(form.example) is form and form.source
    assert not form.pattern.search(form.near_miss)


def test_no_form_is_slow_on_garbage() -> None:
    import time

    seconds = {}
    for size in (1000, 8000):
        begin = time.process_time()
        for unit in ("a", " ", "1.", "a ", "[", "x:1 ", "ERROR", "exit ", "training ", "E0813 13:23:20 "):
            for form in last_words.forms():
                form.pattern.search(unit * (size // len(unit)))
        seconds[size] = time.process_time() - begin
    assert seconds[8000] < 30 * seconds[1000] + 0.2, seconds


def test_a_form_s_name_begins_with_its_kind() -> None:
    assert [form.name for form in last_words.forms() if not re.match(form.kind, form.name)] == []
