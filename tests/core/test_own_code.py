"""Which line of a stack is the user's: the same for `run`, `debug` and `explain`."""

from pathlib import Path

import pytest

from preflight.core.own_code import is_own
from preflight.explain.artifacts.flight_recorder import innermost_place
from preflight.explain.artifacts.processes import own_place
from preflight.explain.logs.tracebacks import Tracebacks
from preflight.failure_book.line import Line
from preflight.sdk.user_code import UserCode

OWN = (
    "/job/train.py", "train.py", "../shared/model.py", "/home/ann/torchvision_fork/train.py", "/job/my_threading.py",
    "/data/library/python_jobs/train.py", "C:\\job\\train.py", "/job/lib/loader.py", "/job/importlib_hacks.py",
)  # fmt: skip
LIBRARY = (
    "", "<string>", "<frozen runpy>", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "/usr/lib/python3/dist-packages/yaml/reader.py", "/usr/lib/python3.11/json/decoder.py",
    "/opt/lib64/python3.12/threading.py", "/src/pytorch/torch/_tensor.py", "torch/autograd/graph.py",
    "/opt/conda/bin/torchrun", "C:\\Python311\\Lib\\runpy.py", "/zip/multiprocessing/process.py",
    "/folder/sitecustomize.py", "/folder/preflight_debug_rank.py", "../torch/csrc/Event.cpp", "nccl.cu",
)  # fmt: skip


@pytest.mark.parametrize("path", OWN)
def test_a_users_file_is_own(path: str) -> None:
    assert is_own(path)


@pytest.mark.parametrize("path", LIBRARY)
def test_a_librarys_file_is_not(path: str) -> None:
    assert not is_own(path)


def test_below_a_folder_of_the_users_only_the_rest_of_the_path_counts() -> None:
    home = "/venv/lib/python3.11/site-packages/ours"
    assert is_own(f"{home}/model.py", home) and not is_own(f"{home}/venv/lib/python3.11/json/decoder.py", home)
    assert is_own("/job/site-packages/ours.py", "/job/site-packages/ours.py")
    assert not is_own("/job/site-packages/ours.py", "/job")
    assert not is_own("/venv/lib/python3.11/site-packages/ours2/model.py", home)


def test_torch_and_preflight_are_never_own_by_their_modules() -> None:
    assert not is_own("/job/checkout/nn.py", "/job", "torch.nn")
    assert not is_own("/job/checkout/check.py", "/job", "preflight.check")
    assert is_own("/job/checkout/nn.py", "/job", "torchish.nn")


@pytest.mark.parametrize("library", [path for path in LIBRARY if path])
def test_all_commands_blame_the_same_line_of_a_stack(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = str(tmp_path / "train.py")
    stack = [(library, 3, "inner", ""), (own, 7, "step", ""), (own, 9, "main", "")]
    live = UserCode("train", "build").innermost(stack)
    assert live and (live.file, live.line) == ("train.py", 7)
    assert own_place(stack, {"cwd": str(tmp_path)}) == ("train.py", 7, "step")
    frames = [{"filename": path, "line": line} for path, line, _, _ in stack]
    assert innermost_place(frames) == {"at": "train.py:7", "file": own, "line": 7}
    tracebacks = Tracebacks()
    printed = [f'  File "{path}", line {line}, in {name}' for path, line, name, _ in reversed(stack)]
    for number, text in enumerate(["Traceback (most recent call last):", *printed, "ValueError: odd"], 1):
        tracebacks.add(Line(text, text, "job.log", number, number), {}, set())
    assert [(traceback.file, traceback.number) for traceback in tracebacks] == [(own, 7)]
