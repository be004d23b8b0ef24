"""Exceptions: with all lines of their text, their place, and what to do about them."""

from pathlib import Path

import pytest

from preflight.core.finding import Reported
from preflight.explain.command import explain_paths

HEAD = ("Traceback (most recent call last):", '  File "/job/train.py", line 41, in <module>', "    main()")
STEPS = tuple(f"{{'loss': 2.{step}, 'grad_norm': 1.2, 'epoch': 0.0{step}}}" for step in range(1, 5))


def explained(folder: Path, *texts: str) -> Reported | None:
    log = folder / "job.log"
    log.write_text("".join(f"{text}\n" for text in texts))
    made = explain_paths([str(log)])
    first = next(iter(made.findings), None)
    assert (made.exit_code == 0) == (first is None or first.severity == "warn")
    return first


def test_a_text_of_several_lines_is_whole(tmp_path: Path) -> None:
    """Wrapped by rich, as DeepSpeed's in a terminal of 70 columns; indented; behind a colon."""
    wrapped = "ValueError: the number of experts is not a multiple of the"
    first = explained(
        tmp_path, *HEAD, wrapped, "number of expert-parallel ranks of this training job, which is", "8 here"
    )
    assert (
        first
        and f"{wrapped} number of expert-parallel ranks of this training job, which is 8 here (/job/train.py:41)"
        in first.message
    )
    first = explained(tmp_path, *HEAD, "ValueError: two problems", "    no data", "no more")
    assert first and "ValueError: two problems no data (/job/train.py:41)" in first.message
    first = explained(tmp_path, *HEAD, "RuntimeError: Last error:", "too little of it")
    assert first and "RuntimeError: Last error: too little of it (/job/train.py:41)" in first.message


@pytest.mark.parametrize(
    "after", ["command terminated", "WARNING: it ends", "[rank1]: x", "", "CUDA kernel errors may"]
)
def test_what_follows_an_exception_is_not_its_text(after: str, tmp_path: Path) -> None:
    first = explained(tmp_path, *HEAD, "KeyError: 'x'", after)
    assert first and first.message.endswith("KeyError: 'x' (/job/train.py:41)")


def test_the_users_line_is_named_where_a_signature_fits(tmp_path: Path) -> None:
    head = [f"[rank3]: {text}" for text in HEAD]
    library = '[rank3]:   File "/v/site-packages/torch/distributed/fsdp/_flat_param.py", line 7, in f'
    text = "[rank3]: ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32"
    first = explained(tmp_path, *head, library, "[rank3]:     raise ValueError(", text)
    assert first and first.where == {"rank": 3, "file": "/job/train.py", "line": 41}
    assert first.message.endswith("(/job/train.py:41)") and "FSDP2" in first.fix


@pytest.mark.parametrize(
    ("raised", "fix"),
    [
        ("job.errors.BadSample: 3", "Look at /job/train.py:41"),
        ("RuntimeError: CUDA error: unheard of", "CUDA_LAUNCH_BLOCKING=1"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a.csv'", "ls -ld"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "import flash_attn"),
        ("requests.exceptions.ProxyError: no way", "HTTPS_PROXY"),
    ],
)
def test_what_to_do_depends_on_the_exception(raised: str, fix: str, tmp_path: Path) -> None:
    first = explained(tmp_path, *HEAD, raised)
    assert first and first.code == "explain.app_crash" and fix in first.fix
    assert ("CUDA_LAUNCH_BLOCKING" in first.fix) == ("CUDA" in raised)


def test_one_rank_or_all(tmp_path: Path) -> None:
    texts = [f"[rank{rank}]: {text}" for rank in (0, 1) for text in (*HEAD, "KeyError: 'x'")]
    first = explained(tmp_path, *texts)
    assert first and "All ranks raise it" in first.fix
    first = explained(tmp_path, *texts[:4], "[rank1]: step 3 of 10 failed with error")
    assert first and "Only rank 0 shows it here" in first.fix


@pytest.mark.parametrize(
    "raised", ["lib.MisconfigurationException: no", "BadSampleException: 3", "[rank1]: OddError: 3"]
)
def test_an_exception_is_never_called_healthy(raised: str, tmp_path: Path) -> None:
    assert explained(tmp_path, "starting", raised)


def test_deepspeeds_batch_sizes_wrapped(tmp_path: Path) -> None:
    first = explained(
        tmp_path,
        "AssertionError: Check batch related parameters. train_batch_size is not",
        "equal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 *",
        "8 * 1",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 918)",
    )
    assert first and first.code == "explain.world_size_wrong"
    assert "64 != 4 * 8 * 1" in first.message and "ERROR" not in first.message
    assert "If that is 1" in first.fix


RETRIED = (
    "[E1125 19:40:06.844135424 socket.cpp:1028] [c10d] The client socket has timed out after 3000ms while trying to "
    "connect to (127.0.0.1, 10984).",
    "[W1125 19:40:06.844431465 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 127.0.0.1:10984 "
    "- retrying (try=0, timeout=3000ms, delay=2947ms): The client socket has timed out after 3000ms while trying to "
    "connect to (127.0.0.1, 10984).",
)


def test_a_connection_that_c10d_tries_again_does_not_explain_an_exception(tmp_path: Path) -> None:
    """Seen where rank 0 imported torch slowly. c10d raises when it gives up."""
    first = explained(tmp_path, *RETRIED, *HEAD, "ValueError: sample 17 has no label")
    assert first and first.code == "explain.app_crash" and first.where == {"file": "/job/train.py", "line": 41}
    gave_up = "torch.distributed.DistNetworkError: The client socket has timed out after 3000ms while trying to connect"
    for rest in ((*HEAD, f"{gave_up} to (127.0.0.1, 10984)."), ()):
        first = explained(tmp_path, *RETRIED, *rest)
        assert first and first.code == "explain.rdzv_master_unreachable" and first.severity == "fail"
