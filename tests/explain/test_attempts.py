"""Jobs that were started again: what each attempt ended with, and which one counts."""

from pathlib import Path

import pytest

from preflight.explain import console
from preflight.explain.command import explain_paths
from preflight.results.report import Report

AGENT = "E1126 08:41:5{}.549000 9563 torch/distributed/elastic/multiprocessing/api.py:1002]"
BOX = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "Root Cause (first observed failure):",
       "[0]:", "  host      : node-a", "  rank      : 1 (local_rank: 1)", "  exitcode  : 1 (pid: 9568)"]  # fmt: skip
STEPS = [f"step {step} loss {3 - step / 10:.2f}" for step in range(4)]
TIME_LIMIT = "slurmstepd: error: *** STEP 4711.0 ON node-a CANCELLED AT 2026-03-14T09:12:44 DUE TO TIME LIMIT ***"
REQUEUE = "slurmstepd: error: *** JOB 4711 ON node-a CANCELLED AT 2026-03-14T09:12:44 DUE TO JOB REQUEUE ***"
NODE_FAIL = "slurmstepd: error: *** JOB 4711 ON node-a CANCELLED AT 2026-03-14T09:12:44 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"  # noqa: E501
OUT_OF_MEMORY = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SRUN = "srun: error: node-a: task 1: Exited with exit code 1"
REFUSED = "[rank0]: RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.2]:391"  # noqa: E501


def raised(error: str, rank: int = 1) -> list[str]:
    texts = ["Traceback (most recent call last):", '  File "/job/train.py", line 8, in <module>', "    go()", error]
    return [f"[rank{rank}]: {text}" for text in texts]


def exited(at: int = 1) -> str:
    return f"{AGENT.format(at)} failed (exitcode: 1) local_rank: 1 (pid: {9000 + at}) of binary: /usr/bin/python3"


def explained(tmp_path: Path, *texts: str) -> Report:
    log = tmp_path / "job.log"
    log.write_text("".join(f"{text}\n" for text in texts))
    return explain_paths([str(log)])


def attempts(made: Report) -> list[str]:
    return [finding.message for finding in made.findings if finding.code == "explain.attempt"]


def first(made: Report) -> str:
    return next(iter(made.findings)).code.removeprefix("explain.")


CRASH = [*STEPS, *raised("ValueError: bad batch"), exited(1)]


def test_a_job_that_was_started_again_and_ended_well_passes_with_a_note(tmp_path: Path) -> None:
    made = explained(tmp_path, *CRASH, *STEPS, "done")
    assert (made.verdict, made.exit_code) == ("pass", 0)
    failed, well = attempts(made)
    assert failed.startswith("attempt 1 of 2 failed (app_crash): rank 1 failed in its own code: ValueError: bad batch")
    assert well == "attempt 2 of 2 shows no failure, and progress"
    assert "started again; its last attempt shows no failure" in console.lines(made)[-1]


OUT = "2026-11-26 08:4{}:0{},120 train INFO step {} loss 2.31"
EARLY, LATE = ([OUT.format(minute, step, step) for step in range(4)] for minute in (0, 5))
ERR = [*raised("ValueError: bad batch"), exited(1)]


