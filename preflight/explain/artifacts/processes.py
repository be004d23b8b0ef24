"""What `preflight debug` recorded of each rank: what it raised, how it ended, and where it was in a hang.

A record (records/HOST.PID.json) is written by the rank itself, and by `debug` when the rank is gone; a stack file
(stacks/HOST.PID.stack) holds, for each sample of a silent job, a head and what faulthandler or py-spy wrote.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.core import rank_ranges
from preflight.core.exceptions import Frame
from preflight.core.own_code import is_own

HEAD = "preflight_stack "
"""Before the JSON of a head: rank, pid, rank_pid (the rank that it is a worker of, or its own), node, look, time,
state (proc(5)), kernel (the function in which it sleeps)."""
FATAL = "Fatal Python error: "
"""Before the stacks that faulthandler writes when a signal ends the process."""
LONGEST = 1 << 22
"""Bytes of a file that are read."""
_THREAD = re.compile(r"^(?:(?:Current thread|Thread) (?!'s)|Stack \(most recent call first\)).*$", re.MULTILINE)
_FRAME = re.compile(r'^ +(?:File "(.+)", line (\d+),? in (.+)|(\S.*) \((.+):(\d+)\))$', re.MULTILINE)
_RANK_OF_SERVER = re.compile(r"^=== Rank (\d{1,7}): (?:https?://)?([^\s:/]+)\S* ===$", re.MULTILINE)
_BOTTOMS = ("_worker_loop", "_bootstrap")
"""Where a forked DataLoader worker's own stack ends: the rest is its parent's."""
_WAITS = ("distributed_c10d.py", "_functional_collectives.py", "rendezvous.py")
"""Files of torch/distributed in which a rank waits for others (not in those for checkpoints)."""
_WAIT_TOO = {"_verify_param_shape_across_processes", "_sync_module_states"}
_ROUND = re.compile(r"/torch/(distributed/|utils/data/dataloader\.py$)")
"""Code that loops while it waits."""
_NO_WAIT = {"wrapper", "_coalescing_manager", "inner"}


@dataclass(frozen=True)
class ProcessSample:
    head: dict[str, Any]
    frames: list[Frame]
    """Of its main thread, the innermost first; [] if it did not answer."""


@dataclass
class RankProcess:
    rank: int
    node: str
    pid: int
    file: str
    record: dict[str, Any] = field(default_factory=dict)
    samples: list[ProcessSample] = field(default_factory=list)
    """The last ones: itself, then workers of its DataLoader."""
    last: list[Frame] = field(default_factory=list)
    """Of its main thread, when a signal ended it in native code, or when torch's debug server last asked; the innermost
    first."""
    unfinished: tuple[str, set[int]] | None = None
    """The operation that torch's flight recorder shows as not over, and the ranks that it is with. On a GPU a rank
    waits for it wherever it next needs a result: its stack shows no collective."""

    @property
    def where(self) -> dict[str, Any]:
        """Where the finding points: the process as the culprit."""
        return {"rank": self.rank, "node": self.node}

    @property
    def name(self) -> str:
        """How a sentence names the process."""
        return f"rank {self.rank} on {self.node} (pid {self.pid})"

    @property
    def world_size(self) -> int:
        """The world size from its record; 0 if that does not say."""
        size = self.record.get("world_size")
        return size if isinstance(size, int) else 0


def ranks(processes: Iterable[RankProcess]) -> str:
    """ "ranks 0-2", for a sentence."""
    return rank_ranges.ranks(process.rank for process in processes)


def read_processes(records: Sequence[str], stacks: Sequence[str]) -> list[RankProcess]:
    """The last process of each rank: a launcher may have started it again."""
    by_pid: dict[tuple[str, int], RankProcess] = {}
    for path in records:
        record = read_record(path)
        if record:
            key = (str(record.get("node", "")), record["pid"])
            by_pid[key] = RankProcess(record["rank"], key[0], key[1], path, record)
    for path in stacks:
        _add_samples(by_pid, path)
    started = sorted(by_pid.values(), key=lambda process: (as_number(process.record.get("started")), process.pid))
    last = {process.rank: process for process in started}
    return [last[rank] for rank in sorted(last)]


def read_record(path: str) -> dict[str, Any]:
    """The record in this file; {} if it is not a record."""
    try:
        record = json.loads(_read(path))
        has_form = isinstance(record["rank"], int) and isinstance(record["pid"], int) and "preflight_record" in record
        return record if has_form else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _add_samples(by_pid: dict[tuple[str, int], RankProcess], path: str) -> None:
    text, _, fatal = _read(path).partition(FATAL)
    if ended := by_pid.get(_process_of(path)):
        ended.last = main_thread(fatal.rpartition(FATAL)[2])
    samples = read_stacks(text)
    latest = max((sample.head["look"] for sample in samples), default=0)
    for sample in samples:
        if sample.head["look"] == latest:
            key = (str(sample.head.get("node", "")), sample.head["rank_pid"])
            process = by_pid.setdefault(key, RankProcess(sample.head["rank"], key[0], key[1], path))
            process.samples.append(sample)
            process.samples.sort(key=lambda sample: sample.head["pid"] != process.pid)
            if sample.head["pid"] == process.pid:
                process.file = path


def read_debug_server(paths: Iterable[str]) -> list[RankProcess]:
    """From the latest stacks_TIME.txt of torch.distributed.debug (torch 2.11 and newer). It writes one each minute, of
    a healthy job, too: they say where ranks stood, and not that they hang."""
    latest = max(paths, key=os.path.basename, default="")
    parts = _RANK_OF_SERVER.split(_read(latest))[1:] if latest else []
    heads = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [RankProcess(int(rank), node, 0, latest, last=main_thread(text)) for rank, node, text in heads]


def _process_of(path: str) -> tuple[str, int]:
    """Host and pid, from a file's name: HOST.PID.stack."""
    host, _, pid = os.path.basename(path).removesuffix(".stack").rpartition(".")
    return host, int(pid) if pid.isdecimal() else 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST)
    except OSError:
        return ""


