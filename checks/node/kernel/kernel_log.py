"""The kernel log: its records out of /dev/kmsg, and which of them show a fault."""

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypedDict

PATH = "/dev/kmsg"
DEVICE = os.makedev(1, 11)
RECORD = 16 * 1024
"""Bytes; the kernel refuses to read a record into less than it needs (8 KiB, CONSOLE_EXT_LOG_MAX)."""
MOST_BYTES = 64 * 2**20
"""A log that grows faster than it is read would never end; larger buffers than this are not built."""
MOST_OF_A_KIND, MOST_TEXT, MOST_LINKS = 60, 240, 36

_PCI = r"(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_NICS = "mlx5_core|bnxt_en|ice|i40e"
KINDS: dict[str, str] = {
    "xid": rf"NVRM: Xid \((?:PCI:)?{_PCI}[^)]*\): (?P<what>\d+)",
    "sxid": rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{_PCI}[^)]*\): (?P<what>\d+)",
    "uuid": rf"NVRM: GPU at (?:PCI:)?{_PCI}: (?P<what>GPU-[0-9a-f-]+)",
    "fallen": rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_PCI}\b.*fallen off the bus",
    "init": rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}\b.*RmInitAdapter failed",
    "mismatch": (
        r"NVRM: API mismatch: the client (?:'(?P<name>[^']*)' )?(?:\(pid \d+\) )?(?:NVRM: )?"
        r"has the version (?P<what>[\d.]+\d)"
    ),
    "loaded": r"NVRM: loading NVIDIA UNIX",
    "aer": rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=(?P<what>Uncorrect\w+ \([\w-]+\)|Correct\w+)",
    "recovered": rf"{_PCI}: AER: [Dd]evice recovery successful",
    "hung": r"INFO: task (?P<what>.+):\d+ blocked for more than \d+ seconds",
    "lockup": r"BUG: soft lockup - CPU#\d+ stuck for \S+ \[(?P<what>.+):\d+\]",
    "oom": r"^Out of memory: Kill(?:ed)? process \d+ \((?P<what>.*?)\)",
    "uncorrected": (
        r"EDAC (?P<what>MC\d+): \d+ UE|\[Hardware Error\]: event severity: (?:fatal|recoverable)"
        r"|\[Hardware Error\]: Uncorrected|^Memory failure: 0x"
    ),
    "throttled": r"temperature (?:is )?above threshold, cpu clock (?:is )?throttled",
    "nic": rf"mlx5_core {_PCI}.*(?:Fatal error \d+ detected|health compromised|firmware internal error)",
    "link_down": rf"(?:{_NICS}) {_PCI} (?P<what>\S+): (?:NIC )?Link (?:is )?[Dd]own",
}
"""Patterns of each kind of line that matters; the first that fits counts. `what` tells two of a kind apart. A container
that its own cgroup has killed is not among them: that is its owner's affair. (Compiled when a line is read: every
command imports this module.)"""
_ANY = re.compile(
    rb"NVRM|SXid|PCIe Bus Error|recovery successful|blocked for more|soft lockup|Out of memory|EDAC|Hardware Error"
    rb"|Memory failure|cpu clock|mlx5_core|[Ll]ink is [Dd]own"
)
"""What every line of a kind holds, to leave out the many others quickly."""


class KernelLogUnreadable(Exception):  # noqa: N818 -- says why
    """The kernel log cannot be read from here. Its text says why."""


class Event(TypedDict):
    """Equal lines of the log."""

    kind: str
    device: str
    """Its address as sysfs writes it, "0000:1b:00.0"; "" where none stands in the line."""
    what: str
    """The number of an Xid, the severity of AER, the name of a task or an interface, a version."""
    grade: str
    """fatal, nonfatal or "": the word in the line."""
    count: int
    first_s: int
    """Seconds ago, as is `last_s`."""
    last_s: int
    links: list[int]
    """NVLinks that stand in the lines."""
    text: str
    """Of the last one."""


@dataclass(frozen=True)
class Record:
    at_s: float
    """Since boot, by a clock that stands still while the machine sleeps."""
    text: str


class KernelLog(TypedDict):
    reaches_s: int
    """How many seconds ago its oldest record was written."""
    uptime_s: int
    events: list[Event]


def read(window_s: float) -> KernelLog:
    """What the log says of the last `window_s` seconds. Raises KernelLogUnreadable."""
    now = time.monotonic()
    found = list(records(chunks(PATH)))
    if not found:
        raise KernelLogUnreadable(f"{PATH} holds no records")
    recent = (record for record in found if now - record.at_s <= window_s)
    return {"reaches_s": _ago(now, found[0].at_s), "uptime_s": int(now), "events": events(recent, now)}


def chunks(path: str) -> Iterator[bytes]:
    """The device gives a record a read, and never waits; a regular file is read as well. Raises KernelLogUnreadable."""
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
            except BrokenPipeError:  # the oldest records were overwritten while we read; the next read goes on
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
    """The oldest, which tells how far the log reaches, and those that matter. A line is
    "priority,number,microseconds,flags;text"; lines that begin with a space tell of the one before."""
    first = True
    for line in _lines(read_chunks):
        if not first and not _ANY.search(line):
            continue
        head, semicolon, text = line.partition(b";")
        fields = head.split(b",")
        if semicolon and len(fields) > 2 and fields[2].isdigit():
            yield Record(int(fields[2]) / 1e6, _plain(text))
            first = False


def _lines(read_chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in read_chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def _plain(text: bytes) -> str:
    """The kernel writes all but printable ASCII as \\x0a; a record of several lines becomes one."""
    unescaped = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), text)
    return " ".join(unescaped.decode(errors="replace").split())


def events(read_records: Iterable[Record], now: float) -> list[Event]:
    """Equal ones together, by kind, device and what it says; the oldest kinds first."""
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
    kind, match = next(
        ((kind, match) for kind, pattern in KINDS.items() if (match := re.search(pattern, record.text))), ("", None)
    )
    if match is None:
        return None
    found = match.groupdict()
    grade = re.search(r"\b(non-?)?fatal\b", record.text, re.IGNORECASE)
    link = re.search(r"\blink (\d+)", record.text, re.IGNORECASE) if kind in ("xid", "sxid") else None
    ago = _ago(now, record.at_s)
    return {
        "kind": kind,
        "device": address(found.get("device") or ""),
        "what": " of ".join(filter(None, (found.get("what"), found.get("name")))),
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
    """The two clocks may be some seconds apart on a machine that runs for months."""
    return max(0, int(now - at_s))


def address(written: str) -> str:
    """As sysfs writes it. The driver leaves the function out, and NVML writes the domain with eight digits.

    >>> address("0000:1B:00"), address("00000000:1b:00.0"), address("")
    ('0000:1b:00.0', '0000:1b:00.0', '')
    """
    if not written:
        return ""
    domain, _, rest = written.lower().partition(":")
    return f"{domain[-4:]}:{rest}" + ("" if "." in rest else ".0")
