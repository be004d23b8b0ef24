import json
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from preflight.core import exceptions
from preflight.core.outcome import LOG_TAIL, Outcome
from preflight.core.secrets import Scrubber
from preflight.engine import participant, worker
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.worker_slot import WorkerSlot
from preflight.hangs import collective_recorder
from preflight.hangs.collective_recorder import DumpFile, Recorder
from preflight.nccl.ras import Watch
from tests.engine.test_breadcrumb import killed_after

CALL = {
    "seq": 3, "operation": "all_reduce", "sizes": [[4]], "elements": 4, "dtype": "float32", "over": False,
    "stuck": True}  # fmt: skip
GROUP = {"ranks": "0-2", "world": True, "entered": 3, "lately": False, "sending": False, "calls": [CALL]}
SAID = {"groups": [GROUP], "number": 2, "ras": ""}


@pytest.fixture
def dump_file() -> Any:
    made = DumpFile()
    yield made
    made.close()


# What a worker leaves


def test_what_a_killed_worker_said_can_be_read(dump_file: DumpFile) -> None:
    killed_after(lambda: dump_file.say(SAID))
    assert dump_file.read() == SAID


def test_the_last_statement_counts_and_an_earlier_checks_do_not(dump_file: DumpFile) -> None:
    assert dump_file.read() == {}
    dump_file.say({**SAID, "number": 1})
    dump_file.say(SAID)
    assert dump_file.read()["number"] == 2
    dump_file.forget()
    assert dump_file.read() == {}


@pytest.mark.parametrize(
    "rubbish",
    [b"\x00\xff", b"[]\n", b"{}\n", b"17\n", b'{"groups": 3, "number": 1}\n', b"[" * 100_000 + b"\n",
     json.dumps({**SAID, "groups": [{**GROUP, "ranks": "all"}]}).encode() + b"\n",
     json.dumps({**SAID, "groups": [{**GROUP, "calls": [{**CALL, "elements": "many"}]}]}).encode() + b"\n",
     json.dumps({**SAID, "number": None}).encode() + b"\n", b'{"groups": [{"ranks": "0-'],
)  # fmt: skip
def test_rubbish_in_the_memory_is_passed_over(dump_file: DumpFile, rubbish: bytes) -> None:
    dump_file.say(SAID)
    os.write(dump_file.descriptors[0], rubbish)
    assert dump_file.read() == SAID


def test_a_statement_is_cut_to_what_a_report_bears(dump_file: DumpFile) -> None:
    long = {**CALL, "operation": "x\n" * 50, "sizes": [[1] * 10] * 5, "more": "?"}
    dump_file.say({**SAID, "groups": [{**GROUP, "calls": [long] * 17}] * 33})
    groups = dump_file.read()["groups"]
    assert (len(groups), len(groups[0]["calls"])) == (collective_recorder.GROUPS, collective_recorder.CALLS)
    call = groups[0]["calls"][0]
    assert call == {**CALL, "operation": "x" * 40, "sizes": [[1] * 8] * 4}


def test_nobody_waits_for_a_worker_that_does_not_listen_or_is_stopped(dump_file: DumpFile) -> None:
    dump_file.ask(within_s=1e9)
    pid = os.fork()
    if pid == 0:
        Recorder(dump_file, lambda: 0, None).listen((0,))
        signal.pause()
    while not dump_file._size():
        time.sleep(0.001)  # until it listens
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    dump_file.ask(within_s=0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert dump_file.read() == {}


# The thread in the worker


def in_a_worker(dump_file: DumpFile, work: Callable[[Recorder], None]) -> None:
    """Runs `work` in a child that has a gloo group of its own, as a worker has, and made two all-reduces."""

    def run() -> None:
        collective_recorder.prepare_environment(os.environ, "")
        store = dist.HashStore()  # type: ignore[attr-defined]  # not in __all__
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=20))
        for elements in (4, 8):
            dist.all_reduce(torch.ones(elements, dtype=torch.bfloat16))
        recorder = Recorder(dump_file, lambda: 7, None)
        recorder.listen((5,))
        work(recorder)

    killed_after(run)


def said_within(dump_file: DumpFile, seconds: float = 10.0) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while not dump_file.read() and time.monotonic() < end:
        time.sleep(0.005)
    return dump_file.read()


