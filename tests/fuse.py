"""A file system that a test serves itself over /dev/fuse, so that its faults are real for all who call it.

It holds files in memory, in folders. A call (by its name in `Call`) may never be answered, give an error, be late, or
change the bytes that it reads or writes. What has been read and is not answered leaves its caller in uninterruptible
sleep, as a dead server of NFS does.
The protocol is that of linux/fuse.h, version 7.31.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path


class Call(IntEnum):
    """FUSE_..."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    CREATE = 35
    BATCH_FORGET = 42
    RENAME2 = 45


SILENT, ROOT = -1, 1
FORCE, DETACH = 1, 2
"""MNT_FORCE and MNT_DETACH."""
NUMBERS = itertools.count(ROOT + 1)
"""Of the files of all file systems."""
File = tuple[str, bytearray]
"""Its name, and what is in it."""
Change = Callable[[str, int, bytes], bytes]
"""Of the bytes of a file (by its name) from an offset on."""
SIZE_IS_SET = 8
"""FATTR_SIZE."""


def flipped(name: str, every: int = 4096) -> Change:
    """Flips a bit in each of so many bytes, in files whose name begins so."""

    def change(file: str, offset: int, data: bytes) -> bytes:
        turned = bytearray(data)
        for place in range(-offset % every, len(data), every) if file.startswith(name) else ():
            turned[place] ^= 4
        return bytes(turned)

    return change


HEADER = struct.Struct("<IIQQIIIHH")


