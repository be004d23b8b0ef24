"""The function of `--data`: called once, its loaders by their names, and what it leaves behind."""

import importlib.util
import json
import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from preflight.check import Context, Job, Level, Node, UserCode
from preflight.checks.data.shared import side_effects, user_function
from preflight.checks.data.shared.user_function import Called, called
from tests import forked

HIS = """import contextlib, io, itertools, logging, multiprocessing, os, pathlib, random, shutil, signal, sys, tempfile
import threading, time, warnings
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset
calls = []
rows = TensorDataset(torch.arange(8))
class Rows(IterableDataset):
    def __iter__(self): return iter(range(8))
class Restarts:
    def __iter__(self): return self
    def __next__(self): raise StopIteration
def loader(**more): return DataLoader(rows, 2, **more)
def counted():
    calls.append(1)
    return loader()
def several(): return [loader(), Restarts()]
def by_name(): return {"train": loader(), 2: Rows(), "batches": [torch.ones(2), torch.ones(2)]}
def streams(): return Rows()
def nothing(): pass
def empty(): return []
def dataset(): return rows
def sampler(): return DistributedSampler(rows, 2, 0)
def generator(): yield 1
def mapped(): return map(str, [1])
def iterator(): return iter(loader())
def a_class(): return Rows
def a_function(): return generator
def number(): return 7
def text(): return "train"
def tensor(): return torch.ones(3)
def some_none(): return loader(), None
def nested(): return {"train": [loader(), loader()]}
def raises(): raise ValueError("odd")
def leaves(): sys.exit(3)
def interrupts(): raise KeyboardInterrupt
def waits():
    with contextlib.suppress(Exception):
        threading.Event().wait()
def twice(): raise ValueError("trying to initialize the default process group twice!")
def collective():
    raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
def draws():
    random.seed(3)
    torch.manual_seed(4)
    return loader()
def ranks(): return {os.environ["RANK"] + " of " + os.environ["WORLD_SIZE"]: loader()}
# What it leaves
def prints():
    print("first\\n\\nsecond", "\\x1b[31mred")
    sys.stderr.write("th")
    sys.stderr.writelines(["ird", "\\n", "fourth\\n"])
    sys.stdout.write("x" * 1000)
    return loader()
def prints_a_lot():
    for number in range(100_000):
        print(number)
    return loader()
def takes_stdout():
    global kept
    print("counted")
    kept = sys.stdout
    sys.stdout = io.StringIO()
    print("not seen")
    kept.close()
    return loader()
def prints_bytes():
    sys.stdout.buffer.write(b"\\xff\\n")
    sys.stdout.flush()
    return loader()
def prints_no_text():
    sys.stdout.write(b"odd")
def writes():
    here = pathlib.Path.cwd()
    os.makedirs("cache/a", exist_ok=True)
    os.makedirs(here, exist_ok=True)
    (here / "cache/rows.txt").write_text("1")
    (here / "cache/rows.txt").read_text()
    os.replace("cache/rows.txt", b"cache/more.txt")
    torch.save(rows, "cache/rows.pt")
    with open("cache/rows.pt", "rb") as file:
        torch.save(rows, io.BytesIO(file.read()))
    os.remove("cache/more.txt")
    with contextlib.suppress(OSError):
        os.remove("none.txt")
    shutil.rmtree("cache")
    (here.parent / "beside.txt").write_text("1")
    open(b"\\xff.txt", "w").close()
    return loader()
def writes_what_is_its_own():
    with tempfile.TemporaryDirectory() as folder, open(folder + "/x", "w"): pass
    tempfile.TemporaryFile().close()
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w"), open("/dev/null", "w"), open("rows.lock", "w"), open("/proc/self/comm", "r+"): pass
    os.mkfifo("fifo")
    os.close(os.open("fifo", os.O_RDWR))
    os.mkdir("__pycache__")
    return loader()
def writes_many():
    for number in range(50): open(f"{number}.txt", "w").close()
    return loader()
def makes_a_mess():
    os.chdir("/")
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    signal.signal(signal.SIGALRM, lambda *_: None)
    with multiprocessing.get_context("fork").Pool(1) as pool: pool.map(str, [1])
    sys.stdout = sys.stderr = None
    return loader()
"""
LINES = {line.split("(")[0].removeprefix("def "): number for number, line in enumerate(HIS.splitlines(), 1)}