def of_two_files(tmp_path: Path, out: list[str], err: list[str]) -> Report:
    for name, lines in (("job.out", out), ("job.err", err)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return explain_paths([str(tmp_path)])


def test_a_job_that_went_on_passes_where_stdout_is_another_file(tmp_path: Path) -> None:
    """torchrun says nothing when it starts ranks again: the times of the steps tell it."""
    made = of_two_files(tmp_path, EARLY + LATE, ERR)
    assert (made.verdict, made.exit_code) == ("pass", 0)
    failed, well = attempts(made)
    assert failed.startswith("attempt 1 of 2 failed (app_crash): rank 1 failed in its own code: ValueError: bad batch")
    assert well == "attempt 2 of 2 shows no failure, and progress"


@pytest.mark.parametrize(
    ("out", "err"),
    [
        pytest.param(EARLY, ERR, id="no step after it"),
        pytest.param(EARLY + LATE[:1], ERR, id="one step after it"),
        pytest.param(STEPS + STEPS, ERR, id="steps without a time may be of the first attempt"),
        pytest.param(EARLY + LATE, [*ERR, *BOX], id="torchrun gave up"),
        pytest.param(EARLY + LATE, [*ERR, *raised("KeyError: 7"), exited(6).replace("08:41", "08:46")], id="again"),
        pytest.param([*EARLY, *LATE, *raised("KeyError: 7")], ERR, id="again, on stdout"),
    ],
)
def test_a_job_whose_last_attempt_failed_or_is_not_seen_fails(tmp_path: Path, out: list[str], err: list[str]) -> None:
    made = of_two_files(tmp_path, out, err)
    assert (made.verdict, first(made)) == ("fail", "app_crash")


@pytest.mark.parametrize("label", ["[rank1]: ", ""])
def test_each_of_many_alike_attempts_counts(tmp_path: Path, label: str) -> None:
    """What repeats an earlier attempt's lines is not left out."""
    crash = [line.replace("[rank1]: ", label) for line in CRASH]
    made = explained(tmp_path, *crash * 20)
    assert first(made) == "app_crash"
    assert [note[:29] for note in attempts(made)] == ["attempts 1 to 20 of 20 failed"]


@pytest.mark.parametrize(
    "after",
    [
        ["step 4 loss 2.6", "step 5 loss 2.5"],  # a survivor's last lines
        ["step 4 loss 2.6", "step 5 loss 2.5", *BOX],
        ["step 0 loss 2.6"],  # too few
        BOX,
        [],
    ],
)
def test_what_survivors_print_late_is_no_new_attempt(tmp_path: Path, after: list[str]) -> None:
    made = explained(tmp_path, *CRASH, *after)
    assert (made.exit_code, first(made), attempts(made)) == (1, "app_crash", [])


def test_a_restart_that_fails_before_its_first_step_is_not_the_cause(tmp_path: Path) -> None:
    """As torchrun's static rendezvous does with gloo: the new ranks read the addresses of the old ones."""
    failed = [line for at in (2, 3) for line in (REFUSED, exited(at))]
    made = explained(tmp_path, *CRASH, *failed, *BOX)
    assert first(made) == "app_crash" and next(iter(made.findings)).where["rank"] == 1
    one, others = attempts(made)
    assert one.startswith("attempt 1 of 3 failed (app_crash)") and others.startswith("attempts 2 to 3 of 3 failed")


def test_the_last_attempt_that_made_progress_says_why_the_job_failed(tmp_path: Path) -> None:
    made = explained(tmp_path, *CRASH, *STEPS, OUT_OF_MEMORY, exited(2), *BOX)
    assert first(made) == "gpu_oom"
    assert [text.split(":")[0] for text in attempts(made)] == ["attempt 1 of 2 failed (app_crash)",
                                                              "attempt 2 of 2 failed (gpu_oom)"]  # fmt: skip


def test_attempts_that_fail_alike_share_a_line(tmp_path: Path) -> None:
    made = explained(tmp_path, *CRASH, *CRASH[:-1], exited(2), *CRASH[:-1], exited(3), *BOX)
    assert first(made) == "app_crash" and attempts(made)[0].startswith("attempts 1 to 3 of 3 failed (app_crash)")


def test_a_time_limit_after_a_restart_is_what_ended_the_job(tmp_path: Path) -> None:
    made = explained(tmp_path, *CRASH, *STEPS, TIME_LIMIT)
    assert first(made) == "external_signal" and "TIME LIMIT" in next(iter(made.findings)).evidence["lines"][0]["text"]
    assert len(attempts(made)) == 2


@pytest.mark.parametrize(("end", "slug"), [(REQUEUE, "external_signal"), (NODE_FAIL, "node_lost")])
def test_a_job_that_slurm_requeued(tmp_path: Path, end: str, slug: str) -> None:
    well = explained(tmp_path, *STEPS, end, *STEPS)
    assert well.exit_code == 0 and attempts(well)[0].startswith(f"attempt 1 of 2 failed ({slug})")
    failed = explained(tmp_path, *STEPS, end, *STEPS, OUT_OF_MEMORY)
    assert (first(failed), len(attempts(failed))) == ("gpu_oom", 2)
    alone = explained(tmp_path, *STEPS, end)
    assert (first(alone), attempts(alone)) == (slug, [])


def test_several_steps_of_srun_in_one_log(tmp_path: Path) -> None:
    failed = [*STEPS, *raised("ValueError: bad batch"), SRUN]
    assert explained(tmp_path, *failed, *STEPS).exit_code == 0
    assert first(explained(tmp_path, *failed, *STEPS, OUT_OF_MEMORY, SRUN)) == "gpu_oom"
    goes_on = explained(tmp_path, *failed, "step 4 loss 2.6", "step 5 loss 2.5")
    assert goes_on.exit_code == 1 and attempts(goes_on) == [], "other tasks of the same step"


def test_torchruns_folders_are_attempts(tmp_path: Path) -> None:
    for at, texts in enumerate([[*STEPS, *raised("ValueError: bad batch")], STEPS]):
        folder = tmp_path / "run" / f"attempt_{at}" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("\n".join(texts) + "\n")
    made = explain_paths([str(tmp_path / "run")])
    assert made.exit_code == 0 and len(attempts(made)) == 2
    (tmp_path / "run/attempt_1/1/stderr.log").write_text("step 0 loss 3\n")
    assert explain_paths([str(tmp_path / "run")]).exit_code == 1, "it shows no progress, and may hang"


def test_a_launchers_log_beside_the_folders_is_not_of_the_last_attempt(tmp_path: Path) -> None:
    """Its only line about a failure is that of the attempt before; where torchrun gave up it is of the last one."""
    for at, texts in enumerate([[*STEPS, *raised("ValueError: bad batch")], STEPS]):
        folder = tmp_path / f"attempt_{at}" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("\n".join(texts) + "\n")
    launcher = tmp_path / "launcher.log"
    launcher.write_text(exited(1) + "\n")
    made = explain_paths([str(tmp_path)])
    assert (made.exit_code, len(attempts(made))) == (0, 2)
    launcher.write_text("\n".join([exited(1), TIME_LIMIT]) + "\n")
    assert first(explain_paths([str(tmp_path)])) == "external_signal", "it ended the last attempt"
    launcher.write_text("\n".join([exited(1), *BOX]) + "\n")
    assert explain_paths([str(tmp_path)]).exit_code == 1