def test_it_answers_while_the_main_thread_sleeps_in_native_code(dump_file: DumpFile) -> None:
    def asked(recorder: Recorder) -> None:
        asker = threading.Thread(target=dump_file.ask, args=(10.0,))
        asker.start()
        asker.join()

    in_a_worker(dump_file, asked)
    said = dump_file.read()
    assert said["number"] == 7
    (group,) = said["groups"]
    assert (group["ranks"], group["world"], group["entered"]) == ("5", True, 2)
    assert [(call["seq"], call["operation"], call["elements"], call["dtype"]) for call in group["calls"]] == [
        (1, "all_reduce", 4, "bfloat16"),
        (2, "all_reduce", 8, "bfloat16"),
    ]


def test_it_looks_by_itself_when_most_of_the_deadline_is_over(dump_file: DumpFile) -> None:
    def waits(recorder: Recorder) -> None:
        recorder.begin(0.1)
        said_within(dump_file)

    in_a_worker(dump_file, waits)
    assert dump_file.read()["groups"]


def test_it_does_not_look_when_the_check_is_over(dump_file: DumpFile) -> None:
    def ends(recorder: Recorder) -> None:
        asleep = _sleeper(recorder)
        recorder.begin(1.0)
        asleep()
        recorder.end()
        before = dump_file._size()
        time.sleep(1.0)  # to beyond the deadline of a check that has ended
        dump_file.say({"groups": [], "number": dump_file._size() - before})

    in_a_worker(dump_file, ends)
    assert dump_file.read()["number"] == 0


@pytest.mark.parametrize(("error", "over"), [(RuntimeError(), [True, False]), (None, [True, True])])
def test_only_a_call_that_raised_is_not_over(dump_file: DumpFile, error: Any, over: list[bool]) -> None:
    in_a_worker(dump_file, lambda recorder: recorder.after_an_exception(error))
    assert [call["over"] for call in dump_file.read()["groups"][0]["calls"]] == over


def test_whether_the_last_call_was_lately_is_said(dump_file: DumpFile) -> None:
    def before_and_after(recorder: Recorder) -> None:
        recorder.write_dump()
        (now,) = dump_file.read()["groups"]
        collective_recorder.STUCK_S = 1e-9
        (later,) = collective_recorder.recorded((5,))
        dump_file.say({"groups": [now, later], "number": 0})

    in_a_worker(dump_file, before_and_after)
    assert [group["lately"] for group in dump_file.read()["groups"]] == [True, False]


def test_a_send_that_nccl_records_is_said_to_be_unfinished(dump_file: DumpFile) -> None:
    def sends(recorder: Recorder) -> None:
        right = collective_recorder._dump
        collective_recorder._dump = lambda: [
            *right(),
            {**right()[-1], "is_p2p": True, "retired": False, "state": "started"},
        ]
        recorder.write_dump()

    in_a_worker(dump_file, sends)
    assert [(group["sending"], group["entered"]) for group in dump_file.read()["groups"]] == [(True, 2)]


def raised_by(call: Callable[[], object]) -> RuntimeError:
    try:
        call()
    except RuntimeError as error:
        return error
    raise AssertionError("it did not raise")


def holds_beside_an_idle_rank(folder: Path, condition: Callable[[], bool]) -> bool:
    """In rank 0 of a gloo group of two, of which rank 1 does nothing: the other's calls run out of time. It is
    the same time as they have to connect: so they wait for each other first."""

    def join(rank: int) -> None:
        store = dist.FileStore(str(folder / "store"), 2)  # type: ignore[attr-defined]  # not in __all__
        store.set(f"here {rank}", "")
        store.wait([f"here {rank}" for rank in range(2)], timedelta(seconds=60))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=2))

    def run() -> None:
        os.environ |= dict.fromkeys(collective_recorder.BUFFER_VARIABLES, "2000")  # torch 2.9 records only then
        idle = os.fork()
        join(1 if idle == 0 else 0)
        if idle == 0:
            signal.pause()
        try:
            (folder / "held").write_text(str(condition()))
        finally:
            os.kill(idle, signal.SIGKILL)

    killed_after(run)
    return (folder / "held").read_text() == "True"


