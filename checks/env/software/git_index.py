"""Reads git's index: which files are tracked, with which blob, size and times (gitformat-index(5)).

Versions 2 to 4, SHA-1 and SHA-256, split and sparse indexes. It is read here rather than by `git ls-files`: git may be
missing in a container, refuses other users' folders, and runs commands from the repository's configuration.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

HEADER, STAT = struct.Struct(">4sII"), struct.Struct(">10I")
EXTENDED, NAME_LENGTH = 0x4000, 0x0FFF
SKIP_WORKTREE = 0x4000
"""In the second word of flags, which an EXTENDED entry has."""
KINDS = 0o170000
LINK = b"link"
"""The extension of a split index: what changed since the shared index beside it."""
UNKNOWN_FORMAT = "git's index has an unknown format"


class UnknownIndex(Exception):  # noqa: N818 -- says what is
    """The index cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A tracked file. Times are in ns; inode and size are the lower 32 bits."""

    name: str
    blob: str
    mode: int
    ctime: int
    mtime: int
    inode: int
    size: int
    skip_worktree: bool
    """Git was told not to look at the file: it is usually not checked out (sparse), but may be there all the same."""

    @property
    def kind(self) -> int:
        return self.mode & KINDS


def entries(path: str, digest_size: int) -> list[IndexEntry]:
    """The entries of an index file; of a split one those of both files. `digest_size`: bytes of an object's id, 20 or
    32. Raises UnknownIndex for what is no index, OSError, and struct.error or ValueError for a damaged one."""
    try:
        return _entries(path, digest_size)
    except IndexError as error:
        raise UnknownIndex(UNKNOWN_FORMAT) from error


def _entries(path: str, digest_size: int) -> list[IndexEntry]:
    data = _content(path)
    listed, extensions = _parsed(data, digest_size)
    link = extensions.get(LINK)
    if link is None or not any(link[:digest_size]):
        return listed
    shared = os.path.join(os.path.dirname(path), f"sharedindex.{link[:digest_size].hex()}")
    base, _ = _parsed(_content(shared), digest_size)
    return _merged(base, listed, link[digest_size:])


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parsed(data: bytes, digest_size: int) -> tuple[list[IndexEntry], dict[bytes, bytes]]:
    signature, version, number = HEADER.unpack_from(data)
    if signature != b"DIRC":
        raise UnknownIndex(UNKNOWN_FORMAT)
    if version not in (2, 3, 4):
        raise UnknownIndex(f"git's index has version {version}; 2 to 4 are known")
    if number > len(data) // STAT.size:
        raise UnknownIndex(UNKNOWN_FORMAT)
    at, name, found = HEADER.size, b"", list[IndexEntry]()
    for _ in range(number):
        entry, name, at = _entry(data, at, name, digest_size, version)
        found.append(entry)
    return found, dict(_extensions(data, at, len(data) - digest_size))


def _entry(data: bytes, start: int, before: bytes, digest_size: int, version: int) -> tuple[IndexEntry, bytes, int]:
    """(the entry at `start`, its name, where the next one starts). `before`: the name of the previous entry."""
    seconds, nanoseconds, m_seconds, m_nanoseconds, _, inode, mode, _, _, size = STAT.unpack_from(data, start)
    at = start + STAT.size + digest_size
    blob = data[at - digest_size : at].hex()
    (flags,) = struct.unpack_from(">H", data, at)
    more = struct.unpack_from(">H", data, at + 2)[0] if flags & EXTENDED else 0
    at += 4 if flags & EXTENDED else 2
    kept, at = _kept(data, at, before) if version == 4 else (b"", at)
    end = data.index(b"\0", at)
    name = kept + data[at:end]
    if flags & NAME_LENGTH != min(len(name), NAME_LENGTH) and flags & NAME_LENGTH:  # another size of digest
        raise UnknownIndex(UNKNOWN_FORMAT)
    after = end + 1 if version == 4 else end + 8 - (end - start) % 8
    found = IndexEntry(
        os.fsdecode(name),
        blob,
        mode,
        seconds * 10**9 + nanoseconds,
        m_seconds * 10**9 + m_nanoseconds,
        inode,
        size,
        bool(more & SKIP_WORKTREE),
    )
    return found, name, after


def _kept(data: bytes, at: int, before: bytes) -> tuple[bytes, int]:
    """Version 4: (what a name has in common with the one before, where its own part starts). The number of characters
    to cut off is in 7 bits per byte, each further byte adding one (as for the offsets in packs)."""
    cut = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        cut = ((cut + 1) << 7) | (data[at] & 0x7F)
    if cut > len(before):
        raise UnknownIndex(UNKNOWN_FORMAT)
    return before[: len(before) - cut], at + 1


def _extensions(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    while at + 8 <= end:
        signature, size = struct.unpack_from(">4sI", data, at)
        yield signature, data[at + 8 : at + 8 + size]
        at += 8 + size


# A split index


def _merged(base: Sequence[IndexEntry], own: Sequence[IndexEntry], bitmaps: bytes) -> list[IndexEntry]:
    """The shared entries without those that were deleted, some replaced, and the new ones. A replacement has no name:
    it is that of the shared entry at the next place in the second bitmap."""
    deleted, at = _bits(bitmaps, 0, len(base)) if bitmaps else ([], 0)
    replaced, _ = _bits(bitmaps, at, len(base)) if bitmaps else ([], 0)
    listed: dict[int, IndexEntry] = dict(enumerate(base))
    anew = [entry for entry in own if not entry.name]
    if len(anew) != len(replaced) or any(place >= len(base) for place in (*deleted, *replaced)):
        raise UnknownIndex(UNKNOWN_FORMAT)
    for place, entry in zip(replaced, anew, strict=True):
        listed[place] = replace(entry, name=base[place].name)
    for place in deleted:
        del listed[place]
    return sorted((*listed.values(), *(entry for entry in own if entry.name)), key=lambda entry: entry.name)


def _bits(data: bytes, at: int, most: int) -> tuple[list[int], int]:
    """(places of set bits, where the next bitmap starts), of a bitmap in EWAH: words of 64 bits, in runs of equal words
    followed by literal ones. (gitformat-bitmap(5), appendix A)"""
    size, number = struct.unpack_from(">II", data, at)
    if size > most + 64:
        raise UnknownIndex(UNKNOWN_FORMAT)
    words = struct.unpack_from(f">{number}Q", data, at + 8)
    found, place, numbers = list[int](), 0, iter(count())
    for position in numbers:
        if position >= number:
            break
        run = words[position]
        length, literals = run >> 1 & 0xFFFFFFFF, run >> 33
        found += range(place, min(place + 64 * length, size)) if run & 1 else ()
        place += 64 * length
        for _ in range(literals):
            word = words[next(numbers)]
            found += [place + bit for bit in range(64) if word >> bit & 1]
            place += 64
    return found, at + 8 + 8 * number + 4
