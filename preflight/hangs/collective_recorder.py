"""What a worker's collectives were doing when it hung: a thread of the worker asks torch's flight recorder and NCCL's
RAS, and writes the answers where the supervisor can read them after the worker's death.

The thread sleeps in one system call until the check has used most of its deadline, or the supervisor asks. If native
code holds the GIL or the process is stopped, nothing is written: no process waits for it longer than ANSWER_S.
"""

import contextlib
import json
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from preflight.core import rank_ranges
from preflight.nccl.ras import Watch

T = TypeVar("T")
LOOKS = (0.55, 0.65, 0.78)
"""Shares of a check's deadline: twice before torch gives up a collective (process_group.GROUP_TIMEOUT; NCCL then ends
the process), since RAS shows a hang by what has not moved; and once between that and the deadline."""
ANSWER_S = 0.3
"""Time for the worker's thread to answer its supervisor."""
CALLS, GROUPS = 16, 32
"""Entries kept per process group, and process groups kept: the most recently used."""
BUFFER = 512
"""Entries of the recorder unless the user sets a number: torch's default of 2,000 takes 0.2 s to write as JSON."""
BUFFER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The second is the older name; a newer torch warns about it (FlightRecorder.hpp)."""
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""torch has two recorders, of which a group uses one: NCCL's (FlightRecorder<at::cuda::CUDAEvent>, absent from builds
without CUDA), and that of gloo and the rest (FlightRecorder<c10::Event>, since 2.8)."""
STUCK_S = 1.0
"""A call that is not over after this time is stuck; in a job that is only slow, ranks wait less for each other. (The
records of two ranks are not taken at the same moment: without this, one of them would always seem to be behind.)"""
SETTLE_S = 0.25
"""Wait after an exception: another thread marks calls as over, on NCCL every 0.1 s."""
LONGEST = 256 * 1024
"""Limit of one statement in bytes."""
_LIMIT = 8 * 1024 * 1024
_ASKED = 1 << 32
DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
"""Names of tensor types by the recorder's names."""

Group = dict[str, Any]
"""The record of one process group: ranks ("0-7"), world (it is the world group), entered (how many collectives),
lately (the last one was entered within STUCK_S), sending (a send or a receive is not over), calls (the last ones: seq,
operation, sizes, elements, dtype, over, stuck)."""


class DumpFile:
    """Created before the fork. Statements are JSON lines in a memory file; an eventfd asks the worker for one."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("collectives")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._read_from = 0

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors that the child must keep."""
        return self._memory, self._bell

    # In the worker

    def say(self, statement: Mapping[str, Any]) -> None:
        """Writes a statement; the last one counts."""
        line = json.dumps(statement).encode() + b"\n"
        if len(line) <= LONGEST and self._size() < _LIMIT:
            os.write(self._memory, line)

    def wake(self) -> None:
        """Wakes the thread, so that it computes again when its next record is due."""
        os.eventfd_write(self._bell, 1)

    def wait(self, seconds: float | None) -> bool:
        """Waits at most `seconds` (None: forever); True if the supervisor asks for a statement."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if not poll.poll(None if seconds is None else max(0.0, seconds) * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            return os.eventfd_read(self._bell) >= _ASKED
        return False

    # In the supervisor

    def forget(self) -> None:
        self._read_from = self._size()

    def ask(self, within_s: float = ANSWER_S) -> None:
        """Asks for a statement and returns when it is written; returns at once if no thread listens yet."""
        before = self._size()
        if not before:
            return
        os.eventfd_write(self._bell, _ASKED)
        end = time.monotonic() + within_s
        while self._size() == before and time.monotonic() < end:
            time.sleep(0.005)

    def read(self) -> dict[str, Any]:
        """The last well-formed statement of this check, or {}."""
        start = max(self._read_from, self._size() - 2 * LONGEST)
        lines = os.pread(self._memory, 2 * LONGEST, start).split(b"\n")
        for line in reversed(lines[:-1]):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
                return _checked(json.loads(line))
        return {}

    def close(self) -> None:
        """Called once the child is gone."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _size(self) -> int:
        return os.fstat(self._memory).st_size


