"""torchrun's error files: what a worker raised ($TORCHELASTIC_ERROR_FILE), and when.

Written by torch/distributed/elastic/multiprocessing/errors (`record`): {"message": {"message", "extraInfo":
{"py_callstack", "timestamp"}}}; other handlers write {"message": text, "timestamp"}.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from preflight.explain.inputs import opened
from preflight.failure_book.line import LONGEST, Line

LARGEST = 4 << 20
"""Bytes of a file."""
LINES = 2000
"""Of a traceback: the first and the last ones."""
CLOCK = "iso"
"""As for time stamps with a zone: seconds since the epoch."""
_LOCAL_RANK = re.compile(r"attempt_\d+[/\\](\d{1,4})[/\\][^/\\]+$")
"""<log dir>/<run id>/attempt_<n>/<local rank>/error.json."""
_NAMED = re.compile(r"(?i)(local[-_.]?)?rank[-_.]?(\d{1,6})(?!\d)[^/\\]*$")
"""Whatever starts the workers may set TORCHELASTIC_ERROR_FILE."""


def lines(path: str, shown: str) -> list[Line]:
    """The traceback and the exception as lines of a log; none for an empty file. `order` is the line's place in the
    file. A malformed file is returned line by line."""
    try:
        with open(opened(path), "rb") as file:
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError:
        return []
    texts, time_s = _parse(text)
    about = {"file": shown, **_source_from_path(path), "time": time_s, "clock": CLOCK if time_s is not None else ""}
    kept = texts if len(texts) <= LINES else [*texts[: LINES // 2], *texts[-LINES // 2 :]]
    return [
        Line(text[:LONGEST], text[:LONGEST], number=place, order=place, **about) for place, text in enumerate(kept, 1)
    ]


def _source_from_path(path: str) -> dict[str, Any]:
    if by_torchrun := _LOCAL_RANK.search(path):
        return {"local_rank": int(by_torchrun[1])}
    named = _NAMED.search(path)
    return {"local_rank" if named[1] else "rank": int(named[2])} if named else {}


def _parse(text: str) -> tuple[list[str], float | None]:
    """The error's lines, and when it happened, in seconds since the epoch."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return text.splitlines(), None
    message: Any = _mapping(read).get("message")
    more = _mapping(_mapping(message).get("extraInfo") or _mapping(read).get("extraInfo"))
    summary = _mapping(message).get("message") if isinstance(message, dict) else message
    summary = summary if isinstance(summary, str) else ""
    stack = more.get("py_callstack")
    traceback = stack.strip() if isinstance(stack, str) else ""
    if summary.strip() not in ("", "<NONE>") and summary.strip() not in traceback:
        traceback = f"{traceback}\n{summary}".strip()
    return traceback.splitlines(), _seconds(more.get("timestamp") or _mapping(read).get("timestamp"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: Any) -> float | None:
    """Seconds since the epoch, from a number or its text; None if it is not a time after 2001."""
    match = re.fullmatch(r"\d{10}(?:\.\d{1,9})?", str(value)) if isinstance(value, int | float | str) else None
    return float(match[0]) if match else None
