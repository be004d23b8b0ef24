"""What comes first, and what never does."""

from pathlib import Path
from typing import Any

import pytest

from preflight.explain.command import explain_paths

HEAD = "Traceback (most recent call last):\n"
USERS = f'{HEAD}  File "/job/train.py", line 75, in main\n    step()\n'
FINALIZERS = {
    "multiprocessing": '  File "/usr/lib/python3.12/multiprocessing/util.py", line 303, in _run\n    finalizer()\n',
    "weakref": '  File "/usr/lib/python3.12/weakref.py", line 590, in __call__\n    return info.func()\n',
}
GONE = "FileNotFoundError: [Errno 2] No such file or directory: '/job/tmp/listener-b'\n"


def found(folder: Path, text: str) -> list[Any]:
    (folder / "job.log").write_text(text)
    return explain_paths([str(folder / "job.log")]).findings


def of_rank(rank: int, text: str) -> str:
    return "".join(f"{rank}: [rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("kind", FINALIZERS)
def test_a_finalizer_s_trouble_is_no_cause(kind: str, tmp_path: Path) -> None:
    noise = of_rank(910, f"{HEAD}{FINALIZERS[kind]}{GONE}")
    failed = of_rank(404, "RuntimeError: Rank 404, device 0, iteration 337071: Unexpected result inf")
    first, *_ = found(tmp_path, failed + noise)
    assert (first.code, first.where["rank"]) == ("explain.app_crash", 404) and "inf" in first.message
    assert found(tmp_path, noise) == []


def test_the_same_error_of_the_user_s_own_code_is_one(tmp_path: Path) -> None:
    (first,) = found(tmp_path, of_rank(910, f"{USERS}{GONE}"))
    assert (first.code, first.where["rank"], first.where["line"]) == ("explain.app_crash", 910, 75)


def test_an_operation_in_a_capture_is_no_matter_of_rights(tmp_path: Path) -> None:
    first, *_ = found(tmp_path, f"{USERS}RuntimeError: CUDA error: operation not permitted when stream is capturing\n")
    assert first.code == "explain.app_crash" and "capture" in first.fix
    first, *_ = found(
        tmp_path, "node-a:1:2 [0] include/alloc.h:120 NCCL WARN Cuda failure 800 'operation not permitted'\n"
    )
    assert first.code == "explain.nccl_cumem"


def test_a_build_for_cpu_is_not_the_user_s_line(tmp_path: Path) -> None:
    (first,) = found(tmp_path, f"{USERS}AssertionError: Torch not compiled with CUDA enabled\n")
    assert (first.code, first.where) == ("explain.unsupported_backend", {}) and "train.py" not in first.message


def test_nccl_s_out_of_memory_may_be_the_host_s(tmp_path: Path) -> None:
    first, *_ = found(tmp_path, "node-a:1:2 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n")
    assert (first.code, first.evidence["confidence"]) == ("explain.gpu_oom", "medium") and "cuMem" in first.message
    first, *_ = found(tmp_path, f"{USERS}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert first.evidence["confidence"] == "high"