class FileSystem:
    """Mounted until `end`. `does`: SILENT, or a number of errno, by call. `late`: seconds, by call."""

    def __init__(
        self, folder: Path, does: Mapping[Call, int], late: Mapping[Call, float],
        files: "dict[int, File] | None" = None, changes: Mapping[Call, Change] | None = None,
        folders: "dict[int, int] | None" = None,
    ) -> None:  # fmt: skip
        """`files`, `folders`: those of another one, of which this is then a second mount."""
        self.folder, self._does, self._late = folder, does, late
        self._changes = changes or {}
        self.files: dict[int, File] = {} if files is None else files
        self.within: dict[int, int] = {} if folders is None else folders
        """The folder of each file and folder that is not in the root."""
        self.asked = threading.Event()
        """A call was made that is never answered."""
        self._fd = os.open("/dev/fuse", os.O_RDWR)
        self._libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        if self._libc.mount(b"server:/data", os.fsencode(folder), b"fuse.test", 0, options.encode()):
            problem = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(problem, os.strerror(problem))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Without this nothing that waits for an answer ever wakes up."""
        for flags in (FORCE, DETACH):  # the first gives all calls an error
            self._libc.umount2(os.fsencode(self.folder), flags)
        self._thread.join(5)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # ENODEV: unmounted
            while True:
                request = os.read(self._fd, 1 << 18)
                _, opcode, unique, node, *_ = HEADER.unpack_from(request)
                self._serve_one(opcode, unique, node, request[HEADER.size :])

    def _serve_one(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        known = opcode in set(Call)
        does = self._does.get(Call(opcode), 0) if known else errno.ENOSYS
        if does == SILENT or opcode in (Call.FORGET, Call.BATCH_FORGET, Call.INTERRUPT):
            if does == SILENT:
                self.asked.set()
            return
        time.sleep(self._late.get(Call(opcode), 0.0) if known else 0.0)  # the fault itself
        try:
            if does:
                raise OSError(does, "")
            answer, error = self._answer(Call(opcode), node, body), 0
        except OSError as problem:
            answer, error = b"", problem.errno or errno.EIO
        with contextlib.suppress(FileNotFoundError):  # the caller was killed
            os.write(self._fd, struct.pack("<IiQ", 16 + len(answer), -error, unique) + answer)

    def _answer(self, call: Call, node: int, body: bytes) -> bytes:
        if call is Call.INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 16, 0, 0)
        if call is Call.GETATTR or call is Call.SETATTR:
            if call is Call.SETATTR and struct.unpack_from("<I", body)[0] & SIZE_IS_SET:
                del self.files[node][1][struct.unpack_from("<Q", body, 16)[0] :]
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if call is Call.LOOKUP:
            return self._entry(self._number(body[:-1].decode(), node))
        if call in (Call.CREATE, Call.MKDIR):
            number = self._new(
                body[16 if call is Call.CREATE else 8 :].rstrip(b"\0").decode(), node, call is Call.MKDIR
            )
            return self._entry(number) + (struct.pack("<QII", 0, 0, 0) if call is Call.CREATE else b"")
        if call in (Call.UNLINK, Call.RMDIR):
            del self.files[self._number(body[:-1].decode(), node)]
        if call in (Call.RENAME, Call.RENAME2):
            self._rename(node, struct.unpack_from("<Q", body)[0], body[8 if call is Call.RENAME else 16 :])
        if call in (Call.OPEN, Call.OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if call is Call.STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 24, 1 << 24, 1 << 24, 1 << 20, 1 << 20, 4096, 255, 4096, 0)
        return self._data(call, node, body)

    def _data(self, call: Call, node: int, body: bytes) -> bytes:
        if call is Call.WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            self.files[node][1][offset : offset + size] = self._changed(call, node, offset, body[40 : 40 + size])
            return struct.pack("<II", size, 0)
        if call is Call.READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._changed(call, node, offset, bytes(self.files[node][1][offset : offset + size]))
        if call is Call.READDIR:
            _, offset = struct.unpack_from("<QQ", body)
            return b"" if offset else self._listed(node)
        return b""

    def _changed(self, call: Call, node: int, offset: int, data: bytes) -> bytes:
        change = self._changes.get(call)
        return change(self.files[node][0], offset, data) if change else data

    def _listed(self, node: int) -> bytes:
        """What fits into one answer, which is enough for these tests."""
        here = [
            (number, name) for number, (name, _) in list(self.files.items()) if self.within.get(number, ROOT) == node
        ]
        entries = []
        for place, (number, name) in enumerate(here, 1):
            kind, text = 4 if -number in self.within else 8, name.encode()
            entries.append(struct.pack("<QQII", number, place, len(text), kind) + text + bytes(-len(text) % 8))
        return b"".join(entries)

    def _new(self, name: str, folder: int, is_folder: bool) -> int:
        number = next(NUMBERS)
        self.files[number] = (name, bytearray())
        self.within[number] = folder
        if is_folder:
            self.within[-number] = number
        return number

    def _rename(self, node: int, into: int, names: bytes) -> None:
        old, new = (name.decode() for name in names.split(b"\0")[:2])
        number = self._number(old, node)
        with contextlib.suppress(FileNotFoundError):
            del self.files[self._number(new, into)]
        self.files[number], self.within[number] = (new, self.files[number][1]), into

    def _number(self, name: str, folder: int) -> int:
        for number, (known, _) in list(self.files.items()):
            if known == name and self.within.get(number, ROOT) == folder:
                return number
        raise FileNotFoundError(errno.ENOENT, name)

    def _entry(self, number: int) -> bytes:
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(number)

    def _attributes(self, number: int) -> bytes:
        is_folder = number == ROOT or -number in self.within
        mode, size = (0o40777, 0) if is_folder else (0o100600, len(self.files[number][1]))
        return struct.pack("<QQQQQQIIIIIIIIII", number, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in list(self.files.values())]


@contextlib.contextmanager
def mounted(
    folder: Path,
    does: Mapping[Call, int] | None = None,
    late: Mapping[Call, float] | None = None,
    files: dict[int, File] | None = None,
    changes: Mapping[Call, Change] | None = None,
    folders: dict[int, int] | None = None,
) -> Iterator[FileSystem]:
    """Raises OSError where this machine gives no FUSE."""
    folder.mkdir(exist_ok=True)
    system = FileSystem(folder, does or {}, late or {}, files, changes, folders)
    try:
        yield system
    finally:
        system.end()
