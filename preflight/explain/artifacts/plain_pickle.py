"""Pickles of plain data (dict, list, tuple, str, int, float, bool, None) from files that anybody may have written.

torch's flight recorder writes such ones (torch/csrc/jit/serialization/pickler.cpp, protocol 2). Before Python's own
unpickler sees a file, all its opcodes are checked: a file with any opcode that plain data does not need is refused, so
that nothing is imported, called or built; and so is a file that would take far more memory than its size.
"""

import io
import pickle
import pickletools
import re
from typing import Any, NoReturn

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


def loads(data: bytes) -> Any:
    """What the pickle holds. Containers may be shared and nested at will: walk through known forms only. Raises
    Refused."""
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
