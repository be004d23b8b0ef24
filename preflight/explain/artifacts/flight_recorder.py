"""One rank's dump of torch's flight recorder, as a pickle or as JSON, of torch 2.1 to 2.13.

The form is that of torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (2.1 to 2.3: TraceUtils.h, NCCLUtils.hpp).
"""

import json
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.core import rank_ranges
from preflight.core.own_code import is_own
from preflight.failure_book.line import RANKS
from preflight.hangs.collective_recorder import CALLS, DTYPES, STUCK_S, of_interest
from preflight.sdk import pickles
from preflight.sdk.pickles import RefusedFile

ENTRIES, GROUPS = 100_000, 512
"""Of a dump: the last ones are read."""
TENSORS, DIMENSIONS, FRAMES = 256, 8, 200
"""Of an entry: the first ones are read."""
BACKENDS = ("nccl", "ncclx", "rccl", "rcclx", "gloo", "xccl")
"""What torchcomms writes where torch has a group's description (comms/torchcomms/hooks/fr/FlightRecorder.cpp)."""
TORCHCOMMS = (
    "is from torchcomms, which counts the calls of all its communicators together, sends included: not compared here "
    "(python -m torch.distributed.flight_recorder.fr_trace reads it)"
)
_LARGEST = 1 << 63
_UNKNOWN_S = 86_400.0
"""A file that is this much older than its entries has lost its modification time."""

Entry = Mapping[str, Any]
Call = dict[str, Any]
"""As of collective_recorder.Group, and: at ("train.py:40", the user's innermost frame; "" if unknown), file,
line, began (whether the GPU has; None: unknown), timeout_s (0.0: unknown), backend ("nccl")."""


@dataclass(frozen=True)
class Key:
    """Identifies a process group, with the same value on all its ranks."""

    name: str
    ranks: str
    """From pg_config: "0-7"; "" if it says nothing (gloo)."""
    world: bool


@dataclass
class Recorded:
    """A rank's records of a group."""

    entered: int
    calls: list[Call]
    """The ones around the first that is not over."""
    sends: list[Call]
    """Sends and receives that are not over; operation is "send 0->1", in ranks of the group."""
    comparable: bool = True
    """Whether its numbers can be compared with other ranks'."""
    opened_s: float = math.inf
    """When its first call that is not over was made, in seconds since the epoch."""


@dataclass(frozen=True)
class Dump:
    rank: int
    file: str
    last_s: float
    """When its last entry was made: seconds since the epoch."""
    whole: bool
    """No entry has fallen out of the recorder's ring: a group without any was never used."""
    world: int
    """Size of the world group; 0 if unknown."""
    groups: Mapping[Key, Recorded]


def read(path: str, shared: dict[Any, Call]) -> Dump:
    """Reads a dump. `shared` keeps equal calls of all ranks once. Raises RefusedFile."""
    rank = rank_of(path)
    if rank is None:
        raise RefusedFile("does not say which rank it is from; torch ends its name with the rank: nccl_trace_rank_3")
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(pickles.LONGEST + 1) if stat.S_ISREG(about.st_mode) else b""
    except OSError as error:
        raise RefusedFile(f"cannot be read ({error.strerror})") from None
    loaded = _loaded(data)
    try:
        return _dump(loaded, rank, path, about.st_mtime, shared)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {str(error)[:80]}"
        raise RefusedFile(f"is not a flight-recorder dump in a format of torch 2.1 to 2.13 ({why})") from None


def rank_of(path: str) -> int | None:
    """The rank in the file's name, as torch names it (TORCH_FR_DUMP_TEMP_FILE and the rank); else in its folder's."""
    for name in (os.path.basename(path), os.path.basename(os.path.dirname(path))):
        match = re.search(r"rank[_.-]?(\d{1,6})(?!\d)", name) or re.search(r"(?<!\d)(\d{1,6})(?:\.[A-Za-z]\w*)*$", name)
        if match and int(match[1]) < RANKS:
            return int(match[1])
    return None


def _loaded(data: bytes) -> Any:
    if data.lstrip()[:1] in (b"{", b"["):
        if len(data) > pickles.LONGEST:
            raise RefusedFile(f"has more than {pickles.LONGEST >> 20} MiB, which no flight recorder writes")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RefusedFile(f"is broken JSON ({str(error)[:80]})") from None
    return pickles.load_plain(data)


def _dump(loaded: Any, rank: int, path: str, written_s: float, shared: dict[Any, Call]) -> Dump:
    about: Mapping[str, Any] = {"entries": loaded} if isinstance(loaded, list) else loaded  # torch 2.1: a list
    if not isinstance(about, dict) or not {"entries", "pg_config", "version"} & about.keys():
        raise ValueError("no entries")
    entries: list[Entry] = list(about.get("entries") or [])[-ENTRIES:]
    if any(entry.get("process_group", ("", ""))[1] in BACKENDS for entry in entries[-1:]):
        raise RefusedFile(TORCHCOMMS)
    config = {name: _ranks(group["ranks"]) for name, group in (about.get("pg_config") or {}).items() if group["ranks"]}
    by_group: dict[Key, list[Entry]] = {}
    for entry in entries:
        if key := _key(entry, config):
            by_group.setdefault(key, []).append(entry)
    last_s = _created_s(entries[-1]) if entries else 0.0
    waits_since = math.inf if last_s - written_s > _UNKNOWN_S else written_s - STUCK_S
    groups = dict(list(by_group.items())[-GROUPS:])
    recorded = {key: _recorded(of_group, waits_since, shared) for key, of_group in groups.items()}
    named = max((rank for text in config.values() for rank in rank_ranges.from_text(text)), default=-1) + 1
    world = max((len(rank_ranges.from_text(key.ranks)) for key in groups if key.world), default=0) or named
    if rank >= world > 0:
        raise RefusedFile(f"is rank {rank}'s by its name, but its job has {rank_ranges.count(world, 'rank')}")
    return Dump(
        rank=rank, file=path, last_s=last_s, world=world,
        whole=not entries or _integer(entries[0].get("record_id", 1)) == 0,
        groups=recorded,
    )  # fmt: skip


