"""Which files are read, and as what: by their first bytes, not by their names."""

import contextlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from preflight.errors import UsageError
from preflight.nccl import ras_snapshot
from preflight.sdk import paths

STDIN = "-"
MOST_FILES = 10_000
MOST_ENTRIES = 20 * MOST_FILES
"""Both per folder that the user names, including subfolders."""
HEAD = 1 << 16
"""Bytes that decide a file's kind."""
LARGEST_JSON = 1 << 26
"""Bytes, unpacked: a longer one is read as a log, line by line."""
BINARY = 0.05
"""A file with a larger share of non-text bytes is binary: packed data has 0.1. A log that lost a few blocks in a crash
is still a log."""
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "wandb"}
_SKIPPED = re.compile(
    r"(?i)\.(?:py[co]?|ipynb|pt|pth|ckpt|safetensors|bin|gguf|onnx|npy|npz|so(?:\.[\d.]+)?|o|a|whl|jar|png|jpe?g|gif|svg|"
    r"webp|pdf|mp4|zip|t(?:ar\.)?(?:gz|bz2|xz|zst)|tar|h5|hdf5|parquet|arrow|idx|sqlite|db|nsys-rep|qdrep|ncu-rep|"
    r"ya?ml|toml|ini|cfg|csv|tsv|md|rst|html?|css|js|xml|sh|sbatch|c|cc|cpp|cu|cuh|h|hpp|go|rs|lock|pid|sock|pem|key)\Z"
    r"|\.tfevents\.|\Acore\.\d+\Z"
)
_OURS = re.compile(r"\A(?:facts\.jsonl(?:\.gz)?|(?:good|bad)_nodes\.txt)\Z")
_SERVER_STACKS = re.compile(r"\A(?:stacks|pyspy_dump)_[\w-]+\.txt\Z")
_SERVER_TABLES = re.compile(r"\A(?:torchcomms_)?fr_trace_[\w-]+\.txt\Z")
_RAS_GREETING = re.compile(ras_snapshot.GREETING.pattern.encode())
_PACKED = {
    b"PK\x03\x04": "a ZIP archive",
    b"\xfd7zXZ\x00": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"BZh": "compressed by bzip2",
    b"\x1f\x8b\x08": "compressed twice",
}
_OTHER = {
    "pickle": "is a pickle, but not a flight-recorder dump",
    "table": "is a table of torch's debug server, made from all ranks at one time, and not read: give its sources, the "
    "dumps of the flight recorder",
    "other": "is JSON, but not a report, dump, record or error file",
}
_NOT_TEXT = bytes([*range(7), *range(14, 27), *range(28, 32), 127])
_STEP = 1 << 9
GZIP = b"\x1f\x8b\x08"
BOMS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
    b"\xef\xbb\xbf": "utf-8-sig",
}


@dataclass(frozen=True)
class Input:
    path: str
    """Stdin is "-"."""
    shown: str
    """As the user named it, or its path in the folder that the user named."""
    kind: str
    """log, report (ours), dump (of the flight recorder), error_file (torchrun's), record or stack (of `preflight
    debug`), server_stacks (of torch's debug server), ras (of NCCL)."""


@dataclass(frozen=True)
class Unread:
    shown: str
    why: str
    """The rest of a sentence that begins with the name: "is empty"."""
    broken: bool = False
    """It may hold what matters, but could not be read completely."""


def find(named: Sequence[str]) -> tuple[list[Input], list[Unread]]:
    """Files, those of folders in the order of their names, and stdin ("-"). A file that appears twice is read once.

    In a folder, files that are obviously not logs are skipped. Raises UsageError for a path that does not exist.
    """
    inputs: list[Input] = []
    unread: list[Unread] = []
    seen: set[tuple[int, int]] = set()
    named = list(dict.fromkeys(STDIN if path == "/dev/stdin" else path for path in named))
    for path in named:
        if path == STDIN:
            inputs.append(Input(STDIN, "stdin", "log"))
            continue
        try:
            is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'is not a path'}") from None
        for file in _walk(path, unread) if is_folder else [path]:
            if _is_new(file, seen):
                shown = os.path.relpath(file, path) if is_folder and len(named) == 1 else file
                file_input = _classify(file, shown, named=not is_folder)
                inputs += [file_input] if isinstance(file_input, Input) else []
                unread += [file_input] if isinstance(file_input, Unread) else []
    return inputs, unread


def _is_new(path: str, seen: set[tuple[int, int]]) -> bool:
    """Whether this file is new: links may lead to one again. A vanished file is reported when it is opened."""
    try:
        status = os.stat(path)
    except OSError:
        return True
    same = (status.st_dev, status.st_ino)
    if same in seen:
        return False
    seen.add(same)
    return True


def _walk(folder: str, unread: list[Unread]) -> Iterator[str]:
    """Regular files below, in natural order ("attempt_2" before "attempt_10"). Links to folders are not followed."""
    entries, files = 0, 0
    open_folders = [_listed(folder, unread)]
    while open_folders:
        entry = next(open_folders[-1], None)
        if entry is None:
            open_folders.pop()
            continue
        entries += 1
        kind = _entry_kind(entry)
        files += kind == "file"
        if files > MOST_FILES or entries > MOST_ENTRIES:
            why = f"holds more than {MOST_FILES:,} files: the rest is not read"
            unread.append(Unread(folder, f"{why}; name the folders of the ranks that failed", broken=True))
            return
        if kind == "folder":
            open_folders.append(_listed(entry.path, unread))
        elif kind == "file":
            yield entry.path


