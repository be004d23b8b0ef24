"""A user's code, loaded and called in this process: whatever is wrong with it, his file and line come first."""

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from preflight.check import Skip, UserCode, UserError


@pytest.fixture(autouse=True)
def his_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current one, of a process that forgets afterwards what his code has done to it."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("path", [*sys.path]), ("argv", [*sys.argv]), ("dont_write_bytecode", False)):
        monkeypatch.setattr(sys, name, value)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(given: str) -> UserError:
    with pytest.raises(UserError) as caught:
        UserCode.parse(given).call()
    return caught.value


@pytest.mark.parametrize("given", ["model.py:build", "a/b-c.py:build", "model:build", "a.b.c:Net.make", "/x/y.py:f"])
def test_a_function_is_named_by_its_module_or_file(given: str) -> None:
    assert str(UserCode.parse(given)) == given


@pytest.mark.parametrize(
    "given", ["", "model", "model.py", ":build", "model:", "model:build()", "a/b:f", "-m:f", "1:f"]
)
def test_what_does_not_look_like_one_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"expected MODULE:FUNCTION or FILE\.py:FUNCTION"):
        UserCode.parse(given)


def test_it_is_called_from_his_folder_and_leaves_nothing_there(his_folder: Path) -> None:
    (his_folder / "sizes.py").write_text("HEADS = 4")
    (his_folder / "model.py").write_text("import sys, sizes\ndef build(): return sizes.HEADS, sys.argv\n")
    (his_folder / "src").mkdir()
    (his_folder / "src" / "my-model.py").write_text("import widths\nclass Net:\n  make = staticmethod(lambda: 7)\n")
    (his_folder / "src" / "widths.py").write_text("")
    assert UserCode.parse("model:build").call() == (4, ["model"])
    assert UserCode.parse("src/my-model.py:Net.make").call() == 7
    assert not list(his_folder.rglob("__pycache__"))


def test_his_file_does_not_take_the_place_of_a_module_that_is_loaded(his_folder: Path) -> None:
    loaded = sys.modules["platform"]
    (his_folder / "platform.py").write_text("def build(): return 1 / 0")
    assert refused("platform.py:build").text.startswith("platform.py:1 in build(): ZeroDivisionError")
    assert sys.modules["platform"] is loaded


ODD = """import sys
import argparse
MODEL = {}
class Net:
    def __init__(self):
        self.heads = [1 / zero for zero in (1, 0)]
def build(config, batch=32): return 1
def nothing(): pass
def leaves(): sys.exit(3)
def parses():
    argparse.ArgumentParser().parse_args(["--bad"])
def imports():
    import flash_attn_of_nobody
def torchs():
    import torch
    return torch.nn.Linear(2, 3)(torch.ones(5))
def several(): raise RuntimeError("Error(s) in loading:\\n\\tsize mismatch")
def evaluates(): eval("1 +")
def outer(): return torchs()
def interrupts(): raise KeyboardInterrupt
"""
WRONG = [
    ("odd:biuld", "odd.py: there is no function biuld in it; did you mean build?", None),
    ("odd:MODEL", "odd.py: MODEL is of type dict, expected a function", None),
    ("odd:build", "odd.py:7: build(config, batch) is called without arguments: missing a required argument: ", 7),
    ("odd:nothing", "odd.py:8: nothing() returns None: is a return missing?", 8),
    ("odd:Net", "odd.py:6 in Net.__init__(): ZeroDivisionError: ", 6),
    ("odd:leaves", "odd.py:9 in leaves(): it calls sys.exit(3)", 9),
    ("odd:parses", "odd.py:11 in parses(): it calls sys.exit(2)", 11),
    ("odd:imports", "odd.py:13 in imports(): ModuleNotFoundError: No module named 'flash_attn_of_nobody'", 13),
    ("odd:torchs", "odd.py:16 in torchs(): RuntimeError: ", 16),
    ("odd:several", "odd.py:17 in several(): RuntimeError: Error(s) in loading: size mismatch", 17),
    ("odd:outer", "odd.py:16 in torchs(): RuntimeError: ", 16),
    ("odd:interrupts", "odd.py:20 in interrupts(): KeyboardInterrupt: (no message)", 20),
    ("odd:evaluates", "odd.py:18 in evaluates(): SyntaxError: ", 18),
]  # fmt: skip


