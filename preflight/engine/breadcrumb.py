"""A page of memory that a worker writes and its supervisor can read after the worker's death."""

import json
import mmap
import struct
from collections.abc import Mapping
from typing import Any

from preflight.core import words

SIZE = 4096
_HEADER = struct.Struct("=II")  # sequence (odd while being written), length


def _cut(parts: list[str], size: int) -> str:
    """The parts joined and cut to `size` bytes of UTF-8, without control characters, which JSON would inflate."""
    text = words.printable(" ".join(parts)[:size])
    return text.encode(errors="replace")[:size].decode(errors="ignore")


class Breadcrumb:
    """Created before the fork; only the child writes it, in microseconds, since it is small."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SIZE)
        self._sequence = 0
        self._content: dict[str, Any] = {}

    def clear(self) -> None:
        self._content = {"entered": self._content.get("entered", 0)}
        self._write()

    def doing(self, what: str, where: Mapping[str, Any]) -> None:
        self._content["doing"] = _cut([what, *(f"{key}={value}" for key, value in where.items())], 1500)
        self._write()

    def enter(self, operation: str, shape: str) -> None:
        """A collective begins. They are counted over the worker's life, as the process group counts them."""
        entered = self._content.get("entered", 0) + 1
        collective = {
            "operation": _cut([operation], 200),
            "shape": _cut([shape], 200),
            "number": entered,
            "inside": True,
        }
        self._content |= {"entered": entered, "collective": collective}
        self._write()

    def leave(self) -> None:
        self._content["collective"]["inside"] = False
        self._write()

    @property
    def entered(self) -> int:
        """For the child itself: how many collectives it has entered."""
        return int(self._content.get("entered", 0))

    def inside_collective(self) -> bool:
        """For the child itself: whether it is inside a collective, so that an exception came from there."""
        return bool(self._content.get("collective", {}).get("inside"))

    def _write(self) -> None:
        data = json.dumps(self._content, ensure_ascii=False).encode(errors="replace")[: SIZE - _HEADER.size]
        _HEADER.pack_into(self._memory, 0, self._sequence + 1, len(data))
        self._memory[_HEADER.size : _HEADER.size + len(data)] = data
        self._sequence += 2
        _HEADER.pack_into(self._memory, 0, self._sequence, len(data))

    def read(self) -> dict[str, Any]:
        """In the supervisor: the last complete state, or {} if the writer died while writing."""
        for _ in range(3):
            sequence, length = _HEADER.unpack_from(self._memory, 0)
            data = self._memory[_HEADER.size : _HEADER.size + min(length, SIZE)]
            if sequence % 2 == 0 and _HEADER.unpack_from(self._memory, 0)[0] == sequence:
                try:
                    content: dict[str, Any] = json.loads(data or b"{}")
                except ValueError:
                    continue
                return content
        return {}

    def close(self) -> None:
        """In the supervisor, once the child is gone."""
        self._memory.close()
