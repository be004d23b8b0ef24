"""The files of a report: writing them, each complete or not at all, and reading them again."""

import base64
import contextlib
import errno
import gzip
import json
import math
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

from preflight.core import rank_ranges
from preflight.core.exceptions import in_one_line
from preflight.core.facts import LIMIT, FactsStore, to_text
from preflight.errors import UsageError
from preflight.hangs import desync
from preflight.results.fields import MalformedReport
from preflight.results.report import SCHEMA, CheckEntry, RankFacts, Report
from preflight.results.report_nodes import bad_nodes, good_nodes
from preflight.sdk import paths
from preflight.sdk.files import entries

LONGEST_LINE = 2 * LIMIT
"""Of a facts file, in characters: preflight writes no longer line."""
ATTACHED = "attached"
"""The folder for files that checks make, and the key of facts that holds them."""
ROOM = 64 * 1024
"""Bytes that must fit on the disk before a run: a report of a few ranks."""
LARGEST, LARGEST_UNKNOWN, HEAD = 256 << 20, 8 << 20, 64 << 10
"""Bytes of a report (64 MiB without --facts in it), of a file that does not begin as one, and of the beginning: read as
JSON a file takes two to ten times its size."""
NAMES = (
    "report.json", "facts.jsonl.gz", "report.md", "report.html", "junit.xml", "good_nodes.txt", "bad_nodes.txt"
)  # fmt: skip


def write_folder(folder: str, report: Report, book: FactsStore, texts: Mapping[str, Callable[[Report], str]]) -> None:
    """`--report DIR`: writes every file by rename; `texts` are renderers by file name. Raises OSError."""
    os.makedirs(os.path.join(folder, "logs"), exist_ok=True)
    write(os.path.join(folder, "report.json"), as_text(report))
    write_facts(os.path.join(folder, "facts.jsonl.gz"), report, book)
    write(os.path.join(folder, "good_nodes.txt"), _lines(good_nodes(report)))
    write(os.path.join(folder, "bad_nodes.txt"), _lines(bad_nodes(report)))
    for name, text in _logs(report):
        write(os.path.join(folder, "logs", name), text)
    for name, content in _attached(book):
        os.makedirs(os.path.join(folder, ATTACHED), exist_ok=True)
        with replacing(os.path.join(folder, ATTACHED, name)) as file:
            file.write(content)
    for name, render in texts.items():  # last: what a hook reads is already there
        write(os.path.join(folder, name), render(report))


def _attached(book: FactsStore) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of files that checks have made, such as traces: facts hold them in base64 by name."""
    for check in book.checks():
        for ranks, text in book.groups(check):
            attached = json.loads(text)[ATTACHED] if f'"{ATTACHED}":{{"' in text else {}
            for name, packed in attached.items():
                with contextlib.suppress(ValueError, TypeError):  # a plugin's may be anything
                    yield f"{check}.rank-{ranks[0]}.{os.path.basename(name)}", base64.b64decode(packed)


def _lines(words: list[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _logs(report: Report) -> Iterator[tuple[str, str]]:
    """Yields (name, text) of what workers left behind (their last collectives, stacks and output), of NCCL's log and
    RAS, and of the stacks in findings' evidence."""
    for check in report.checks:
        for entry in check.outcomes:
            name, outcome = f"{check.check}.rank-{entry.ranks[:60].replace(',', '_')}", entry.outcome
            collectives = "\n".join(desync.lines(outcome.recorded or ()))
            text = "\n".join(filter(None, (collectives, outcome.stack, outcome.log_tail)))
            texts = {"log": text, "nccl.log": outcome.nccl_log, "ras.log": outcome.ras}
            yield from ((f"{name}.{ending}", content) for ending, content in texts.items() if content)
        for number, finding in enumerate(check.findings):
            if stack := finding.evidence.get("stack"):
                yield f"{finding.code}.{number}.stack.log", stack


def as_text(report: Report) -> str:
    """Indented JSON, except plots: one line each, since they are mostly numbers."""
    data = report.to_json()
    lines: list[str] = []
    for check in data["checks"]:
        if plots := check.get("plots"):
            check["plots"] = [f"{_PLOT} {number}" for number in range(len(lines), len(lines) + len(plots))]
            lines.extend(json.dumps(plot, allow_nan=False, separators=(",", ":")) for plot in plots)
    text = json.dumps(data, indent=1, allow_nan=False)
    pattern = f'"{_PLOT} ([0-9]+)"'
    return re.sub(pattern, lambda match: lines[int(match[1])], text) + "\n" if lines else f"{text}\n"


_PLOT = secrets.token_hex(16)
"""A placeholder for a plot that occurs in no report."""


def write_facts(path: str, report: Report, book: FactsStore) -> None:
    """facts.jsonl.gz: one line per check and group of equal ranks; streamed, since it may be hundreds of megabytes."""
    versions = {check.check: check.facts_version for check in report.checks}
    with replacing(path) as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
        for check in book.checks():
            for ranks, text in book.groups(check):
                head = {"check": check, "facts_version": versions.get(check, 1), "ranks": rank_ranges.to_text(ranks)}
                packed.write(f'{json.dumps(head)[:-1]}, "facts": {text}}}\n'.encode())


def with_facts(report: Report, book: FactsStore) -> Report:
    """`--facts`: each check's facts inline, by groups of equal ranks."""
    checks = [replace(check, facts=_facts_of(check, book)) for check in report.checks]
    return replace(report, checks=checks)