def _ranks(text: Any) -> str:
    """ "[0, 1, 2]" becomes "0-2"."""
    numbers = re.findall(r"\d{1,6}", text[: 8 * RANKS]) if isinstance(text, str) else [_integer(part) for part in text]
    return rank_ranges.to_text(int(number) for number in numbers if int(number) < RANKS)


def _key(entry: Entry, config: Mapping[Any, str]) -> Key | None:
    """None for a group without a name (torch 2.1 to 2.3) that is not the first: numbers of other groups are local to
    the process."""
    if "process_group" in entry:
        name, description = (word(part) for part in entry["process_group"])
        return Key(name, config.get(name, "") if name else "", description == "default_pg")
    return Key("", "", True) if _integer(entry["pg_id"]) == 0 else None


def _recorded(entries: Sequence[Entry], waits_since: float, shared: dict[Any, Call]) -> Recorded:
    sends = [entry for entry in entries if _is_send(entry)]
    by_number: dict[int, list[Entry]] = {}
    for entry in entries:
        if not _is_send(entry):
            by_number.setdefault(_number(entry), []).append(entry)
    numbers = sorted(by_number)
    # before torch 2.5 a batch of sends counts as a collective, and only some ranks make it
    gaps = bool(sends and numbers) and (numbers[-1] - numbers[0] >= len(numbers) or "seq_id" in sends[0])
    timed = any(entry.get("time_discovered_started_ns") for entry in entries)
    chosen = of_interest(numbers, lambda number: _is_over(by_number[number]))
    opened_s = next(
        (_created_s(by_number[number][0]) for number in chosen if not _is_over(by_number[number])), math.inf
    )
    chosen_calls = [_call(by_number[number], waits_since, timed) for number in chosen]
    calls = [shared.setdefault(tuple((key, str(value)) for key, value in call.items()), call) for call in chosen_calls]
    return Recorded(numbers[-1] if numbers else 0, calls, _pending(sends, waits_since), not gaps, opened_s)


def _pending(sends: Sequence[Entry], waits_since: float) -> list[Call]:
    """The sends and receives that are not over. Only the last entry of a batch is marked."""
    batches: dict[Any, list[Entry]] = {}
    for entry in sends:
        batches.setdefault((_number(entry), entry.get("p2p_seq_id", len(batches))), []).append(entry)
    waiting = [entry for batch in batches.values() if not _is_over(batch) for entry in batch]
    return [_call([entry], waits_since, timed=False) for entry in waiting[:CALLS]]


def _is_send(entry: Entry) -> bool:
    """Whether the entry is a send or a receive."""
    return bool(entry["is_p2p"]) if "is_p2p" in entry else _operation(entry).startswith(("send ", "recv "))


def _is_over(entries: Sequence[Entry]) -> bool:
    """Whether the call is over. Of several entries with one number, issued together, the last is marked. gloo marks
    only completed calls as retired; NCCL also those that timed out."""
    return any(
        entry["state"] == "completed" or (entry.get("retired") and _backend(entry) == "gloo") for entry in entries
    )


def _call(entries: Sequence[Entry], waits_since: float, timed: bool) -> Call:
    entry, over = entries[0], _is_over(entries)
    sizes = entry.get("input_sizes") or entry.get("output_sizes") or []
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or ["elements"]
    dtype, sizes = word(dtypes[0]), [[_integer(size) for size in shape[:DIMENSIONS]] for shape in sizes[:TENSORS]]
    return {
        "seq": _number(entry),
        "operation": _operation(entry),
        "sizes": sizes[:4],
        "elements": sum(math.prod(size) for size in sizes),
        "dtype": DTYPES.get(dtype, dtype),
        "over": over,
        "stuck": not over and _created_s(entry) <= waits_since,
        "began": any(entry["state"] != "scheduled" for entry in entries) if timed else None,
        "timeout_s": _integer(entry.get("timeout_ms") or 0) / 1000,
        "backend": _backend(entry),
        **innermost_place(entry.get("frames") or ()),
    }


def innermost_place(frames: Sequence[Any]) -> dict[str, Any]:
    for frame in (frame for frame in frames[:FRAMES] if isinstance(frame, dict)):
        file, line = str(frame.get("filename", ""))[:4096], frame.get("line", 0)
        if isinstance(line, int) and 0 < line < 1 << 31 and is_own(file):
            return {"at": f"{word(os.path.basename(file))}:{line}", "file": file, "line": line}
    return {"at": "", "file": "", "line": 0}


def _number(entry: Entry) -> int:
    return _integer(entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"])


def _operation(entry: Entry) -> str:
    return word(entry["profiling_name"]).rpartition(":")[2]


def _backend(entry: Entry) -> str:
    return word(entry["profiling_name"]).partition(":")[0]


def _created_s(entry: Entry) -> float:
    if "time_created_us" in entry:  # torch 2.1
        return _integer(entry["time_created_us"]) / 1e6
    return _integer(entry.get("time_created_ns", 0)) / 1e9


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST <= value < _LARGEST:
        raise ValueError("a number was expected")
    return value


def word(text: Any) -> str:
    """A printable, short form of a text."""
    if not isinstance(text, str):
        raise TypeError("a word was expected")
    start = text[:80]
    return start if start.isprintable() else "".join(char for char in start if char.isprintable())