def _checked(statement: dict[str, Any]) -> dict[str, Any]:
    """Keeps only what has the right form and is small: code under test may have written to the memory."""
    groups = []
    for group in statement["groups"][-GROUPS:]:
        rank_ranges.from_text(group["ranks"])
        calls = [
            {
                "seq": int(call["seq"]),
                "operation": _word(call["operation"]),
                "sizes": [[int(size) for size in sizes[:8]] for sizes in call["sizes"][:4]],
                "elements": int(call["elements"]),
                "dtype": _word(call["dtype"]),
                "over": bool(call["over"]),
                "stuck": bool(call["stuck"]),
            }
            for call in group["calls"][-CALLS:]
        ]
        about = {"ranks": str(group["ranks"]), "world": bool(group["world"]), "entered": int(group["entered"])}
        groups.append({**about, **{name: bool(group.get(name)) for name in ("lately", "sending")}, "calls": calls})
    return {"groups": groups, "number": int(statement["number"]), "ras": str(statement.get("ras", ""))}


def _word(text: object) -> str:
    return "".join(char for char in str(text)[:80] if char.isprintable())


class Recorder:
    """The worker's side: arms itself for a check, and writes what the process groups have recorded."""

    def __init__(self, dump_file: DumpFile, number: Callable[[], int], watch: Callable[[], Watch] | None) -> None:
        """`number` returns the number of the collective entered last, by the page. `watch` creates what asks NCCL's RAS
        during one check; None: it is not asked."""
        self._dump_file, self._number, self._new_watch = dump_file, number, watch
        self._watch: Watch | None = None
        self._members: tuple[int, ...] = ()
        self._looks: list[float] = []
        self._ras = ""
        self._thread: threading.Thread | None = None

    def begin(self, deadline_s: float) -> None:
        """A check begins; a process group may exist from earlier checks."""
        self.end()
        now = time.monotonic()
        self._looks, self._ras = [now + part * deadline_s for part in LOOKS], ""
        if self._thread is not None:
            self._dump_file.wake()

    def end(self) -> None:
        """The check has ended: stops recording."""
        self._looks = []
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def listen(self, members: tuple[int, ...]) -> None:
        """A process group of these ranks was created: starts the thread, as there is now something to record."""
        self._members = members
        if self._thread is None:
            self._dump_file.say({})
            self._thread = threading.Thread(target=self._serve, name="preflight-recorder", daemon=True)
            self._thread.start()

    def after_an_exception(self, of_a_collective: BaseException | None) -> None:
        """Writes a dump once the earlier calls are marked as over, or after SETTLE_S."""
        end = time.monotonic() + SETTLE_S
        with contextlib.suppress(Exception):
            came_of = _came_of(of_a_collective) if of_a_collective and self._members else ""
            while self._members and _unfinished() > (came_of == "collective") and time.monotonic() < end:
                time.sleep(0.01)
            self.write_dump(raised_in=came_of)

    def write_dump(self, *, raised_in: str = "") -> None:
        """Writes what is recorded now; nothing if there is no group. `raised_in`: what has just raised, collective
        (the last one), send, or unknown; with unknown no record can be trusted."""
        if self._members:
            with contextlib.suppress(Exception):  # the format of torch's records is not guaranteed
                groups = recorded(self._members, raised_in=raised_in) if raised_in != "unknown" else []
                self._dump_file.say({"groups": groups, "number": self._number(), "ras": self._ras})

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
        while True:
            looks = self._looks
            if self._dump_file.wait(looks[0] - time.monotonic() if looks else None):
                self.write_dump()
            elif looks and looks is self._looks and time.monotonic() >= looks[0]:
                del looks[0]
                self.write_dump()
                self._ask_the_network(looks)

    def _ask_the_network(self, looks: list[float]) -> None:
        """Asks RAS, which may take seconds: the check may have ended by then."""
        if self._new_watch is None:
            return
        watch = self._watch = self._watch or self._new_watch()
        answer = watch.ask()
        if looks is not self._looks:
            watch.close()
        if looks is self._looks and answer:
            self._ras = answer
            self.write_dump()