def _facts_of(check: CheckEntry, book: FactsStore) -> list[RankFacts]:
    return [RankFacts(rank_ranges.to_text(ranks), json.loads(text)) for ranks, text in book.groups(check.check)]


def read_facts(path: str) -> FactsStore:
    """The facts beside a report. Raises UsageError."""
    book = FactsStore()
    try:
        with gzip.open(path, "rt") as file:
            while line := file.readline(LONGEST_LINE):
                entry = json.loads(line)
                book.add(entry["check"], rank_ranges.from_text(entry["ranks"]), to_text(entry["facts"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read ({in_one_line(error)})") from None
    return book


def write(path: str, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode(errors="replace"))


def write_asked(option: str, path: str, text: str, *, everywhere: bool = True) -> None:
    """`write`, of a file that an option names. Raises UsageError (`everywhere`: see there)."""
    if path == "-":
        raise UsageError(f"{option} -: it goes into a file, and not to stdout: name one", everywhere=everywhere)
    try:
        write(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})", everywhere=everywhere) from None


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file that appears complete or not at all, without following a link, and private until
    it is complete. A device is not replaced: root could replace even /dev/null, or the link /dev/stdout."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise OSError(errno.EEXIST, "it exists and is not a regular file")
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def prepare(json_path: str | None, folder: str | None, before: float) -> None:
    """Checks before the run whether the report can be written. Removes an earlier run's, last changed `before` this
    time: a run that dies must not leave yesterday's verdict to be read as its own. Raises UsageError. (A dead file
    system hangs here: the caller runs it in a child.)"""
    for option, path in (("--json", json_path), ("--report", folder)):
        if path is None or path == "-":
            continue
        try:
            target = path
            if option == "--report":
                os.makedirs(os.path.join(path, "logs"), exist_ok=True)
                target = os.path.join(path, "report.json")
            if os.path.exists(target) and not os.path.isfile(target):
                raise UsageError(f"{option} {path}: {target} exists and is not a regular file")
            write(f"{target}.probe", " " * ROOM)
            os.unlink(f"{target}.probe")
            for old in _earlier(target, folder if option == "--report" else None):
                if os.lstat(old).st_mtime < before:
                    os.unlink(old)
        except OSError as error:
            raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def _earlier(target: str, folder: str | None) -> list[str]:
    if folder is None:
        return [path for path in (target, facts_path(target)) if os.path.lexists(path)]
    names = [os.path.join(folder, name) for name in NAMES]
    logs = os.path.join(folder, "logs")
    others = [entry.path for entry in os.scandir(folder) if re.fullmatch(r"report\.rank-\w+\.json", entry.name)]
    left = [entry.path for entry in os.scandir(logs) if entry.name.endswith(".log")]
    left += [os.path.join(folder, ATTACHED, name) for name in entries(os.path.join(folder, ATTACHED))]
    return [path for path in (*names, *others, *left) if os.path.lexists(path)]


def facts_path(json_path: str) -> str:
    """The path of the facts beside a report that `--json` wrote."""
    return f"{json_path.removesuffix('.json')}.facts.jsonl.gz"


def load(path: str) -> tuple[Report, str]:
    """Reads a saved report from its file or its folder: (report, path). Raises UsageError if it is not a complete
    report."""
    file_path = os.path.join(path, "report.json") if os.path.isdir(path) else path
    if file_path != path and not os.path.exists(file_path):
        raise UsageError(f"{path}: this folder has no report.json")
    try:
        with open(paths.opened(file_path), encoding="utf-8") as file:
            if refused := _refusal(file.fileno()):
                raise UsageError(f"{path}: {refused}")
            data = json.load(file, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except OSError as error:
        why = f"cannot be read ({error.strerror})" if error.errno else str(error.strerror)
        raise UsageError(f"{path}: {why}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or "checks" not in data:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise UsageError(f"{path}: is not a preflight report of schema {SCHEMA} (schema: {schema!r})")
    try:
        return Report.from_json(data), file_path
    except MalformedReport as flaw:
        raise UsageError(f"{path}: is not a complete report ({flaw})") from None


def _refusal(descriptor: int) -> str:
    """Why a file is not read, by its size and its beginning, or ""."""
    size = os.fstat(descriptor).st_size
    if size > LARGEST:
        return f"is {size:,} bytes, expected a report of at most {LARGEST:,}"
    head = os.pread(descriptor, HEAD, 0)
    if size > LARGEST_UNKNOWN and not (head.lstrip().startswith(b"{") and b'"schema"' in head):
        return f"is {size:,} bytes and does not begin as a report of preflight"
    return ""


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:12]}{'...' * (len(text) > 12)} is too large for a float")
    return value


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def facts_beside(path: str) -> FactsStore:
    """The facts of the report in this file. Raises UsageError if there are none."""
    candidates = facts_names(path)
    found = next((name for name in candidates if os.path.isfile(os.path.join(os.path.dirname(path), name))), None)
    if found is None:
        raise UsageError(f"{path}: there are no facts beside it ({' or '.join(candidates)}), and they are needed")
    return read_facts(os.path.join(os.path.dirname(path), found))


def facts_names(path: str) -> list[str]:
    """The names that the facts of the report in this file may have."""
    return ["facts.jsonl.gz", facts_path(os.path.basename(path))]
