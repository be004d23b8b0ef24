"""What an exception says: in one line, whether it came out of a collective, and what a DataLoader worker raised."""

import re
from dataclasses import dataclass

WORDS_OF_COLLECTIVES = {
    "RuntimeError": ("third_party/gloo/", "Application timeout caused pair closure"),
    "DistStoreError": ("ait timeout",),
    "DistBackendError": ("",),
}
"""What exceptions say that come out of a collective: gloo's source path, or its words for all that comes after a call
that has run out of time (transport/tcp/unbound_buffer.cc); a wait for a key of the store, which another rank writes
(torch's new_group waits so); all that NCCL raises."""


def out_of_a_collective(error: BaseException) -> BaseException | None:
    """What a collective has raised, marked by the check or not (DDP's own): the exception itself, or one that it came
    of."""
    raised: BaseException | None = error
    for _ in range(10):  # exceptions may name each other in a ring
        words = WORDS_OF_COLLECTIVES.get(type(raised).__name__, ())
        if words and any(said in text(raised)[:500] for said in words):
            return raised
        raised = raised and (raised.__cause__ or raised.__context__)
    return None


def first_words(error: BaseException) -> str:
    """torch puts a source path before its messages and a C++ backtrace behind; these stay in the stack."""
    return _one_line(re.sub(r"^\[(enforce fail at )?\S+:\d+\] ", "", text(error)))


def _one_line(words: str) -> str:
    """The first; and the second one where a colon leads to it."""
    lines = words.splitlines() or ["(no message)"]
    more = f" {lines[1].strip()[:200]}" if len(lines) > 1 and lines[0].endswith(":") else ""
    return f"{lines[0][:500]}{more}"


def text(error: object) -> str:
    """All that it says; its own `__str__` may raise."""
    try:
        return str(error).strip()
    except Exception:
        return "(its text cannot be made)"


Frame = tuple[str, int, str, str | None]
"""Path, line, function, and the module's name, or None where only its file is known."""
_FRAME = re.compile(r'^ *File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)


def printed_frames(stack: str) -> list[Frame]:
    """Those of a stack as Python or faulthandler prints it, in its order."""
    return [(one[1], int(one[2]), one[3], None) for one in _FRAME.finditer(stack)]


@dataclass(frozen=True)
class Worker:
    """What was raised in a worker of a DataLoader, or in its thread for pinned memory."""

    name: str
    """ "DataLoader worker 0"."""
    said: str
    """ "ValueError: odd"."""
    frames: list[Frame]
    """The most recent call first."""

    @classmethod
    def of(cls, error: BaseException | None) -> "Worker | None":
        """torch raises it again in the main process, with the stack in its words only (torch/_utils.py,
        ExceptionWrapper). None of other exceptions."""
        words = text(error)
        head = re.match(r"Caught \w+ in (.+)\.\nOriginal Traceback", words)
        if head is None:
            return None
        *_, last = [0, *(one.end() for one in _FRAME.finditer(words))]
        own = re.search(r"^\S.*", words[last:].partition("\n")[2], re.MULTILINE | re.DOTALL)  # code is indented
        said = re.sub(r"^(\w+\.)+(?=\w+(:|$))", "", _one_line(own[0] if own else ""))  # torch.OutOfMemoryError
        return cls(head[1].replace(" process ", " "), said, printed_frames(words)[::-1])
