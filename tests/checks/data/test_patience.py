"""How long the user's code is waited for, and which line of his is told when that is over."""

import importlib
import multiprocessing
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from preflight.check import UserCode
from preflight.checks.data.shared import timeouts as module
from preflight.checks.data.shared.timeouts import Stuck, patience
from preflight.checks.data.shared.waiting import Waiting

SHORT_S = 0.2

HIS = """import multiprocessing, os, signal, threading, time
from torch.utils.data import DataLoader, Dataset, IterableDataset
never = threading.Event()
there = multiprocessing.get_context("fork").Event()
def build(): return 1
def waits():
    never.wait()
def swallows():
    try:
        waits()
    except BaseException:
        pass
    while True:
        time.sleep(1)
def tries():
    while True:
        try:
            waits()
        except Exception:
            pass
def translates():
    try:
        waits()
    except BaseException as error:
        raise ValueError("odd") from error
def returns():
    try:
        waits()
    except BaseException:
        return 1
def computes():
    x = 0
    while True:
        x = sum(range(1000))
def stay():
    there.set(); never.wait()
class Files(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 5:
            stay()
        return index
class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)
        there.set(); os.read(os.pipe()[0], 1)
class Wrapper:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        for batch in self.loader:
            yield batch
def collate(rows):
    if 5 in rows:
        stay()
    return rows
def deaf(_):
    signal.signal(signal.SIGRTMAX - 5, signal.SIG_DFL)
def files():
    return fork(Files())
def stream():
    return fork(Stream())
def collated():
    return fork(range(8), collate_fn=collate)
def told_nothing():
    return fork(Files(), worker_init_fn=deaf)
def library():
    return fork([0, 0, 0, 0, 0, 3600], collate_fn=time.sleep, batch_size=None)
def fork(dataset, **settings):
    return DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **settings)
"""


