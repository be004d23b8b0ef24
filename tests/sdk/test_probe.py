"""The process that makes calls which may hang, and what becomes of them."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight.sdk import probe as probing
from preflight.sdk.files import state_of
from preflight.sdk.probe import NoReply, NoReplyKind, Probe, Reply, replies
from tests import fuse, running

pytestmark = pytest.mark.process


class Functions:
    """Healthy ones, and others."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int, other: int) -> int:
        return number + other

    def counted(self) -> int:
        self.count += 1
        return self.count

    def many(self, number: int) -> list[int]:
        return list(range(number))

    def open(self, path: str) -> None:
        Probe.doing(f"opening {path}")
        os.close(os.open(path, os.O_RDONLY))

    def stubborn(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        Probe.doing("sleeping")
        time.sleep(3600)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def leave(self) -> None:
        os._exit(3)

    def fail(self) -> None:
        raise ValueError("no index")

    def odd(self) -> object:
        return object()

    def talk(self) -> str:
        print("a line", flush=True)
        os.write(1, b'{"value": "not this"}\n')
        os.write(2, b"noise\n")
        return "an answer"

    def steps(self, path: str) -> Iterator[int]:
        yield 1
        yield 2
        self.open(path)

    def statvfs(self, path: str) -> int:
        return os.statvfs(path).f_bsize


@pytest.fixture
def probe() -> Iterator[Probe]:
    with Probe(Functions()) as probe:
        yield probe
        pid = probe.pid
    assert pid is None or not psutil.pid_exists(pid)


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """Nobody writes into it: opening it for reading hangs."""
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


def ask(probe: Probe, name: str, *arguments: Any, deadline_s: float = running.DEADLINE_S) -> Any:
    reply = probe.ask(name, *arguments, deadline_s=deadline_s)
    assert isinstance(reply, Reply), reply
    return reply.value


def fails(probe: Probe, name: str, *arguments: Any, deadline_s: float = running.DEADLINE_S) -> NoReply:
    reply = probe.ask(name, *arguments, deadline_s=deadline_s)
    assert isinstance(reply, NoReply), reply
    return reply


def test_questions_are_answered_by_one_process(probe: Probe) -> None:
    assert ask(probe, "add", 1, 2) == 3
    pid = probe.pid
    assert [ask(probe, "counted") for _ in range(3)] == [1, 2, 3]
    assert probe.pid == pid != os.getpid() and not probe.is_busy


def test_a_large_answer(probe: Probe) -> None:
    assert ask(probe, "many", 300_000)[-1] == 299_999


@pytest.mark.parametrize("functions", [{"add": lambda number, other: number + other}, sys.modules["operator"]])
def test_a_mapping_and_a_module(functions: object) -> None:
    with Probe(functions) as probe:
        assert ask(probe, "add", 1, 2) == 3


def test_a_call_that_hangs_is_named_and_the_next_one_answered(probe: Probe, fifo: str) -> None:
    reply = fails(probe, "open", fifo, deadline_s=0.3)
    assert (reply.kind, reply.call) == (NoReplyKind.TIMED_OUT, f"opening {fifo}")
    assert reply.text.startswith("no answer within 0.") and reply.seconds >= 0.3 and not reply.stuck
    assert probe.pid is None and ask(probe, "add", 1, 2) == 3


def test_one_that_ignores_sigterm_is_killed(probe: Probe) -> None:
    probe.begin("stubborn")
    process = psutil.Process(probe.pid)
    ((_, reply),) = replies([probe], 0.5)
    assert isinstance(reply, NoReply) and (reply.kind, reply.call) == (NoReplyKind.TIMED_OUT, "sleeping")
    assert not process.is_running()


def test_one_that_segfaults(probe: Probe) -> None:
    reply = fails(probe, "segfault")
    assert (reply.kind, reply.call, reply.text) == (NoReplyKind.CRASHED, "segfault", "ended by SIGSEGV")
    assert ask(probe, "counted") == 1


def test_one_that_leaves(probe: Probe) -> None:
    reply = fails(probe, "leave")
    assert (reply.kind, reply.text) == (NoReplyKind.CRASHED, "ended with exit status 3")


@pytest.mark.parametrize(
    ("name", "text"),
    [("fail", "ValueError: no index"), ("odd", "TypeError: Object of type object"), ("nothing", "AttributeError: ")],
)
def test_one_that_raises(probe: Probe, name: str, text: str) -> None:
    reply = fails(probe, name)
    assert reply.kind == NoReplyKind.RAISED and reply.text.startswith(text)
    assert ask(probe, "counted") == 1


def test_what_it_prints_is_no_answer(probe: Probe, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(probe, "talk") == "an answer" and ask(probe, "counted") == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_somebody_kills_says_nothing(probe: Probe, fifo: str, how: signal.Signals) -> None:
    probe.begin("open", fifo)
    os.kill(probe.pid or 0, how)
    ((_, reply),) = replies([probe], running.DEADLINE_S)
    assert isinstance(reply, NoReply) and reply.kind == NoReplyKind.DISTURBED
    assert reply.text == f"ended by {how.name}" and ask(probe, "counted") == 1


def test_a_process_that_was_killed_before_the_question(probe: Probe) -> None:
    assert ask(probe, "counted") == 1
    os.kill(probe.pid or 0, signal.SIGKILL)
    assert fails(probe, "counted").kind == NoReplyKind.DISTURBED
    assert ask(probe, "counted") == 1


def test_a_process_that_somebody_stops_says_nothing(probe: Probe) -> None:
    assert ask(probe, "counted") == 1
    os.kill(probe.pid or 0, signal.SIGSTOP)
    reply = fails(probe, "counted", deadline_s=0.3)
    assert (reply.kind, reply.text) == (NoReplyKind.DISTURBED, "was stopped")


def test_what_was_known_before_the_hang_is_kept(probe: Probe, fifo: str) -> None:
    reply = fails(probe, "steps", fifo, deadline_s=0.5)
    assert reply.kind == NoReplyKind.TIMED_OUT and reply.parts == (1, 2)
    assert probe.ask("steps", os.devnull, deadline_s=running.DEADLINE_S) == Reply(None, (1, 2))


def test_several_at_once(fifo: str) -> None:
    with Probe(Functions()) as hangs, Probe(Functions()) as works, Probe(Functions()) as fresh:
        hangs.begin("open", fifo)
        works.begin("add", 1, 2)
        found = dict(replies([hangs, works, fresh], 1.0))
        assert found[works] == Reply(3) and list(found) == [works, hangs]
        reply = found[hangs]
        assert isinstance(reply, NoReply) and reply.kind == NoReplyKind.TIMED_OUT


def test_it_ends_with_its_asker(tmp_path: Path, fifo: str) -> None:
    """Also while it hangs. With `at_end` it does that first, where it does not hang."""
    done = tmp_path / "done"
    code = f"""import os, pathlib, sys
from preflight.sdk.files import state_of
from preflight.sdk.probe import Probe
hangs, works = Probe(os), Probe(os, at_end=pathlib.Path({str(done)!r}).touch)
works.ask("getpid", deadline_s=60)
hangs.begin("open", {fifo!r}, os.O_RDONLY)
print([hangs.pid, works.pid], flush=True)
os.kill(os.getpid(), 9)"""
    asker = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=running.environment(), check=False)
    pids = json.loads(asker.stdout)
    end = time.monotonic() + running.DEADLINE_S
    while alive := [pid for pid in pids if state_of(pid) not in ("", "Z")]:  # nobody may reap what is left by a kill -9
        assert time.monotonic() < end, alive
        time.sleep(0.01)
    assert done.exists()


def test_without_a_process_it_has_raised(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    failed = fails(probe, "counted")
    assert (failed.kind, failed.refused) == (NoReplyKind.RAISED, 11)
    monkeypatch.undo()
    assert ask(probe, "counted") == 1


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="a dead mount needs root and /dev/fuse")
def test_a_process_in_uninterruptible_sleep_is_left_behind(tmp_path: Path) -> None:
    """A call that hangs in a dead file system, as one in a GPU's driver does."""
    with fuse.mounted(tmp_path, does={fuse.Call.STATFS: fuse.SILENT}):
        found: list[NoReply] = []
        asking = threading.Thread(
            target=lambda: found.append(fails(Probe(Functions()), "statvfs", str(tmp_path), deadline_s=0.5)),
            daemon=True,
        )
        asking.start()
        asking.join(30.0)
        assert not asking.is_alive(), "it waits for a process that no signal ends"
        assert found[0].stuck and found[0].call == "statvfs"


def test_it_keeps_what_the_driver_of_its_asker_has_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML in a child uses the descriptors of the process that has started it."""
    monkeypatch.setattr(probing, "DRIVERS", "/dev/zero")
    with open("/dev/zero") as driver, open("/proc/self/status") as other, Probe(os) as probe:
        links = [f"/proc/self/fd/{file.fileno()}" for file in (driver, other)]
        seen = [probe.ask("readlink", link, deadline_s=running.HUNG_S) for link in links]
    assert seen == [Reply("/dev/zero"), Reply("/dev/null")]
