"""What torch 2.13's torch.load says of files that are no checkpoints: the file is to blame, and no peer or bug."""

from pathlib import Path

import pytest

from preflight.explain.command import explain_paths

HEAD = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 6, in <module>',
    '    torch.load("last.pt")',
)
UNPICKLER = '  File "/venv/lib/python3.11/site-packages/torch/_weights_only_unpickler.py", line 327, in load'
READER = (
    '  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 807, in __init__',
    "    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))",
)
NO_PICKLE = (
    "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default of `weights_only`.",
    "Please file an issue with the following: WeightsUnpickler error: ",
    "",
    "Unsupported operand 60",
)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((UNPICKLER, "    raise EOFError", "EOFError"), "it is empty, or cut off"),
        ((*READER, "OSError: [Errno 22] Invalid argument"), "it is cut off"),
        (NO_PICKLE, "its byte 60 is no operation of a pickle"),
    ],
)
def test_a_file_that_is_no_checkpoint(tmp_path: Path, lines: tuple[str, ...], says: str) -> None:
    (tmp_path / "job.log").write_text("".join(f"{line}\n" for line in (*HEAD, *lines)))
    first, *others = explain_paths([str(tmp_path / "job.log")]).findings
    assert (first.code, others) == ("explain.checkpoint", [])
    assert says in first.message


@pytest.mark.parametrize("raised", ["EOFError", "OSError: [Errno 22] Invalid argument"])
def test_the_same_exception_elsewhere_says_nothing_of_a_checkpoint(tmp_path: Path, raised: str) -> None:
    (tmp_path / "job.log").write_text("".join(f"{line}\n" for line in (*HEAD[:2], "    pipe.recv()", raised)))
    assert next(iter(explain_paths([str(tmp_path / "job.log")]).findings)).code != "explain.checkpoint"