def _entry_kind(entry: os.DirEntry[str]) -> str:
    """ "file", "folder", or "" for anything that is skipped."""
    with contextlib.suppress(OSError):  # gone since
        if entry.is_dir(follow_symlinks=False):
            return "" if entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS else "folder"
        if entry.is_file() and not _SKIPPED.search(entry.name) and not _OURS.match(entry.name):
            return "file"
    return ""


def _listed(folder: str, unread: list[Unread]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return iter(sorted(entries, key=lambda entry: _natural(entry.name)))
    except OSError as error:
        unread.append(Unread(folder, f"cannot be listed ({error.strerror})", broken=True))
        return iter(())


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key for a name, with digits by their value."""
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def opened(path: str) -> int:
    """Opens a regular file, or what a shell put under /dev/fd. Raises OSError; does not wait for a writer."""
    if path.startswith(("/dev/fd/", "/proc/self/fd/")):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return paths.opened(path)


def _classify(path: str, shown: str, named: bool) -> Input | Unread | None:
    """The kind of a file; None: it is skipped without mention."""
    if path.startswith(("/dev/fd/", "/proc/self/fd/")):
        return Input(path, shown, "log")  # a pipe: its first bytes would be gone
    try:
        number = opened(path)
    except OSError as error:
        return Unread(shown, f"cannot be read ({error.strerror})" if error.errno else str(error.strerror), broken=True)
    with open(number, "rb") as file:
        try:
            head = _unpacked(file.read(HEAD), HEAD)
            if not head:
                return Unread(shown, "is empty") if named else None
            if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
                kind = "dump" if any(key in head for key in (b"pg_config", b"entries", b"nccl_version")) else "pickle"
            elif refused := refusal(head):
                return Unread(shown, refused)
            else:
                kind = _kind_of_text(file, head)
        except OSError as error:
            return Unread(shown, f"cannot be read ({error.strerror})", broken=True)
    if kind == "explanation" and not named:
        return None  # an earlier conclusion proves nothing
    if kind in _OTHER:
        return Unread(shown, _OTHER[kind]) if named else None
    if kind == "log" and _SERVER_TABLES.search(os.path.basename(path)) and b"FR Trace ===" in head:
        return Unread(shown, _OTHER["table"])
    kind = "report" if kind == "explanation" else kind
    if kind == "log" and _SERVER_STACKS.search(os.path.basename(path)) and b"=== Rank " in head:
        kind = "server_stacks"
    return Input(path, shown, "stack" if kind == "log" and path.endswith(".stack") else kind)


def refusal(head: bytes) -> str:
    """Why the file cannot be read as text; "" if it can."""
    for magic, what in _PACKED.items():
        if head.startswith(magic):
            return f"is {what}: unpack it first"
    if any(head.startswith(bom) for bom in BOMS):
        return ""
    odd = len(head) - len(head.translate(None, _NOT_TEXT))
    return "is binary" if odd > BINARY * len(head) else ""


def _kind_of_text(file: Any, head: bytes) -> str:
    """Also "other": other JSON that is not a log; and "explanation": a report of this command."""
    greeting = _RAS_GREETING.match(head)
    if greeting and head[greeting.end() :].startswith(b"{"):
        return "ras"  # an answer by nc, not by ncclras
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"["):
        return "log"
    first, _, rest = head.lstrip().partition(b"\n")
    if rest.strip() and _parsed(first) is not None:
        return "log"  # JSON lines: each has its own
    file.seek(0)
    packed = file.read(LARGEST_JSON + 1)
    whole = _unpacked(packed, LARGEST_JSON + 1)
    read = None if len(whole) > LARGEST_JSON else _parsed(whole)
    return _kind_of_json(read) if isinstance(read, dict) else "other" if isinstance(read, list) else "log"


def _kind_of_json(read: dict[str, Any]) -> str:
    keys = read.keys()
    if "preflight_record" in keys:
        return "record"
    if {"communicators", "ras"} <= keys:
        return "ras"
    if {"schema", "checks"} <= keys:
        return "explanation" if "explained" in keys else "report"
    if "entries" in keys and ("version" in keys or "pg_config" in keys):
        return "dump"
    if isinstance(message := read.get("message"), dict):
        return "error_file" if {"message", "extraInfo"} & message.keys() else "other"
    if isinstance(message, str):
        return "error_file" if keys <= {"message", "extraInfo", "timestamp"} else "log"
    return "log" if {"log", "msg"} & keys else "other"


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_int=float)  # int() refuses 5,000 digits
    except (ValueError, RecursionError):
        return None


def _unpacked(start: bytes, most: int) -> bytes:
    """At most `most` bytes from the start of a gzip file; other files unchanged."""
    if not start.startswith(GZIP):
        return start
    member, text = zlib.decompressobj(31), b""
    try:
        for at in range(0, len(start), _STEP):  # the part before the damage counts
            if len(text) < most and not member.eof:
                text += member.decompress(start[at : at + _STEP], most - len(text))
    except zlib.error:
        return text or b"\0"
    return text
