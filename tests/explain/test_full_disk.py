"""A full disk: which place it is shows in the path or in the stack."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths

FULL = "OSError: [Errno 28] No space left on device"


def explained(folder: Path, *frames: str, raised: str = FULL) -> tuple[str, str, str, dict[str, object]]:
    stack = "".join(f'  File "{frame}", line 41, in f\n    f()\n' for frame in ("/job/train.py", *frames))
    log = folder / "job.log"
    log.write_text(f"Traceback (most recent call last):\n{stack}{raised}\n")
    first = next(iter(explain_paths([str(log)]).findings))
    return first.code, first.message, first.fix, dict(first.where)


@pytest.mark.parametrize(
    ("frame", "code", "what", "fix"),
    [
        ("/v/site-packages/torch/serialization.py", "disk_full", "the folder of checkpoints", "save_total_limit"),
        ("/v/site-packages/triton/runtime/cache.py", "disk_full", "the cache of triton", "TRITON_CACHE_DIR"),
        ("/v/site-packages/torch/_inductor/codecache.py", "disk_full", "torch.compile", "TORCHINDUCTOR_CACHE_DIR"),
        ("/v/site-packages/torch/utils/cpp_extension.py", "disk_full", "extensions", "TORCH_EXTENSIONS_DIR"),
        ("/v/site-packages/huggingface_hub/file_download.py", "disk_full", "Hugging Face", "HF_HOME"),
        ("/v/site-packages/wandb/sdk/wandb_run.py", "disk_full", "Weights & Biases", "WANDB_DIR"),
        ("/usr/lib/python3.11/tempfile.py", "disk_full", "temporary files", "TMPDIR"),
        ("/usr/lib/python3.11/multiprocessing/synchronize.py", "shm_exhausted", "shared memory", "/dev/shm"),
        ("/job/data.py", "disk_full", "a file system is full", "df -h"),
    ],
)
def test_the_stack_tells_the_place(frame: str, code: str, what: str, fix: str, tmp_path: Path) -> None:
    found = explained(tmp_path, frame)
    assert found[0] == f"explain.{code}" and what in found[1] and fix in found[2]
    assert found[3]["file"] in ("/job/train.py", "/job/data.py")


@pytest.mark.parametrize(
    ("raised", "what", "fix"),
    [
        (
            f"{FULL}: '/scratch/me/.triton/cache/x.so'",
            "the cache of triton is full: /scratch/me/.triton",
            "df -h /scra",
        ),
        (
            "OSError: [Errno 122] Disk quota exceeded: '/home/me/step_4.pt'",
            "over its quota: /home/me/step_4.pt",
            "quota -s",
        ),
        ("RuntimeError: write(): fd 29 failed with Input/output error", "checkpoints is full", "df -i"),
        (
            "RuntimeError: [enforce fail at inline_container.cc] . PytorchStreamWriter failed writing file data/64: "
            "file write failed",
            "checkpoints is full",
            "save_total_limit",
        ),
    ],
)
def test_the_path_tells_the_place(raised: str, what: str, fix: str, tmp_path: Path) -> None:
    found = explained(tmp_path, raised=raised)
    assert found[0] == "explain.disk_full" and what in found[1] and fix in found[2]


def test_without_path_and_stack_it_may_be_shared_memory(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{FULL}\n")
    first = next(iter(explain_paths([str(log)]).findings))
    assert (first.code, first.evidence["confidence"]) == ("explain.shm_exhausted", "medium")


def test_a_disk_that_is_not_full_is_not_called_so(tmp_path: Path) -> None:
    assert explained(tmp_path, raised="OSError: [Errno 5] Input/output error")[0] == "explain.app_crash"
    log = tmp_path / "well.log"
    log.write_text("df: 91% used, No space left is not said\nstep 1 loss 2.0\n")
    assert not explain_paths([str(log)]).findings