@pytest.fixture
def his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[UserCode, Any]]:
    """His code, and the module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "stream.py").write_text(HIS)
    code = UserCode.parse("stream.py:build")
    code.call()
    yield code, sys.modules["stream"]
    for name in ("stream", "own_check"):
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def alarm_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "ANSWER_S", 30.0)  # a busy machine's workers answer late
    monkeypatch.setattr(module, "ANSWERS_S", 60.0)
    yield
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def stuck(code: UserCode | None, body: Callable[[], object], seconds: float = SHORT_S) -> Stuck:
    with pytest.raises(Stuck) as caught, patience(seconds, "batch 3", code):
        body()
    return caught.value


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)


def test_a_body_that_ends_in_time_is_let_go(his: tuple[UserCode, Any]) -> None:
    with patience(60, "batch 3", his[0]):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with pytest.raises(ZeroDivisionError), patience(60, "batch 3", None):
        raise ZeroDivisionError


@pytest.mark.parametrize("function", ["waits", "swallows", "tries", "translates", "returns"])
def test_his_line_is_told_whatever_he_does_with_it(his: tuple[UserCode, Any], soon_again: None, function: str) -> None:
    error = stuck(his[0], getattr(his[1], function))
    assert error.text == "stream.py:7 in waits(): still here after 0.2 s, expected batch 3"
    assert (error.file, error.line) == ("stream.py", 7)


def test_what_computes_for_ever_is_ended_too(his: tuple[UserCode, Any]) -> None:
    assert stuck(his[0], his[1].computes).text.startswith("stream.py:3")


def test_without_a_line_of_his_only_the_time_is_told(his: tuple[UserCode, Any]) -> None:
    never = threading.Event()
    assert stuck(his[0], never.wait).text == "stream.py:build: nothing after 0.2 s, expected batch 3"
    assert stuck(None, his[1].waits).text == "nothing after 0.2 s, expected batch 3"


def test_the_line_of_a_check_in_his_folder_is_not_his(his: tuple[UserCode, Any], tmp_path: Path) -> None:
    wait = "from preflight.checks.data.shared.timeouts import patience\n"
    wait += "def check(code):\n  with patience(0.2, 'it', code):\n"
    (tmp_path / "own_check.py").write_text(f"{wait}    import time\n    time.sleep(3600)\n")
    with pytest.raises(Stuck, match=r"^stream\.py:build: nothing"):
        importlib.import_module("own_check").check(his[0])


@pytest.mark.parametrize("outer_first", [True, False])
def test_one_within_another(his: tuple[UserCode, Any], outer_first: bool) -> None:
    outer, inner = (SHORT_S, 60) if outer_first else (60, SHORT_S)
    with pytest.raises(Stuck) as caught, patience(outer, "the outer", his[0]), patience(inner, "the inner", his[0]):
        his[1].waits()
    assert caught.value.text.endswith(f"expected the {'outer' if outer_first else 'inner'}")


def test_the_outer_goes_on_after_the_inner(his: tuple[UserCode, Any]) -> None:
    with pytest.raises(Stuck, match="expected the outer"), patience(SHORT_S, "the outer", his[0]):
        with patience(60, "the inner", his[0]):
            pass
        his[1].waits()


def test_his_own_alarm_is_put_back(his: tuple[UserCode, Any]) -> None:
    rung = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rung.set())
    signal.setitimer(signal.ITIMER_REAL, SHORT_S)
    try:
        with patience(60, "batch 3", his[0]):
            assert rung.wait(30)  # it rings within, too
        rung.clear()
        signal.setitimer(signal.ITIMER_REAL, SHORT_S)
        with patience(60, "batch 3", his[0]):
            pass
        assert rung.wait(30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_he_does_to_the_alarm_ends_with_the_body(his: tuple[UserCode, Any]) -> None:
    with patience(60, "batch 3", his[0]):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(50)


def test_outside_of_the_main_thread_nothing_is_ended(his: tuple[UserCode, Any]) -> None:
    done: list[str] = []

    def body() -> None:
        with patience(0.001, "batch 3", his[0]):
            done.append("done")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == ["done"]


# In workers of a DataLoader


@pytest.mark.parametrize(
    ("loader", "wrapped", "where"),
    [
        ("files", False, r"stream\.py:36 in stay\(\), in 1 of 2 DataLoader workers"),
        ("files", True, r"stream\.py:36 in stay\(\), in 1 of 2 DataLoader workers"),
        ("collated", False, r"stream\.py:36 in stay\(\), in 1 of 2 DataLoader workers"),
        ("stream", False, r"stream\.py:47 in __iter__\(\), in [12] of 2 DataLoader workers"),
        ("library", True, r"stream\.py:52 in Wrapper\.__iter__\(\), waiting for DataLoader workers"),
        ("told_nothing", False, "stream.py:build, waiting for DataLoader workers that do not say where they are"),
        ("told_nothing", True, r"stream\.py:52 in Wrapper\.__iter__\(\), waiting .* that do not say where they are"),
    ],
)
def test_the_line_at_which_a_worker_stands(his: tuple[UserCode, Any], loader: str, wrapped: bool, where: str) -> None:
    code, stream = his
    made = getattr(stream, loader)()
    with patience(60, "batch 0", code):  # only workers that are forked under one can be asked
        batches = iter(stream.Wrapper(made) if wrapped else made)
    for _ in range(5):
        next(batches)
    assert loader == "library" or stream.there.wait(60)
    with workers_ended():
        error = stuck(code, lambda: list(batches))
    assert re.fullmatch(rf"{where}: (still here|nothing) after 0\.2 s, expected batch 3", error.text)


def test_a_worker_that_the_kernel_holds(his: tuple[UserCode, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its storage does not answer: no signal reaches it."""
    monkeypatch.setattr(module, "_state", lambda _: ("D", True))
    monkeypatch.setattr(module, "_ask", lambda *_: "")
    batches = iter(his[1].files())
    with workers_ended():
        error = stuck(his[0], lambda: list(batches))
    assert "waiting for DataLoader workers (2 in a call to the kernel that cannot be interrupted" in error.text


@contextmanager
def workers_ended() -> Iterator[None]:
    try:
        yield
    finally:
        for child in multiprocessing.active_children():
            child.terminate()  # torch's workers leave without a word then


class NeverEnds:
    """An iteration that does not go on, and whose workers do not end either."""

    def __iter__(self) -> "NeverEnds":
        return self

    def __next__(self) -> None:
        raise StopIteration

    def _shutdown_workers(self) -> None:
        threading.Event().wait()


def test_what_failed_first_is_told_also_where_ending_takes_too_long(his: tuple[UserCode, Any]) -> None:
    waiting = Waiting(his[0], SHORT_S)
    with pytest.raises(Stuck) as caught, waiting.iterating(NeverEnds(), "the start"), waiting.on("batch 3"):
        his[1].waits()
    assert "in waits(): still here" in caught.value.text


def test_an_ending_that_takes_too_long_is_told(his: tuple[UserCode, Any]) -> None:
    with pytest.raises(Stuck) as caught, Waiting(his[0], SHORT_S).iterating(NeverEnds(), "the start"):
        pass
    assert "expected ending the iteration" in caught.value.text
