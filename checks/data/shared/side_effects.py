"""Side effects of a call of the user's code: lines it prints, files it writes, creates, renames or removes.

Unless only one rank does it, ranks that share a folder change the same files at the same time.
"""

import functools
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

FIRST, LONGEST = 3, 200
"""How many lines to keep, and characters of each."""
FILES = 20
"""How many files to keep."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KERNELS = ("/dev/", "/proc/", "/sys/")
_OWN_NAME = re.compile(r"(tmp\w{8}|pymp-|torch)")
"""Names in the temporary folder by tempfile, multiprocessing and torch, which differ between processes."""


@dataclass
class Traces:
    printed: list[str] = field(default_factory=list)
    """The first `FIRST` lines that are not blank, on stdout or stderr, without Python's warnings."""
    lines: int = 0
    """The total number of lines."""
    written: list[str] = field(default_factory=list)
    """The first `FILES` files and folders, relative to the current folder if they are in it. Files opened by C code are
    unknown, except torch.save's."""


@contextmanager
def traced() -> Iterator[Traces]:
    """Traces the body. Output still goes where it went before; restores sys.stdout and sys.stderr."""
    import torch

    traces, before = Traces(), (sys.stdout, sys.stderr)
    streams = [_Stream(stream, traces) for stream in before]
    sys.stdout, sys.stderr = streams
    save, _Files.now = torch.save, _Files(os.getcwd(), traces.written)
    torch.save = _saving(save)
    _listen()
    try:
        yield traces
    finally:
        _Files.now, torch.save = None, save
        sys.stdout, sys.stderr = before
        for stream in streams:
            stream.end()


class _Stream:
    """Passes on what is printed, and counts it. It may outlive the call: the user's logger may hold it."""

    def __init__(self, stream: Any, traces: Traces) -> None:
        self._stream, self._traces, self._begun = stream, traces, ""
        self._counts = True

    def write(self, text: str) -> Any:
        done = self._stream.write(text)  # a TypeError if it is not text
        if self._counts and sys._getframe(1).f_globals.get("__name__") != "warnings":
            *whole, rest = text.split("\n")
            for line in whole:
                self._take(self._begun + line)
                self._begun = ""
            self._begun = (self._begun + rest)[:LONGEST]
        return done

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """Does nothing: the stream belongs to the worker."""

    def end(self) -> None:
        self._take(self._begun)
        self._counts = False

    def _take(self, line: str) -> None:
        if line.strip():
            self._traces.lines += 1
            if len(self._traces.printed) < FIRST:
                self._traces.printed.append(_clean(line.strip())[:LONGEST])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _clean(text: str) -> str:
    """The text without what terminals or JSON cannot handle: escapes, half characters."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


class _Files:
    """The files of one call, from Python's audit events."""

    now: "_Files | None" = None

    def __init__(self, folder: str, written: list[str]) -> None:
        self._folder, self._written = os.path.join(folder, ""), written
        self._temporary = os.path.join(os.path.abspath(tempfile.gettempdir()), "")  # here: finding it out may write

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        about = _EVENTS.get(event)
        if about is not None and len(self._written) < FILES:
            for path in about(*given):
                self.note(path)

    def note(self, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor: it was opened before
        full = os.path.abspath(os.fsdecode(path))
        name = _clean(full.removeprefix(self._folder))
        if name not in self._written and len(self._written) < FILES and self._is_shared(full):
            self._written.append(name)

    def _is_shared(self, path: str) -> bool:
        """Whether other ranks may use the same file. (Lock files are meant to be shared.)"""
        if path.startswith(_KERNELS) or path.endswith(".lock") or f"{os.sep}__pycache__" in path:
            return False
        if path.startswith(self._folder):
            return True
        return not (path.startswith(self._temporary) and _OWN_NAME.match(path.removeprefix(self._temporary)))


def _opened(path: Any, _mode: Any, flags: int, *_: Any) -> Iterator[Any]:
    if flags & _WRITES and flags & os.O_TMPFILE != os.O_TMPFILE and isinstance(path, str | bytes):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe, a terminal
                return
        yield path


def _new_folder(path: Any, _mode: int, folder: int) -> Iterator[Any]:
    if folder < 0 and not os.path.lexists(path):  # os.makedirs also tries existing ones
        yield path


def _removed(path: Any, folder: int) -> Iterator[Any]:
    if folder < 0 and os.path.lexists(path):
        yield path


def _renamed(old: Any, new: Any, old_folder: int, new_folder: int) -> Iterator[Any]:
    yield from (path for path, folder in ((old, old_folder), (new, new_folder)) if folder < 0)


_EVENTS: dict[str, Callable[..., Iterator[Any]]] = {
    "open": _opened, "os.mkdir": _new_folder, "os.remove": _removed, "os.rmdir": _removed, "os.rename": _renamed,
    "os.truncate": lambda path, _length: iter([path]), "shutil.rmtree": lambda path, _folder: iter([path]),
}  # fmt: skip
"""Python's (docs.python.org/3/library/audit_events.html). Names relative to an open folder are left out: rmtree's."""


@functools.cache
def _listen() -> None:
    """Permanent, since an audit hook cannot be removed. It does nothing while no call is traced."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if (files := _Files.now) is not None:
            with suppress(Exception):  # an exception would end the user's operation
                files.hear(event, given)

    sys.addaudithook(hook)


def _saving(save: Any) -> Any:
    """Wraps torch.save, which writes paths from C++, without an audit event."""

    @functools.wraps(save)
    def saved(obj: Any, f: Any, *more: Any, **named: Any) -> Any:
        if _Files.now is not None:
            _Files.now.note(f)
        return save(obj, f, *more, **named)

    return saved