def recorded(members: tuple[int, ...], *, raised_in: str = "") -> list[Group]:
    """The records of this process's groups in torch's flight recorder, in ranks of the job. Read as JSON, since its
    other form is a pickle. On gloo `state` stays "scheduled" forever; `retired` shows there, too, that a call is over,
    even by an exception (the caller knows that for the last call). gloo's sends are not recorded."""
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    default = distributed_c10d._get_default_group()
    dump = _dump()
    if raised_in == "collective" and dump:
        dump[-1] |= {"retired": False, "state": "failed"}
    groups = []
    for group, name in list(world.pg_names.items())[-GROUPS:]:
        entries = [entry for entry in dump if entry["process_group"][0] == name]
        calls = [_call(entry) for entry in entries if not entry["is_p2p"]]
        about = {
            "ranks": rank_ranges.to_text(members[rank] for rank in world.pg_group_ranks[group]),
            "world": group is default,
            "lately": bool(entries) and _age_s(entries[-1]) < STUCK_S,
            "sending": raised_in == "send" or any(entry["is_p2p"] and not _is_over(entry) for entry in entries),
        }
        groups.append(
            {**about, "entered": _entered(group, calls), "calls": of_interest(calls, lambda call: bool(call["over"]))}
        )
    return groups


def _dump() -> list[dict[str, Any]]:
    """The entries of all recorders, by the time of the call."""
    from torch._C import _distributed_c10d

    dumps = [getattr(_distributed_c10d, name) for name in RECORDERS if hasattr(_distributed_c10d, name)]
    entries = [entry for dump in dumps for entry in json.loads(dump(True, False)).get("entries", [])]
    return sorted(entries, key=lambda entry: float(entry.get("time_created_ns", 0)))


def _came_of(error: BaseException) -> str:
    """What raised: collective, send or unknown. If its trace has only a `wait`, the group's counter shows whether there
    were sends: it counts gloo's, too."""
    from torch.distributed import distributed_c10d

    code = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = {each.co_name for each in code if each.co_filename == distributed_c10d.__file__}
    if called:
        return "collective" if called.isdisjoint({"send", "recv"}) else "send"
    calls = [entry for entry in _dump() if not entry["is_p2p"]]
    last = {entry["process_group"][0]: entry["collective_seq_id"] for entry in calls}
    groups: Mapping[Any, str] = distributed_c10d._world.pg_names
    sent = any(group._get_sequence_number_for_group() > last.get(name, 0) for group, name in groups.items())
    return "unknown" if sent else "collective"


def _unfinished() -> int:
    return sum(not _is_over(entry) for entry in _dump())


def _is_over(entry: Mapping[str, Any]) -> bool:
    return bool(entry["retired"]) or entry["state"] == "completed"


def _entered(group: Any, calls: list[dict[str, Any]]) -> int:
    """How many collectives this rank has called. torch's own counter of the group also counts gloo's sends."""
    return calls[-1]["seq"] if calls else int(group._get_sequence_number_for_group())


def _call(entry: Mapping[str, Any]) -> dict[str, object]:
    sizes = entry["input_sizes"] or entry["output_sizes"]
    dtypes = entry["input_dtypes"] or entry["output_dtypes"] or [""]
    is_over = _is_over(entry)
    return {
        "seq": entry["collective_seq_id"],
        "operation": entry["profiling_name"].rpartition(":")[2],
        "sizes": sizes[:4],
        "elements": sum(math.prod(size) for size in sizes),
        "dtype": DTYPES.get(dtypes[0], dtypes[0]),
        "over": is_over,
        "stuck": not is_over and _age_s(entry) >= STUCK_S,
    }


def _age_s(entry: Mapping[str, Any]) -> float:
    return time.time() - float(entry.get("time_created_ns", 0)) / 1e9


def of_interest(calls: list[T], is_over: Callable[[T], bool]) -> list[T]:
    """The last CALLS calls; on NCCL, where a host runs ahead of its GPU, those around the first that is not over."""
    waiting = next((place for place, call in enumerate(calls) if not is_over(call)), len(calls))
    start = max(0, min(waiting - CALLS // 2, len(calls) - CALLS))
    return calls[start : start + CALLS]


def prepare_environment(environ: "os._Environ[str]", run_folder: str) -> None:
    """Sets torch's variables before it creates the first group; keeps what the user has set."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if not any(name in environ for name in BUFFER_VARIABLES):
        environ[BUFFER_VARIABLES[0 if hasattr(c10d, "_dump_fr_trace_json") else 1]] = str(BUFFER)
    if run_folder:  # else torch's watchdog would leave a pickle in /tmp
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            environ.setdefault(name, os.path.join(run_folder, "recorded-by-rank-"))
