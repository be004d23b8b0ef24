"""The kernel log: reads /dev/kmsg, and picks the records that show a fault: those that a row of the failure book fits
(preflight/failure_book/signatures/kernel.toml)."""

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypedDict

from preflight.failure_book.book import kernel_rows

PATH = "/dev/kmsg"
DEVICE = os.makedev(1, 11)
RECORD = 16 * 1024
"""Bytes; the kernel refuses a read whose buffer is smaller than the record (8 KiB, CONSOLE_EXT_LOG_MAX)."""
MOST_BYTES = 64 * 2**20
"""Stops at a log that grows faster than it is read; no kernel has a larger buffer than this."""
MOST_OF_A_KIND, MOST_TEXT, MOST_LINKS = 60, 240, 36


class KernelLogUnreadable(Exception):  # noqa: N818 -- says why
    """The kernel log cannot be read from here; the text says why."""


class Event(TypedDict):
    """Equal lines of the log, merged."""

    kind: str
    """Of its row (`KernelLine.kind`)."""
    device: str
    """The PCI address as sysfs writes it, "0000:1b:00.0"; "" if the line has none."""
    what: str
    """The number of an Xid, the severity of AER, the name of a task or an interface, a version."""
    grade: str
    """fatal or nonfatal if the line has the word, else ""."""
    count: int
    first_s: int
    """Seconds ago, like `last_s`."""
    last_s: int
    links: list[int]
    """The NVLinks named in the lines."""
    text: str
    """The last of the lines."""


class Record(NamedTuple):
    at_s: float
    """Seconds since boot, on a clock that stops while the machine sleeps."""
    text: str
    matters: bool


class KernelLog(TypedDict):
    reaches_s: int
    """Age of the oldest record in seconds."""
    uptime_s: int
    events: list[Event]


def read(window_s: float) -> KernelLog:
    """The log's last `window_s` seconds. Raises KernelLogUnreadable."""
    now = time.monotonic()
    found = list(records(chunks(PATH)))
    if not found:
        raise KernelLogUnreadable(f"{PATH} holds no records")
    recent = (record for record in found if record.matters and now - record.at_s <= window_s)
    return {"reaches_s": _ago(now, found[0].at_s), "uptime_s": int(now), "events": events(recent, now)}


def chunks(path: str) -> Iterator[bytes]:
    """The device returns one record per read and never blocks. Also reads regular files. Raises KernelLogUnreadable."""
    try:
        kept = os.stat(path)
        if not stat.S_ISREG(kept.st_mode) and kept.st_rdev != DEVICE:  # some containers link it to their console
            raise KernelLogUnreadable(f"{path} is not the kernel's")
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise KernelLogUnreadable(f"{path}: {error.strerror}") from None
    left = MOST_BYTES
    try:
        while left > 0:
            try:
                chunk = os.read(log, RECORD)
            except BrokenPipeError:  # the oldest records were overwritten meanwhile; the next read continues
                continue
            if not chunk:
                return
            left -= len(chunk)
            yield chunk
    except BlockingIOError:  # the end
        return
    except OSError as error:
        raise KernelLogUnreadable(f"{path}: {error.strerror}") from None
    finally:
        os.close(log)


def records(read_chunks: Iterable[bytes]) -> Iterator[Record]:
    """The oldest record, which tells how far back the log goes, and those that matter. A line is
    "priority,number,microseconds,flags;text"; a line that starts with a space belongs to the one before."""
    first, words = True, _words()
    for line in _lines(read_chunks):
        matters = bool(words.search(line))
        if not first and not matters:
            continue
        head, semicolon, text = line.partition(b";")
        fields = head.split(b",")
        if semicolon and len(fields) > 2 and fields[2].isdigit():
            yield Record(int(fields[2]) / 1e6, _plain(text), matters)
            first = False


def _words() -> re.Pattern[bytes]:
    """Each line of interest contains one of these; used to drop the many others quickly."""
    return re.compile(
        b"|".join(re.escape(word.encode()) for word in sorted({word for row in kernel_rows() for word in row.words}))
    )


def _lines(read_chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in read_chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def _plain(text: bytes) -> str:
    """The text on one line; the kernel escapes all but printable ASCII, as \\x0a."""
    unescaped = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), text)
    return " ".join(unescaped.decode(errors="replace").split())


def events(read_records: Iterable[Record], now: float) -> list[Event]:
    """Merges records with equal kind, device and `what`; the oldest first."""
    groups: dict[tuple[str, ...], Event] = {}
    of_kind: Counter[str] = Counter()
    for record in read_records:
        event = _event(record, now)
        if event is None:
            continue
        key = (event["kind"], event["device"], event["what"], event["grade"])
        if key in groups:
            groups[key] = _together(groups[key], event)
        elif of_kind[event["kind"]] < MOST_OF_A_KIND:
            of_kind[event["kind"]] += 1
            groups[key] = event
    return list(groups.values())


def _event(record: Record, now: float) -> Event | None:
    fits = ((row.kernel, match) for row in kernel_rows() if row.kernel and (match := row.pattern.search(record.text)))
    known, match = next(fits, (None, None))
    if known is None or match is None:
        return None
    kind, found = known.kind, match.groupdict()
    grade = re.search(r"\b(non-?)?fatal\b", record.text, re.IGNORECASE)
    link = re.search(r"\blink (\d+)", record.text, re.IGNORECASE) if kind in ("xid", "sxid") else None
    ago = _ago(now, record.at_s)
    return {
        "kind": kind,
        "device": address(found.get("device") or ""),
        "what": " of ".join(filter(None, (found.get("what") or found.get("interface"), found.get("name")))),
        "grade": "" if grade is None else "nonfatal" if grade[1] else "fatal",
        "count": 1,
        "first_s": ago,
        "last_s": ago,
        "links": [int(link[1])] if link else [],
        "text": record.text[:MOST_TEXT],
    }


def _together(old: Event, new: Event) -> Event:
    links = sorted({*old["links"], *new["links"]})[:MOST_LINKS]
    return {**new, "count": old["count"] + 1, "first_s": old["first_s"], "links": links}


def _ago(now: float, at_s: float) -> int:
    """Seconds ago, at least 0: the two clocks drift apart by seconds on a machine that runs for months."""
    return max(0, int(now - at_s))


def address(written: str) -> str:
    """A PCI address as sysfs writes it. The driver omits the function, and NVML writes the domain with eight digits.

    >>> address("0000:1B:00"), address("00000000:1b:00.0"), address("")
    ('0000:1b:00.0', '0000:1b:00.0', '')
    """
    if not written:
        return ""
    domain, _, rest = written.lower().partition(":")
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")