def read_stacks(text: str) -> list[ProcessSample]:
    """The samples in a stack file. A malformed head is skipped, with the stack after it."""
    samples = []
    for part in re.split(f"^{HEAD}", text, flags=re.MULTILINE)[1:]:
        first, _, rest = part.partition("\n")
        try:
            head = json.loads(first)
            if all(isinstance(head[name], int) for name in ("rank", "pid", "rank_pid", "look")):
                samples.append(ProcessSample(head, main_thread(rest)))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return samples


def main_thread(text: str) -> list[Frame]:
    """The main thread's frames, innermost first. faulthandler prints the newest thread first, so the main thread is
    last; py-spy names it."""
    heads = [match for match in _THREAD.finditer(text) if "C stack" not in match[0]]
    if not heads:
        return []
    begin = next((match for match in heads if '"MainThread"' in match[0]), heads[-1])
    end = next((match.start() for match in heads if match.start() > begin.start()), len(text))
    frames: list[Frame] = [
        (match[1], int(match[2]), match[3], None) if match[1] else (match[5], int(match[6]), match[4], None)
        for match in _FRAME.finditer(text, begin.end(), end)
    ]
    own = itertools.takewhile(lambda frame: frame[2] not in _BOTTOMS, frames)
    return list(own) or frames


def collective(frames: Iterable[Frame]) -> str:
    """The function of torch.distributed in which it waits for other ranks: "all_reduce"; "" elsewhere. In a backward
    that C++ runs DDP waits, too."""
    frames = list(frames)
    for path, _, function, _ in reversed(frames):
        folder, _, name = path.rpartition("/")
        is_wait = name in _WAITS and function not in _NO_WAIT
        if folder.endswith("torch/distributed") and (is_wait or function in _WAIT_TOO):
            return function
    return "backward" if frames and frames[0][2] == "_engine_run_backward" else ""


def outside(frames: list[Frame]) -> list[Frame]:
    """The frames outside of torch.distributed, of a DataLoader's wait, and of what they call."""
    inside = [place for place, frame in enumerate(frames) if _ROUND.search(frame[0])]
    return frames[inside[-1] + 1 :] if inside else frames


def own_place(frames: Iterable[Frame], record: Mapping[str, Any]) -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame in the user's own code. The file is relative to the folder where
    the rank was started."""
    home = str(record.get("cwd") or "")
    for path, line, function, _ in frames:
        if is_own(path, home):
            shown = path[len(home) + 1 :] if home and path.startswith(f"{home}/") else path
            return shown, line, "" if function == "<module>" else function
    return None


def place_where(place: tuple[str, int, str] | None) -> dict[str, Any]:
    return {"file": place[0], "line": place[1]} if place else {}


def format_place(place: tuple[str, int, str]) -> str:
    """ "train.py:41 in load()"."""
    return f"{place[0]}:{place[1]}{f' in {place[2]}()' if place[2] else ''}"


def as_number(value: Any) -> float:
    """The number in a record's field, such as a time; 0.0 for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