def context(rank: int, *members: int) -> Context:
    """Of a job of as many ranks as the last of these has before it."""
    world = members[-1] + 1
    return Context(
        check="data.sampler", job=Job("env", world, "gloo", (Node("node-0", 0, tuple(range(world))),)), rank=rank,
        local_rank=rank, members=members, environ={}, deadline_s=60, page=forked.NoPage(), make_group=lambda: None,  # type: ignore[arg-type,return-value]
        make_store=lambda: None, level=Level.STANDARD,  # type: ignore[arg-type,return-value]
    )  # fmt: skip


@pytest.fixture(autouse=True)
def his_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current one, in a process that forgets his code afterwards."""
    folder = tmp_path / "his"
    folder.mkdir()
    (folder / "data.py").write_text(HIS)
    monkeypatch.chdir(folder)
    for name, value in (("path", [*sys.path]), ("argv", [*sys.argv]), ("dont_write_bytecode", False)):
        monkeypatch.setattr(sys, name, value)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(user_function, "_calls", {})
    monkeypatch.setattr(user_function, "bounded", lambda *_: None)  # there is no process group
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    states = random.getstate(), torch.get_rng_state()
    yield folder
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    sys.modules.pop("data", None)


def call(function: str, patience_s: float = 60) -> Called:
    made = called(context(0, 0), UserCode.parse(f"data.py:{function}"), patience_s)
    json.dumps([made.mistake, made.printed, made.lines, made.written], ensure_ascii=False).encode()
    return made


def test_it_is_called_once() -> None:
    first = call("counted")
    assert call("counted") is first
    assert sys.modules["data"].calls == [1]
    assert call("streams") is not first


@pytest.mark.parametrize(
    ("function", "names"),
    [("loader", [""]), ("streams", [""]), ("several", ["0", "1"]), ("by_name", ["train", "2", "batches"])],
)
def test_loaders_by_their_names(function: str, names: list[str]) -> None:
    made = call(function)
    assert (list(made.loaders), made.mistake) == (names, None)


ONE_LOADER = "expected the DataLoader that"
WRONG = {
    "nothing": "None, expected a loader",
    "empty": "an empty list, expected loaders in it",
    "dataset": f"a dataset (TensorDataset), {ONE_LOADER} reads it",
    "sampler": f"a sampler (DistributedSampler), {ONE_LOADER} uses it",
    "generator": "a generator, which can be read only once: expected the loader, which",
    "mapped": "a map, which can be read only once: expected the loader, which",
    "iterator": "a _SingleProcessDataLoaderIter, which can be read only once: expected the loader, which",
    "a_class": "the class Rows, expected an object of it",
    "a_function": "the function generator, expected what it returns",
    "number": "of type int, expected a DataLoader, or another object that a for loop reads once per epoch",
    "text": "of type str, expected a DataLoader",
    "tensor": "of type Tensor, expected a DataLoader",
    "some_none": "a tuple whose element 1 is None, expected a loader",
    "nested": "a dict whose 'train' is a list of loaders, expected a loader: name all of them in one list or dict",
}


@pytest.mark.parametrize("function", WRONG)
def test_what_is_no_loader_is_told_with_the_functions_line(function: str) -> None:
    made = call(function)
    assert made.mistake is not None
    assert made.mistake["text"].startswith(f"data.py:{LINES[function]}: {function}() returns {WRONG[function]}")
    assert (made.mistake["kind"], made.mistake["file"]) == ("wrong_return", "data.py")
    assert (made.mistake["line"], made.loaders) == (LINES[function], {})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "ValueError: odd"),
        ("leaves", "it calls sys.exit(3)"),
        ("interrupts", "KeyboardInterrupt: (no message)"),
        ("prints_no_text", "TypeError: write() argument must be str, not bytes"),
        ("twice", "(preflight has created it before the call: create one only if not torch.distributed.is_init"),
    ],
)
def test_what_his_function_raises(function: str, said: str) -> None:
    mistake = call(function).mistake
    assert mistake is not None and mistake["kind"] == "user_error"
    assert mistake["text"].startswith(f"data.py:{mistake['line']} in {function}(): ") and said in mistake["text"]


def test_a_function_that_does_not_return() -> None:
    mistake, line = call("waits", patience_s=0.2).mistake, LINES["waits"] + 2
    assert mistake is not None
    assert mistake["text"] == f"data.py:{line} in waits(): still here after 0.2 s, expected waits() to return"
    assert (mistake["kind"], mistake["file"], mistake["line"]) == ("stuck", "data.py", line)


def test_what_a_collective_has_raised_is_not_his() -> None:
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        call("collective")


def test_ranks_are_those_of_the_process_group() -> None:
    """One was lost: a sampler that reads RANK must not leave its part out."""
    assert list(called(context(2, 0, 2, 3), UserCode.parse("data.py:ranks"), 60).loaders) == ["1 of 3"]


def test_random_states_around_the_call() -> None:
    torch.manual_seed(1)
    made = call("draws")
    assert (made.before["torch"].seed, made.after["torch"].seed) == (1, 4)
    assert made.before["Python"].digest != made.after["Python"].digest


# What it leaves


def test_lines_that_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    made = call("prints")
    assert made.printed == ["first", "second \ufffd[31mred", "third"]
    assert made.lines == 5
    sys.stdout.write("end")
    out, err = capsys.readouterr()
    assert out.startswith("first\n\nsecond \x1b[31mred") and out.endswith(f"{'x' * 1000}end")
    assert err == "third\nfourth\n"


def test_a_warning_is_no_line_of_his(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.find_spec("warnings")
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)  # pytest has taken hold of the loaded one
    spec.loader.exec_module(fresh)
    with side_effects.traced() as left:
        fresh.showwarning("odd", UserWarning, "x.py", 1)
        logging.Handler.handle(logging.StreamHandler(sys.stderr), logging.makeLogRecord({"msg": "his"}))
    assert (left.lines, left.printed) == (1, ["his"])
    assert "odd" in capsys.readouterr().err


def test_very_many_lines_are_counted() -> None:
    made = call("prints_a_lot")
    assert (made.printed, made.lines) == (["0", "1", "2"], 100_000)


def test_stdout_is_as_before_whatever_he_does_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = call("takes_stdout")
    sys.modules["data"].kept.write("later\n")
    print("after")
    assert (made.printed, made.lines) == (["counted"], 1)
    assert capsys.readouterr().out == "counted\nlater\nafter\n"


def test_bytes_go_where_they_went(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert call("prints_bytes").mistake is None
    assert capfdbinary.readouterr().out == b"\xff\n"


def test_files_that_it_writes(his_folder: Path) -> None:
    names = [
        "cache",
        "cache/a",
        "cache/rows.txt",
        "cache/more.txt",
        "cache/rows.pt",
        f"{his_folder.parent}/beside.txt",
        "\ufffd.txt",
    ]
    assert call("writes").written == names
    assert torch.save.__module__ == "torch.serialization"
    Path("later.txt").write_text("1")
    assert call("writes").written == names


def test_files_that_no_other_rank_means() -> None:
    assert call("writes_what_is_its_own").written == []


def test_only_the_first_files_are_kept() -> None:
    assert call("writes_many").written == [f"{number}.txt" for number in range(20)]


def test_what_it_does_to_its_process_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    made = call("makes_a_mess")
    assert (made.mistake, list(made.loaders)) == (None, [""])
    print("still here")
    assert capsys.readouterr().out == "still here\n"
    assert made.function.place() == ("/".join([made.function.start, "data.py"]).lstrip("/"), LINES["makes_a_mess"])


def test_imports_may_take_longer_than_the_function(his_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second of imports under a patience of a fifth; and what never ends is ended."""
    (his_folder / "heavy.py").write_text("import time\ntime.sleep(0.5)\nfrom data import loader as build\n")
    assert called(context(0, 0), UserCode.parse("heavy.py:build"), 0.2).mistake is None
    monkeypatch.setattr(user_function, "IMPORTS", 0.0)
    (his_folder / "heavier.py").write_text("import time\ntime.sleep(60)\n")
    mistake = called(context(0, 0), UserCode.parse("heavier.py:build"), 0.2).mistake
    assert mistake is not None and mistake["kind"] == "stuck" and "heavier.py to be imported" in mistake["text"]