def test_what_gloo_raises_after_a_timeout_is_of_a_collective(tmp_path: Path) -> None:
    """The second of two names no source path; nor does what a check raises instead of it."""

    def run() -> bool:
        first, second = (raised_by(lambda: dist.all_reduce(torch.ones(4))) for _ in range(2))
        wrapped = ValueError("no result")
        wrapped.__cause__ = second
        found = [exceptions.out_of_a_collective(error) for error in (first, second, wrapped)]
        return found == [first, second, second] and "/gloo/" not in str(second)

    assert holds_beside_an_idle_rank(tmp_path, run)


def test_a_wait_for_another_ranks_key_is_of_a_collective_and_other_errors_are_not() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]  # not in __all__
    late = raised_by(lambda: store.wait(["absent"], timedelta(milliseconds=10)))
    assert exceptions.out_of_a_collective(late) is late
    own = raised_by(lambda: torch.ones(2) + torch.ones(3))
    assert exceptions.out_of_a_collective(own) is None
    ring = ValueError("a")
    ring.__cause__ = other = ValueError("b")
    other.__cause__ = ring
    assert exceptions.out_of_a_collective(ring) is None
    assert exceptions.out_of_a_collective(RuntimeError(NoText())) is None


class NoText:
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("call", "came_of"),
    [
        (lambda: dist.recv(torch.ones(4), 1), "send"),
        (lambda: dist.irecv(torch.ones(4), 1).wait(), "unknown"),  # type: ignore[union-attr]
        (lambda: dist.all_reduce(torch.ones(4)), "collective"),
        (lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(), "collective"),
    ],
    ids=["recv", "irecv", "all_reduce", "async"],
)
def test_a_receive_that_raised_is_not_the_last_collective(
    call: Callable[[], object], came_of: str, tmp_path: Path
) -> None:
    """gloo records none: a rank that has left a collective would seem to be inside it."""
    assert holds_beside_an_idle_rank(tmp_path, lambda: collective_recorder._came_of(raised_by(call)) == came_of)


@pytest.mark.parametrize("came_of", ["send", "unknown"])
def test_after_such_an_exception_no_collective_is_said_to_be_unfinished(dump_file: DumpFile, came_of: str) -> None:
    def raises(recorder: Recorder) -> None:
        collective_recorder._came_of = lambda _: came_of  # type: ignore[assignment]
        recorder.write_dump(raised_in="collective")
        recorder.after_an_exception(RuntimeError())

    in_a_worker(dump_file, raises)
    said = [(group["sending"], [call["over"] for call in group["calls"]]) for group in dump_file.read()["groups"]]
    assert said == ([(True, [True, True])] if came_of == "send" else [])


def test_calls_that_are_over_a_moment_later_are_waited_for(dump_file: DumpFile) -> None:
    """As on NCCL, whose watchdog marks them every tenth of a second."""

    def late(recorder: Recorder) -> None:
        right, looks = collective_recorder._dump, iter([False, False])
        collective_recorder._dump = lambda: [{**entry, "retired": next(looks, True)} for entry in right()]
        recorder.after_an_exception(None)

    in_a_worker(dump_file, late)
    assert [call["over"] for call in dump_file.read()["groups"][0]["calls"]] == [True, True]


class Told(Watch):
    def __init__(self) -> None:
        super().__init__("")

    def ask(self) -> str:
        return "Job summary"


def test_what_ras_says_is_added(dump_file: DumpFile) -> None:
    def waits(recorder: Recorder) -> None:
        recorder._new_watch = Told
        recorder.begin(0.05)
        while not dump_file.read().get("ras"):
            time.sleep(0.005)

    in_a_worker(dump_file, waits)
    assert (dump_file.read()["ras"], len(dump_file.read()["groups"])) == ("Job summary", 1)


def test_while_nothing_happens_it_sleeps(dump_file: DumpFile) -> None:
    """A timed collective is not disturbed: the thread is not woken once."""

    def works(recorder: Recorder) -> None:
        asleep = _sleeper(recorder)
        recorder.begin(3600)
        before = asleep()
        for _ in range(200):
            dist.all_reduce(torch.ones(1024))
        dump_file.say({"groups": [], "number": _switches(recorder)[0] - before})

    in_a_worker(dump_file, works)
    assert dump_file.read()["number"] == 0


