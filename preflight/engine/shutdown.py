"""How a run ends: the verdict reaches every rank before any rank's launcher can kill the others."""

import contextlib
import json
import os
import sys
import time
from typing import Any, NoReturn

from preflight.core.job import Node
from preflight.engine import store_keys
from preflight.engine.event_loop import EventLoop, tell_all
from preflight.engine.store_client import StoreLost
from preflight.engine.verdict import RunVerdict
from preflight.results.destinations import for_terminal
from preflight.results.report import Report

VERDICT_FD = "PREFLIGHT_VERDICT_FD"
"""The variable with the descriptor to which each rank writes its verdict (see cli/api.py)."""
NEXT_S, ALL_S = 5.0, 30.0
"""How long node 0, which serves the store, waits for a further farewell, and for all: on a starved machine many ranks
come one after the other, and without the store they would not learn the verdict."""


def publish(loop: EventLoop, verdict: RunVerdict, call: str) -> None:
    """Writes the verdict to the store for all ranks and for a restart of this job; not if the store is gone."""
    message = verdict.to_json()
    with contextlib.suppress(StoreLost):
        tell_all(loop, verdict.run, message)
        loop.request("put", key=store_keys.last_verdict(call), value=json.dumps(message))


def farewell(loop: EventLoop, verdict: RunVerdict, rank: int | None, *, serves: bool = False) -> None:
    """Says goodbye and waits for the others: torchrun ends all ranks of a node when one ends with an error,
    and the store ends with node 0, or with the rank that `serves` it."""
    node = verdict.job.node_of(rank) if rank is not None else Node("", -1, ())
    everybody = store_keys.farewells(verdict.run, verdict.attempt)
    mine = store_keys.farewells(verdict.run, verdict.attempt, node.node_rank)
    living = set(verdict.living)
    if serves or 0 in node.ranks:  # processes without a place learn the verdict from this node's store, too
        key, awaited = everybody, len(living) + verdict.strangers
    else:
        key, awaited = mine, len(living & set(node.ranks))
    with contextlib.suppress(StoreLost):
        for log in (everybody, mine):
            loop.request("append", key=log, value="{}")
        _await_all(loop, key, awaited)


def _await_all(loop: EventLoop, key: str, awaited: int) -> None:
    start, came = time.monotonic(), 0
    last, end = start, start + min(ALL_S, max(NEXT_S, loop.left))
    while came < awaited and (left_s := min(end, last + NEXT_S) - time.monotonic()) > 0:
        if loop.has_come(f"{key}/{awaited}", left_s):
            return
        count = loop.request("count", key=key)
        came, last = count, time.monotonic() if count > came else last


def write_verdict(exit_code: int, sentence: str, report: Report | None = None) -> None:
    """Tells the process that started this rank: torchrun then prints its error file instead of guessing."""
    sentence = for_terminal(sentence)
    if exit_code:
        details = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        error = {"message": {"message": sentence, "extraInfo": details}}
        _write_error(os.environ.get("TORCHELASTIC_ERROR_FILE"), error)
    descriptor = os.environ.get(VERDICT_FD, "")
    if descriptor.isdecimal():
        verdict = {"exit_code": exit_code, "sentence": sentence, "report": report.to_json() if report else None}
        with contextlib.suppress(OSError), open(int(descriptor), "w", closefd=False) as file:
            json.dump(verdict, file)


def _write_error(path: str | None, error: dict[str, Any]) -> None:
    if not path:
        return
    with contextlib.suppress(OSError):
        with open(f"{path}.preflight", "w") as file:
            json.dump(error, file)
        os.replace(f"{path}.preflight", path)


def leave(exit_code: int) -> NoReturn:
    """Exits a supervisor without running exit handlers, torch's or any other."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)
