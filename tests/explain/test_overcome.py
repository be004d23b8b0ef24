"""What a job got over is no failure and no cause of a later one; what only looks like an end well is none."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths

STEPS = "".join(f"step {number}: loss 2.{9 - number // 10} lr 1e-4\n" for number in range(10, 50, 10))
KEY_ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/train.py", line 31, in <module>\n    print(config["width"])\n'
    "KeyError: 'width'\n"
)
SLOW_DOWN = (
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation: retry 2\n"
)
STALE = "rm: cannot remove '/mnt/scratch/run/tmp1': Stale file handle\n"
OTHERS = "[ 9999.1] Out of memory: Killed process 999 (jupyter-lab) total-vm:9000kB, anon-rss:8000kB\n"
SMALLER = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB; trying batch size 32\n"
TOLERATIONS = (
    "Tolerations:  node.kubernetes.io/not-ready:NoExecute op=Exists for 300s\n"
    "              node.kubernetes.io/unreachable:NoExecute op=Exists for 300s\n"
)


def codes(folder: Path, text: str) -> list[str]:
    (folder / "job.log").write_text(text)
    found = explain_paths([str(folder / "job.log")]).findings
    return [finding.code.removeprefix("explain.") for finding in found if finding.severity in ("fail", "warn")]


@pytest.mark.parametrize(
    "text",
    [
        SLOW_DOWN + STEPS,
        STALE + STEPS,
        OTHERS + STEPS,
        SMALLER + STEPS,
        TOLERATIONS + STEPS,
        STEPS + "mce: [Hardware Error]: Machine check events logged\n" + STEPS,
        STEPS + "INFO upload completed with status 200\n",
        "polling for spot interruption notices every 5 s\n" + STEPS,
    ],
    ids=["s3", "stale", "other job", "smaller batch", "tolerations", "corrected", "http", "spot"],
)
def test_it_went_on(text: str, tmp_path: Path) -> None:
    assert codes(tmp_path, text) == []


@pytest.mark.parametrize("before", [SLOW_DOWN, STALE], ids=["s3", "stale"])
def test_what_was_got_over_is_not_to_blame_for_what_came_later(before: str, tmp_path: Path) -> None:
    assert codes(tmp_path, before + STEPS + KEY_ERROR)[0] == "app_crash"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (STEPS + SMALLER, "gpu_oom"),
        (STEPS + "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n", "unknown"),
        (STEPS + "step 50 | loss=inf | lr 1e-4\nstep 60 | loss=inf | lr 1e-4\n", "diverged"),
        (STEPS + "ERROR trainer: too many skipped batches, abort\n", "unknown"),
        (STEPS + "ERROR trainer: worker 3 failed\nINFO Shutting down gracefully\n", "unknown"),
    ],
    ids=["oom at last", "hydra", "inf", "gave up", "graceful"],
)
def test_what_is_no_end_well(text: str, code: str, tmp_path: Path) -> None:
    assert codes(tmp_path, text)[:1] == [code]
