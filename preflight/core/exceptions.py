"""What an exception says: one line, the place, whether it came out of a collective, what a DataLoader worker raised."""

import os
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.core import own_code

WORDS_OF_COLLECTIVES = {
    "RuntimeError": ("third_party/gloo/", "Application timeout caused pair closure"),
    "DistStoreError": ("ait timeout",),
    "DistBackendError": ("",),
}
"""Texts by which an exception from a collective is known: gloo's source path, or its message for every call after one
that has timed out (transport/tcp/unbound_buffer.cc); a wait for a key of the store that another rank writes (as in
torch's new_group); anything that NCCL raises."""


def out_of_a_collective(error: BaseException) -> BaseException | None:
    """The exception that a collective raised: `error` itself or one in its chain of causes, whether or not the check
    marked the collective (DDP's own are not marked). None if no collective did."""
    raised: BaseException | None = error
    for _ in range(10):  # exceptions may name each other in a ring
        words = WORDS_OF_COLLECTIVES.get(type(raised).__name__, ())
        if words and any(word in text(raised)[:500] for word in words):
            return raised
        raised = raised and (raised.__cause__ or raised.__context__)
    return None


def in_one_line(error: BaseException) -> str:
    """ "KeyError: 'free'"."""
    return f"{type(error).__name__}: {first_words(error)}"


def first_words(error: BaseException) -> str:
    """The message without the source path that torch puts before it and the C++ backtrace after it."""
    return _one_line(re.sub(r"^\[(enforce fail at )?\S+:\d+\] ", "", text(error)))


def _one_line(words: str) -> str:
    """The first line, with the second one if the first ends with a colon."""
    lines = words.splitlines() or ["(no message)"]
    more = f" {lines[1].strip()[:200]}" if len(lines) > 1 and lines[0].endswith(":") else ""
    return f"{lines[0][:500]}{more}"


def text(error: object) -> str:
    """The exception's text; its own `__str__` may raise."""
    try:
        return str(error).strip()
    except Exception:
        return "(its text cannot be made)"


Frame = tuple[str, int, str, str | None]
"""Path, line, function, and the module's name, or None where only its file is known."""
_FRAME = re.compile(r'^ *File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)


def printed_frames(stack: str) -> list[Frame]:
    """The frames of a stack as Python or faulthandler prints it, in the same order."""
    return [(frame[1], int(frame[2]), frame[3], None) for frame in _FRAME.finditer(stack)]


ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def is_the_authors(path: str, own: str = "") -> bool:
    """Whether this file is the check's, or code of the author that it calls: not the engine, the standard library or an
    installed package. `own`: the check's file, or its folder if it is a package."""
    if own and (path == own or path.startswith(os.path.join(own, ""))):
        return True
    if path.startswith(os.path.join(ENGINE, "")):
        return path.removeprefix(ENGINE).split(os.sep)[1] in ("checks", "train_smoke")
    return own_code.is_own(path)


def place_of(error: BaseException, own: str = "") -> str:
    """ " (nvlink.py line 12)": the author's innermost line in the traceback, or the innermost line if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(frame.filename, frame.lineno or 0) for frame in frames]
    if isinstance(error, SyntaxError) and not any(is_the_authors(path, own) for path, _ in lines):
        return ""  # in the check's own file, which its text names
    return innermost_line(lines[::-1], own)


def innermost_line(lines: Sequence[tuple[str, int]], own: str = "") -> str:
    """Like `place_of`, for a list of (path, line) with the most recent call first."""
    path, line = next((line for line in lines if is_the_authors(line[0], own)), lines[0] if lines else ("", 0))
    return f" ({os.path.basename(path)} line {line})" if path else ""


@dataclass(frozen=True)
class Worker:
    """What was raised in a worker of a DataLoader, or in its thread for pinned memory."""

    name: str
    """ "DataLoader worker 0"."""
    message: str
    """ "ValueError: odd"."""
    frames: list[Frame]
    """The most recent call first."""

    @classmethod
    def of(cls, error: BaseException | None) -> "Worker | None":
        """torch raises it again in the main process, with the stack only in the message (torch/_utils.py,
        ExceptionWrapper). None for other exceptions."""
        words = text(error)
        head = re.match(r"Caught \w+ in (.+)\.\nOriginal Traceback", words)
        if head is None:
            return None
        *_, last = [0, *(frame.end() for frame in _FRAME.finditer(words))]
        own = re.search(r"^\S.*", words[last:].partition("\n")[2], re.MULTILINE | re.DOTALL)  # code is indented
        message = re.sub(r"^(\w+\.)+(?=\w+(:|$))", "", _one_line(own[0] if own else ""))  # torch.OutOfMemoryError
        return cls(head[1].replace(" process ", " "), message, printed_frames(words)[::-1])
