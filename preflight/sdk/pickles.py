"""Pickles from files that anybody may have written: nothing that they name is imported, called or built.

Two policies. `load_plain` takes plain data only (dict, list, tuple, str, int, float, bool, None), as torch's flight
recorder writes it (torch/csrc/jit/serialization/pickler.cpp, protocol 2): all opcodes are checked before Python's own
unpickler sees the file, and a file with any opcode that plain data does not need is refused, and so is one that would
take far more memory than its size. `InertUnpickler` takes any pickle, as of a checkpoint: each class or function that
it names becomes a class of this module that only keeps what it is given. So the names, types and shapes of tensors can
be read, and what the pickle would have run when loaded is known by name.
"""

import collections
import io
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

# Plain data

LONGEST = 32 << 20
"""Bytes: a dump of 2,000 calls, torch's default, has about one million."""
MOST = 4_000_000
"""Lists, dicts, tuples, marks, None and booleans; each takes a byte in the file, and up to 72 in memory."""
_BIG = [bytes([opcode]) for opcode in b"]})(N\x88\x89"]

_FIXED = {0: b"(}])tldaesuN\x85\x86\x87\x88\x89\x94", 1: b"\x80Kqh", 2: b"M", 4: b"Jj", 8: b"G\x95"}
"""Opcodes by the length of their argument."""
_PUT = rb"r..[\x00-\x1f]\x00"
"""LONG_BINPUT below two million: C's memo is an array."""
_SIZED = {ord("X"): 4, 0x8C: 1, 0x8D: 8, 0x8A: 1}
"""BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, LONG1: the length of the length that follows them."""
_RUN = re.compile(
    b"(?:%s){1,65536}+"
    % b"|".join([_PUT, *(b"[%s].{%d}" % (re.escape(opcodes), size) for size, opcodes in _FIXED.items())]),
    re.DOTALL,
)


class RefusedFile(Exception):  # noqa: N818 -- what the file is
    """Its text says why, as the end of a sentence about the file."""


def load_plain(data: bytes) -> Any:
    """What the pickle holds. Containers may be shared and nested at will: walk through known forms only. Raises
    RefusedFile."""
    if len(data) > LONGEST:
        raise RefusedFile(f"has more than {LONGEST >> 20} MiB, which no flight recorder writes")
    if sum(data.count(opcode) for opcode in _BIG) > MOST:
        raise RefusedFile(f"holds more than {MOST:,} lists and other things, which no flight recorder writes")
    _check_opcodes(data)
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:
        raise RefusedFile(f"is a broken pickle ({type(error).__name__}: {str(error)[:80]})") from None


def _check_opcodes(data: bytes) -> None:
    at = 0
    while at < len(data):
        if data[at] == ord("."):
            return
        if run := _RUN.match(data, at):
            at = run.end()
        elif size := _SIZED.get(data[at]):
            at += 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "little")
        else:
            raise RefusedFile(_why(data, at))
    raise RefusedFile("ends in the middle: it was cut off, or is still being written")


def _why(data: bytes, at: int) -> str:
    opcode = next((opcode_info for opcode_info in pickletools.opcodes if opcode_info.code == chr(data[at])), None)
    if opcode is None:
        return f"is not a pickle (byte {at:,})"
    if any(data[at] in opcodes for opcodes in _FIXED.values()) or (data[at] == ord("r") and at + 5 > len(data)):
        return "ends in the middle: it was cut off, or is still being written"
    return f"is not a pickle of plain data ({opcode.name} at byte {at:,}), so nothing of it was loaded"


class _Plain(pickle.Unpickler):
    """Refuses what the opcodes should have shown."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise RefusedFile(f"names {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RefusedFile(f"refers to {pid!r:.80} outside")


# Any pickle

LARGEST = 1 << 30
"""Bytes: the metadata of a checkpoint of 1,000 ranks and 100,000 tensors has some 100 MB."""
DEEPEST, MOST_VISITED = 200, 50_000_000
"""The most levels of containers, and entries, that are visited."""
_REAL: dict[str, type] = {"collections.OrderedDict": collections.OrderedDict, "torch.Size": tuple}
"""Classes that only hold what they are given."""


class Inert:
    """Takes the place of an object of any class."""

    origin = ""
    """ "torch._utils._rebuild_tensor_v2"."""
    args: tuple[Any, ...]

    def __new__(cls, *args: Any, **_: Any) -> "Inert":
        inert = object.__new__(cls)
        inert.args, inert.state, inert.items = args, None, []
        return inert

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state: Any
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def get(self, name: str) -> Any:
        """A field of its state; None if it does not exist."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        return state.get(name) if isinstance(state, dict) else None


class InertUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], persistent: Callable[[Any], Any] | None = None) -> None:
        """`persistent` makes an object for a reference to something outside the pickle, such as a storage."""
        super().__init__(file, encoding="utf-8", errors="replace")
        self._persistent, self._classes = persistent, dict(_REAL)
        self.names: set[str] = set()
        """The classes and functions that it names: "posix.system"."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        origin = f"{module_name}.{global_name}"
        self.names.add(origin)
        if origin not in self._classes:
            self._classes[origin] = type("Inert", (Inert,), {"origin": origin})
        return self._classes[origin]

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("it refers to something outside")
        return self._persistent(pid)


def walk(root: Any, is_leaf: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yields (path such as "model.layer.weight", leaf) for leaves and non-containers; visits each container once."""
    waiting: list[tuple[str, Any, int]] = [("", root, 0)]
    seen: set[int] = set()
    for _ in range(MOST_VISITED):
        if not waiting:
            return
        path, item, depth = waiting.pop()
        children = None if is_leaf(item) else _children(item)
        if children is None:
            yield path, item
        elif id(item) not in seen and depth < DEEPEST:
            seen.add(id(item))
            found = [(f"{path}.{key}" if path else str(key), child, depth + 1) for key, child in children]
            waiting += reversed(found)


def _children(item: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(item, dict):
        return [(key if isinstance(key, str | int) else "?", child) for key, child in item.items()]
    if isinstance(item, list | tuple):
        return list(enumerate(item))
    if isinstance(item, Inert):
        state = item.state if isinstance(item.state, tuple) else (item.state,)
        fields = [pair for part in state if isinstance(part, dict) for pair in part.items()]
        return [*enumerate(item.args), *fields, *enumerate(item.items)]
    return None