def _switches(recorder: Recorder) -> tuple[int, bool]:
    """How often its thread has left its core, and whether it sleeps."""
    assert recorder._thread is not None
    lines = Path(f"/proc/self/task/{recorder._thread.native_id}/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    switches = sum(int(value) for name, value in said.items() if name.endswith("ctxt_switches"))
    return switches, said["State"].split()[0] == "S"


def _sleeper(recorder: Recorder) -> Callable[[], int]:
    """Made before `begin`. It returns when the thread has gone to sleep until its next look, and its switches then."""
    told = threading.Event()
    right = recorder._dump_file.wait

    def wait(seconds: float | None) -> bool:
        if seconds is not None:
            told.set()
        return right(seconds)

    def asleep() -> int:
        end, seen = time.monotonic() + 20, (-1, False)
        told.wait(20)
        while (not seen[1] or seen != _switches(recorder)) and time.monotonic() < end:
            seen = _switches(recorder)
            time.sleep(0.05)  # between two looks; and whoever waits for Python's lock has it by then
        return seen[0]

    recorder._dump_file.wait = wait  # type: ignore[method-assign]
    return asleep


# What the supervisor makes of it


class Crashed:
    """A worker that has ended; the parts of a Child that a seat reads."""

    pid = 17

    def __init__(self, entered: int) -> None:
        self.page = Breadcrumb()
        for _ in range(entered):
            self.page.enter("all_reduce", "4 elements")

    def stack(self) -> str:
        return ""

    def log_tail(self) -> str:
        return ""

    def dump(self) -> dict[str, Any]:
        return {**SAID, "ras": "token=abcdefgh"}


@pytest.mark.parametrize(("entered", "kept"), [(2, [GROUP]), (3, None)])
def test_what_was_recorded_before_it_went_on_is_dropped(entered: int, kept: Any) -> None:
    crashed: Any = Crashed(entered)
    slot = WorkerSlot(lambda _: crashed, set, Scrubber({}).text, lambda pid: f"log of {pid}, password=abcdefgh")
    slot.worker = crashed
    outcome = slot._with_dump(Outcome("crashed"))
    assert outcome.recorded == kept
    assert outcome.nccl_log == "log of 17, password=[removed]"
    assert outcome.ras == ("token=[removed]" if kept else None)


def test_of_nccls_log_the_end_is_kept(tmp_path: Path) -> None:
    (tmp_path / "nccl-3.17.log").write_bytes(b"x" * LOG_TAIL + b"\xffthe end")
    said = worker.nccl_log(str(tmp_path), 3, 17)
    assert len(said) == LOG_TAIL and said.endswith("\ufffdthe end")
    assert worker.nccl_log(str(tmp_path), 3, 18) == worker.nccl_log("", 3, 17) == ""


# What is kept


def entry(number: int, *, over: bool = True) -> dict[str, Any]:
    return {**CALL, "seq": number, "over": over}


@pytest.mark.parametrize(
    ("waiting", "kept"),
    [(None, range(84, 100)), (99, range(84, 100)), (50, range(42, 58)), (2, range(16))],
)
def test_the_calls_about_the_first_that_is_not_over_are_kept(waiting: int | None, kept: range) -> None:
    calls = [entry(number, over=waiting is None or number < waiting) for number in range(100)]
    assert [call["seq"] for call in collective_recorder.of_interest(calls, lambda call: call["over"])] == list(kept)


@pytest.mark.parametrize("name", collective_recorder.BUFFER_VARIABLES)
def test_the_users_own_buffer_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in collective_recorder.BUFFER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "7")
    collective_recorder.prepare_environment(os.environ, "")
    assert {os.environ.get(variable) for variable in collective_recorder.BUFFER_VARIABLES} == {"7", None}


def test_each_rank_of_a_large_world_sends_less() -> None:
    groups = [{**GROUP, "calls": [entry(number) for number in range(16)]} for _ in range(32)]
    assert participant.within_share(groups, 2) == groups
    for world in (1024, 8192):
        kept = participant.within_share(groups, world)
        assert kept and len(json.dumps(kept)) <= max(1024, participant.RECORDED_SHARE // world)
        assert kept[-1]["calls"][-1] == entry(15)
    assert participant.within_share(None, 4) is None
