"""What NCCL's RAS says in JSON (rasDumpCommsToJSON and rasClientsNotifyEvent in src/ras/client_support.cc of 2.30; its
manual, "RAS"), made small: ranks with equal answers are grouped. Pure: text in, a dict out."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from preflight.core import rank_ranges

COMMUNICATORS, EVENTS, LONGEST = 8, 16, 200
"""How many are kept: the largest communicators; the last events; characters of a word."""
GREETING = re.compile(r"(?i:SERVER PROTOCOL)[^\n]*\n(?:OK\n|ERROR: [^\n]*\n)*")
"""What comes before an answer: the server's greeting, and a line for each question."""
IN_PROGRESS = 7
"""ncclResult_t."""
ERRORS = {1: "CUDA error", 2: "system error", 3: "internal error", 4: "invalid argument", 5: "invalid usage",
          6: "remote error"}  # fmt: skip


class Communicator(TypedDict):
    """Ranks are the communicator's."""

    hash: str
    size: int
    counts: dict[str, dict[str, int]]
    """Launches of each collective by ranks: {"AllReduce": {"0,2": 5, "1": 4}}. Sends are not counted."""
    missing: str
    """Ranks without an answer, for whatever reason."""
    unresponsive: str
    """Those of them whose process does not answer."""
    dead: str
    """Those of them that RAS has given up on."""
    failed: dict[str, str]
    """{"remote error": "3"}: what ncclCommGetAsyncError reports for these ranks, or the error of their start."""
    starting: str
    aborted: str


class Snapshot(TypedDict):
    version: str
    communicators: list[Communicator]
    timeouts: int
    """How often RAS itself has timed out waiting for an answer."""
    still: bool | None
    """Whether nothing has moved since the question before; None if it was asked only once."""
    events: list[str]
    """ "PEER_DEAD process 4711 on 10.0.0.2, GPU 1": since the first question."""


def parse(text: str) -> Snapshot | None:
    """None if it is not JSON of this form: NCCL escapes nothing, and an answer may be cut."""
    try:
        answered = json.loads(GREETING.sub("", text, count=1))
        largest = sorted(answered["communicators"], key=lambda comm: -comm["size"])
        communicators = [_communicator(comm) for comm in largest[:COMMUNICATORS]]
        version, timeouts = str(answered["nccl_version"])[:LONGEST], int(answered["ras"]["timeouts_count"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    return {"version": version, "communicators": communicators, "timeouts": timeouts, "still": None, "events": []}


def to_text(snapshot: Snapshot, limit: int) -> str:
    """JSON of at most `limit` characters; leaves out the smallest communicators if necessary."""
    communicators = snapshot["communicators"]
    texts = (
        json.dumps({**snapshot, "communicators": communicators[:kept]}) for kept in range(len(communicators), -1, -1)
    )
    return next((text for text in texts if len(text) <= limit), "")


def read(text: str | None) -> Snapshot | None:
    """The snapshot that Watch.ask returned on another rank; None if it is not complete."""
    try:
        answered = json.loads(text or "")
        for comm in answered["communicators"]:
            list(map(rank_ranges.from_text, (*_spans(comm), comm["missing"], comm["unresponsive"], comm["dead"])))
            comm["size"] + 0
        return answered if answered["still"] in (None, True, False) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _spans(comm: Mapping[str, Any]) -> Iterator[str]:
    for by_ranks in comm["counts"].values():
        yield from by_ranks


def is_still(before: Snapshot, after: Snapshot) -> bool:
    """Whether no rank launched anything between the two."""
    return [(comm["hash"], comm["counts"]) for comm in before["communicators"]] == [
        (comm["hash"], comm["counts"]) for comm in after["communicators"]
    ]


def events(text: str) -> list[str]:
    """The last EVENTS events that a monitor received: JSON objects one after another; anything else is skipped."""
    found, start, decoder = [], text.find("{"), json.JSONDecoder()
    while start >= 0:
        try:
            event, end = decoder.raw_decode(text, start)
            found.append(_event(event))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            end = start + 1
        start = text.find("{\n", end)
    return found[-EVENTS:]


def _event(event: Mapping[str, Any]) -> str:
    peer = event.get("peer", {})
    gpus = ",".join(map(str, peer.get("cuda_devs", ())))
    who = f" process {peer['pid']} on {peer['host']}, GPU {gpus}" if "pid" in peer else f" {peer.get('addr', '')}"
    details = f": {event['details']}" if event.get("details") else ""
    return f"{event['event']}{who.rstrip()}{details}"[:LONGEST]


def _communicator(comm: Mapping[str, Any]) -> Communicator:
    ranks, missing = comm["ranks"], comm["missing_ranks"]
    operations = dict.fromkeys(operation for rank in ranks for operation in rank["collective_counts"])
    counts = {str(operation)[:LONGEST]: _counted(ranks, operation) for operation in operations}
    failed = {name: _those(rank for rank in ranks if code in _codes(rank)) for code, name in ERRORS.items()}
    return {
        "hash": str(comm["hash"])[:LONGEST],
        "size": int(comm["size"]),
        "counts": {operation: by_ranks for operation, by_ranks in counts.items() if any(by_ranks.values())},
        "missing": _those(missing),
        "unresponsive": _those(rank for rank in missing if rank["status"]["unresponsive"]),
        "dead": _those(rank for rank in missing if rank["status"]["considered_dead"]),
        "failed": {name: those for name, those in failed.items() if those},
        "starting": _those(rank for rank in ranks if rank["status"]["init_state"] == IN_PROGRESS),
        "aborted": _those(rank for rank in ranks if rank["status"]["abort_flag"]),
    }


def _codes(rank: Mapping[str, Any]) -> tuple[int, int]:
    return rank["status"]["init_state"], rank["status"]["async_error"]


def _those(ranks: Iterable[Mapping[str, Any]]) -> str:
    return rank_ranges.to_text(int(rank["rank"]) for rank in ranks)


def _counted(ranks: Iterable[Mapping[str, Any]], operation: str) -> dict[str, int]:
    by_count: dict[int, set[int]] = {}
    for rank in ranks:
        by_count.setdefault(int(rank["collective_counts"][operation]), set()).add(int(rank["rank"]))
    return {rank_ranges.to_text(those): count for count, those in by_count.items()}
