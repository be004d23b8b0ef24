import mmap
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from preflight.engine import breadcrumb
from preflight.engine.breadcrumb import Breadcrumb


def killed_after(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child that then kills itself; returns when it is gone."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_what_a_killed_child_did_can_be_read() -> None:
    shared = Breadcrumb()

    def work() -> None:
        shared.doing("NVLink state", {"gpu": 3})
        shared.enter("all_reduce", "64 MiB")

    killed_after(work)
    inside = {"operation": "all_reduce", "shape": "64 MiB", "number": 1, "inside": True}
    assert shared.read() == {"doing": "NVLink state gpu=3", "entered": 1, "collective": inside}


def test_a_new_page_is_empty() -> None:
    assert Breadcrumb().read() == {}


class DyingMemory(mmap.mmap):
    """Kills its process in the middle of a write, once armed."""

    armed = False

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.armed:
            super().__setitem__(key, value)
            return
        half = len(value) // 2
        super().__setitem__(slice(key.start, key.start + half), value[:half])
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_torn_write_is_never_taken_for_a_state() -> None:
    shared = Breadcrumb()
    memory = shared._memory = DyingMemory(-1, breadcrumb.SIZE)

    def work() -> None:
        shared.doing("a" * 100, {})
        memory.armed = True
        shared.doing("b" * 100, {})

    killed_after(work)
    assert shared.read() in ({}, {"doing": "a" * 100})


def test_a_writer_that_is_killed_anywhere_leaves_a_whole_state_or_none() -> None:
    for _ in range(30):
        shared = Breadcrumb()
        ready, begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(begun, b"x")
            while True:
                for letter in "abcdefgh":
                    shared.doing(letter * 400, {})
        os.read(ready, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(begun)
        assert len(set(shared.read().get("doing", ""))) <= 1


@pytest.mark.parametrize("text", ["x" * 100_000, "日" * 100_000, "\n" * 100_000, "\ud800"])
def test_a_long_or_strange_text_still_leaves_a_whole_state(text: str) -> None:
    shared = Breadcrumb()
    shared.doing(text, {})
    assert shared.read()["doing"]


def test_a_collective_that_was_left_is_outside() -> None:
    shared = Breadcrumb()
    shared.enter("barrier", "")
    assert shared.inside_collective()
    shared.leave()
    assert not shared.inside_collective()
    assert shared.read()["collective"] == {"operation": "barrier", "shape": "", "number": 1, "inside": False}


def test_collectives_are_counted_over_all_checks() -> None:
    shared = Breadcrumb()
    shared.enter("all_reduce", "1 KiB")
    shared.leave()
    shared.clear()
    assert shared.read() == {"entered": 1}
    assert not shared.inside_collective()
    shared.enter("all_reduce", "2 KiB")
    assert shared.read()["collective"]["number"] == 2


def test_the_last_doing_stands() -> None:
    shared = Breadcrumb()
    for step in range(1000):
        shared.doing("step", {"step": step})
    assert shared.read() == {"doing": "step step=999"}


def test_a_closed_page_is_gone() -> None:
    shared = Breadcrumb()
    shared.close()
    with pytest.raises(ValueError):
        shared.read()


def test_no_text_is_too_long_or_too_strange() -> None:
    page = Breadcrumb()
    page.doing("\x1b" * 500 + "ä" * 5000, {"rank": 3})
    page.enter("o" * 5000, "\x00" * 5000)
    content = page.read()
    assert content["collective"]["operation"].startswith("ooo") and content["doing"].startswith("???")