@pytest.mark.parametrize("as_file", [False, True], ids=["module", "file"])
@pytest.mark.parametrize(("given", "says", "line"), WRONG, ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_said_with_its_place_first(
    his_folder: Path, given: str, says: str, line: int | None, as_file: bool
) -> None:
    (his_folder / "odd.py").write_text(ODD)
    error = refused(given.replace("odd", "odd.py") if as_file else given)
    assert error.text.startswith(says)
    assert error.to_json() == {"file": "odd.py", "line": line, "text": str(error)}


def test_a_module_that_is_not_there_and_one_that_imports_such_a_one_are_told_apart(his_folder: Path) -> None:
    (his_folder / "model.py").write_text("\nimport modl\n")
    (his_folder / "pack").mkdir()
    (his_folder / "pack" / "__init__.py").write_text("")
    (his_folder / "pack" / "nets.py").write_text("")
    missing = refused("modle:build")
    assert missing.text == f"modle: there is no such module in {his_folder} or on Python's path; did you mean model?"
    assert (missing.file, missing.line) == (None, None)
    assert "pack.net: there is no such module" in str(refused("pack.net:build")) and "nets?" in str(
        refused("pack.net:f")
    )
    assert refused("model:build").text == "model.py:2: ModuleNotFoundError: No module named 'modl'"
    assert refused("gone/model.py:build").text.startswith(
        "gone/model.py: there is no such file (the current folder is /"
    )


def test_the_line_that_cannot_be_compiled_is_named(his_folder: Path) -> None:
    (his_folder / "model.py").write_text("import layers")
    (his_folder / "layers.py").write_text("x = 1\ndef f(:\n")
    assert refused("model:build").text == "layers.py:2: SyntaxError: invalid syntax"


def test_code_in_an_installed_package_is_his_if_he_names_it(his_folder: Path) -> None:
    installed = his_folder / "venv" / "site-packages"
    for name in ("theirs", "his"):
        (installed / name).mkdir(parents=True)
    (installed / "theirs" / "__init__.py").write_text("def fails(): raise ValueError('odd')")
    (installed / "his" / "__init__.py").write_text("import theirs\ndef build(): theirs.fails()")
    (his_folder / "model.py").write_text("import theirs\ndef build():\n  theirs.fails()")
    sys.path.append(str(installed))
    assert refused("model:build").text == "model.py:3 in build(): ValueError: odd"
    assert refused("his:build").text == "venv/site-packages/his/__init__.py:2 in build(): ValueError: odd"


# Called again: a forward

NET = """import json, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.width = torch.nn.Linear(2, 2)
    def forward(self, x):
        if x.shape[0] == 7:
            raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
        json.loads("[" * (x.shape[0] == 5) + "1")
        return self.width(x)
class Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, grad):
        return grad + torch.ones(9)
"""


def build(his_folder: Path) -> tuple[UserCode, torch.nn.Module]:
    (his_folder / "net.py").write_text(NET)
    code = UserCode.parse("net:Net")
    return code, code.call()


def test_what_torch_raises_in_his_forward_is_his_line(his_folder: Path) -> None:
    code, model = build(his_folder)
    with pytest.raises(UserError) as caught, code.blamed():
        model(torch.ones(1, 3))
    assert caught.value.text.startswith("net.py:10 in Net.forward(): RuntimeError: mat1 and mat2 shapes cannot")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_so_is_what_his_backward_raises(his_folder: Path) -> None:
    code, _ = build(his_folder)
    with pytest.raises(UserError, match=r"net\.py:17 in Cut\.backward\(\): RuntimeError: "), code.blamed():
        sys.modules["net"].Cut.apply(torch.ones(2, requires_grad=True)).sum().backward()


def test_what_a_collective_has_raised_stays_what_it_is(his_folder: Path) -> None:
    code, model = build(his_folder)
    with pytest.raises(RuntimeError, match="Connection closed by peer"), code.blamed():
        model(torch.ones(7, 2))


def test_what_came_through_no_line_of_his_stays_what_it_is(his_folder: Path) -> None:
    code, model = build(his_folder)
    with pytest.raises(ZeroDivisionError), code.blamed():
        model(torch.ones(1, 2)).sum().item() / 0
    with pytest.raises(Skip), code.blamed():
        try:
            model(torch.ones(1, 3))
        except RuntimeError:
            raise Skip("too large") from None
    with code.blamed():
        model(torch.ones(1, 2))


def test_a_check_in_his_folder_is_not_the_code_that_it_calls(his_folder: Path) -> None:
    code, _ = build(his_folder)
    (his_folder / "own_check.py").write_text("def measure(code):\n  with code.blamed():\n    return 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("own_check").measure(code)


@pytest.mark.parametrize(("rows", "raised"), [(1, "RuntimeError"), (5, "JSONDecodeError")])
def test_a_current_folder_that_holds_everything_makes_nothing_his(his_folder: Path, rows: int, raised: str) -> None:
    """Neither torch's code nor the standard library's."""
    code, model = build(his_folder)
    os.chdir("/")
    with pytest.raises(UserError, match=raised) as caught, code.blamed():
        model(torch.ones(rows, 3))
    assert caught.value.file == str(his_folder / "net.py").removeprefix("/")


def test_a_build_of_torch_in_his_folder_is_not_his(his_folder: Path) -> None:
    source = his_folder / "torch" / "losses.py"
    its: dict[str, Any] = {"__name__": "torch.losses"}
    exec(compile("def loss(): raise ValueError('odd')", str(source), "exec"), its)
    code, _ = build(his_folder)
    (his_folder / "step.py").write_text("def step(loss):\n  loss()\n")
    step = importlib.import_module("step").step
    with pytest.raises(UserError, match=r"step\.py:2 in step\(\): ValueError: odd"), code.blamed():
        step(its["loss"])


def test_his_code_may_change_the_current_folder(his_folder: Path) -> None:
    (his_folder / "src").mkdir()
    (his_folder / "rows.py").write_text("def row(): raise ValueError('odd')")
    for file in ("src/net.py", "net.py"):
        (his_folder / file).write_text("import os, sys\ndef build(): os.chdir('/proc')\n")
    for given in ("src/net.py:build", "net:build"):
        os.chdir(his_folder)
        code = UserCode.parse(given)
        assert code.call(may_be_none=True) is None
        sys.path.insert(0, str(his_folder))
        place = code.place()
        assert place is not None and place[0].endswith("net.py") and place[1] == 2
        with pytest.raises(UserError, match=r"rows\.py:1 in row\(\): ValueError: odd"), code.blamed():
            importlib.import_module("rows").row()


def test_where_his_functions_and_classes_begin(his_folder: Path) -> None:
    code, _ = build(his_folder)
    net = sys.modules["net"]
    assert code.place_of(net.Net) == ("net.py", 2)
    assert code.place_of(net.Net.forward) == ("net.py", 6)
    for other in (torch.nn.Linear, json.loads, len, 7, None):
        assert code.place_of(other) is None


# In a worker of a DataLoader

FILES = """import json, torch
class Unmade(Exception):
    def __init__(self, path, row):
        super().__init__(f"{path}: row {row}")
class Files(torch.utils.data.Dataset):
    def __init__(self, fails):
        self.fails = fails
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.zeros(self.read(index))
    def read(self, index):
        if index == 2:
            self.fails()
        return 1 if index < 2 or self.fails is not longer else 5
def key(): {}["odd"]
def several(): raise RuntimeError("Error(s) in loading:\\n\\tsize mismatch\\n\\nand more")
def unmade(): raise Unmade("x.bin", 7)
def library(): json.loads("[")
def longer(): pass
def chained():
    try:
        key()
    except KeyError as error:
        json.loads("")
class Wrapper:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        yield from self.loader
def loader(fails, batch=1):
    return torch.utils.data.DataLoader(Files(fails), batch, num_workers=1, multiprocessing_context="fork")
def build(): return loader
"""
RAISED_THERE = [
    ("key", r"16 in key\(\): KeyError: 'odd'"),
    ("several", r"17 in several\(\): RuntimeError: Error\(s\) in loading: size mismatch"),
    ("unmade", r"18 in unmade\(\): Unmade: x\.bin: row 7"),
    ("library", r"19 in library\(\): JSONDecodeError: Expecting value: line 1 .*"),
    ("chained", r"25 in chained\(\): JSONDecodeError: Expecting value: line 1 .*"),
]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(("fails", "says"), RAISED_THERE, ids=[case[0] for case in RAISED_THERE])
def test_what_a_worker_raises_is_his_line_there(his_folder: Path, fails: str, says: str) -> None:
    (his_folder / "files.py").write_text(FILES)
    code = UserCode.parse("files:build")
    loader = code.call()(getattr(sys.modules["files"], fails))
    with pytest.raises(UserError) as caught, code.blamed():
        list(sys.modules["files"].Wrapper(loader))
    assert re.fullmatch(rf"files\.py:{says} \(in DataLoader worker 0\)", caught.value.text)
    assert f"files.py:{caught.value.line} " in caught.value.text


@pytest.mark.process
@pytest.mark.more
def test_what_torch_raises_in_a_worker_through_no_line_of_his(his_folder: Path) -> None:
    (his_folder / "files.py").write_text(FILES)
    code = UserCode.parse("files:build")
    files = code.call() and sys.modules["files"]
    loader = files.loader(files.longer, batch=3)
    said = r"RuntimeError: stack expects each tensor to be equal size, .* \(in DataLoader worker 0\)"
    with pytest.raises(RuntimeError, match="stack expects"), code.blamed():
        list(loader)
    with pytest.raises(UserError, match=rf"^files:build: {said}$"), code.blamed(always=True):
        list(loader)
    with pytest.raises(UserError, match=rf"^files\.py:30 in Wrapper\.__iter__\(\): {said}$"), code.blamed():
        list(files.Wrapper(loader))


def test_a_build_of_torch_in_his_folder_is_not_his_in_a_worker_either(his_folder: Path) -> None:
    (his_folder / "files.py").write_text(FILES)
    code = UserCode.parse("files:build")
    code.call()
    stack = 'File "{}", line 7 in read\n  File "{}", line 9 in step'
    ours, torchs = str(his_folder / "files.py"), str(torch.utils.data.__file__)
    sys.path.insert(0, str(Path(torchs).parent))
    assert str(code.innermost_printed(stack.format(torchs, ours))) == "files.py:9 in step()"
    os.chdir(Path(torch.__file__).parent.parent)
    assert str(code.innermost_printed(stack.format(torchs, ours))) == f"{ours}:9 in step()"
