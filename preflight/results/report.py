"""The report: the data from which the screen, the files and the exit code are made."""

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
from typing import Any, BinaryIO

from preflight._version import VERSION
from preflight.core import rank_ranges
from preflight.core.exceptions import in_one_line
from preflight.core.facts import LIMIT, FactsStore, to_text
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.secrets import Scrubber
from preflight.errors import UsageError
from preflight.hangs import desync
from preflight.planning.policy import Policy
from preflight.results import already_measured, result, well_formed
from preflight.results.result import Result
from preflight.sdk import paths
from preflight.sdk.files import entries

SCHEMA = 1
BROKEN = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""What reading a report raises whose values are of the right types, but cannot be."""
LONGEST_LINE = 2 * LIMIT
"""Of a facts file, in characters: preflight writes no longer line."""
ATTACHED = "attached"
"""The folder for files that checks make, and the key of facts that holds them."""
ROOM = 64 * 1024
"""Bytes that must fit on the disk before a run: a report of a few ranks."""
Report = dict[str, Any]
"""See report.schema.json."""
LARGEST, LARGEST_UNKNOWN, HEAD = 256 << 20, 8 << 20, 64 << 10
"""Bytes of a report (64 MiB without --facts in it), of a file that does not begin as one, and of the beginning: read as
JSON a file takes two to ten times its size."""
NAMES = (
    "report.json", "facts.jsonl.gz", "report.md", "report.html", "junit.xml", "good_nodes.txt", "bad_nodes.txt"
)  # fmt: skip


def build(
    *,
    run_id: str,
    started: str,
    seconds: float,
    command: list[str],
    options: Mapping[str, str],
    job: Job,
    results: list[Result],
    strict: bool = False,
    policy: Policy | None = None,
) -> Report:
    results = already_measured.resolved(results, job)
    word, groups = result.verdict(results), result.groups_of(results)
    return {
        "schema": SCHEMA,
        "preflight": VERSION,
        "run": run_id,
        "started": started,
        "seconds": round(seconds, 2),
        "verdict": word,
        "exit_code": result.exit_code(word, results, strict=strict),
        "command": command,
        "options": dict(options),
        "policy": {**(policy or Policy()).to_json(), "strict": strict},
        "job": job.to_json(),
        "checks": [result.to_json(job, groups) for result in results],
    }


def without_secrets(report: Report, scrub: Scrubber) -> Report:
    """Cleans free text only: a secret that equals the name of a field or a node must not break the report.
    (The output of workers was cleaned when it came.)"""
    checks = [
        {
            **check,
            "summary": scrub.text(check["summary"]),
            "skipped": check["skipped"] and scrub.text(check["skipped"]),
            **({"picture": scrub.value(check["picture"])} if "picture" in check else {}),
            **({"plots": [_clean_plot(plot, scrub) for plot in check["plots"]]} if "plots" in check else {}),
            "findings": [_clean_finding(finding, scrub) for finding in check["findings"]],
        }
        for check in report["checks"]
    ]
    others = ("options", "policy", "command", "explained", "checkpoint")
    return {**report, **{name: scrub.value(report[name]) for name in others if name in report}, "checks": checks}


def _clean_plot(plot: dict[str, Any], scrub: Scrubber) -> dict[str, Any]:
    """Cleans tables only: they may hold the user's values; other plots hold numbers, and many of them."""
    return {**plot, "rows": scrub.value(plot["rows"])} if plot["kind"] == "table" else plot


def _clean_finding(finding: dict[str, Any], scrub: Scrubber) -> dict[str, Any]:
    where = {key: value if key == "node" else scrub.value(value) for key, value in finding["where"].items()}
    texts = {key: scrub.text(finding[key]) for key in ("message", "fix")}
    return {**finding, **texts, "where": where, "evidence": scrub.value(finding["evidence"])}


def bad_nodes(report: Report) -> list[str]:
    """The nodes that a failure blames, by node or by one of their ranks."""
    failed = (finding for finding in findings(report) if finding.severity == "fail" and finding.counts)
    bad = {node for finding in failed for node in blamed_nodes(finding, report)}
    return [node for node in nodes(report) if node in bad]


def nodes(report: Report) -> list[str]:
    """The nodes of the job, in order, and after them those on which ranks that never came were to run."""
    job = report["job"]
    return [*dict.fromkeys(node["node"] for node in (*job["nodes"], *job.get("missing_on", ())))]


def good_nodes(report: Report) -> list[str]:
    """The nodes that a job may use: all that no failure or error blames. [] if a failure or error blames no node: it
    may be any."""
    wrong = [finding for finding in findings(report) if finding.severity in ("fail", "error") and finding.counts]
    named = [blamed_nodes(finding, report) for finding in wrong]
    if report["verdict"] not in ("pass", "warn") and not (wrong and all(named)):
        return []
    bad = set().union(*named)
    return [node["node"] for node in report["job"]["nodes"] if node["node"] not in bad]


def blamed_nodes(finding: Reported, report: Report) -> set[str]:
    """The nodes that a finding blames; "" stands for the unknown node of a rank that never came."""
    where = finding.where
    if "node" in where:
        return {where["node"]}
    ranks = {where["rank"]} if "rank" in where else set(rank_ranges.from_text(finding.ranks))
    if not ranks:
        return set(finding.nodes or ())
    job = report["job"]
    there = (*job["nodes"], *job.get("missing_on", ()))
    return {node["node"] for node in there if ranks & set(rank_ranges.from_text(node["ranks"]))} or {""}


def findings(report: Report) -> Iterator[Reported]:
    """All findings, check by check. Raises KeyError and TypeError for something that is not a report."""
    return (finding for check in report["checks"] for finding in findings_of(check))


def findings_of(check: Mapping[str, Any]) -> list[Reported]:
    """The findings of one entry of the report's `checks`."""
    return [Reported.from_json(finding) for finding in check["findings"]]


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
    for check in report["checks"]:
        for outcome in check["outcomes"]:
            name = f"{check['check']}.rank-{outcome['ranks'][:60].replace(',', '_')}"
            collectives = "\n".join(desync.lines(outcome.get("recorded") or ()))
            text = "\n".join(filter(None, (collectives, outcome["stack"], outcome["log_tail"])))
            texts = {"log": text, "nccl.log": outcome.get("nccl_log"), "ras.log": outcome.get("ras")}
            yield from ((f"{name}.{ending}", content) for ending, content in texts.items() if content)
        for number, finding in enumerate(check["findings"]):
            if stack := finding["evidence"].get("stack"):
                yield f"{finding['code']}.{number}.stack.log", stack


def as_text(report: Report) -> str:
    """Indented JSON, except plots: one line each, since they are mostly numbers."""
    lines: list[str] = []

    def marked(check: dict[str, Any]) -> dict[str, Any]:
        marks = [f"{_PLOT} {len(lines) + number}" for number in range(len(check.get("plots", ())))]
        lines.extend(json.dumps(plot, allow_nan=False, separators=(",", ":")) for plot in check.get("plots", ()))
        return {**check, "plots": marks} if marks else check

    text = json.dumps({**report, "checks": [*map(marked, report["checks"])]}, indent=1, allow_nan=False)
    pattern = f'"{_PLOT} ([0-9]+)"'
    return re.sub(pattern, lambda match: lines[int(match[1])], text) + "\n" if lines else f"{text}\n"


_PLOT = secrets.token_hex(16)
"""A placeholder for a plot that occurs in no report."""


def write_facts(path: str, report: Report, book: FactsStore) -> None:
    """facts.jsonl.gz: one line per check and group of equal ranks; streamed, since it may be hundreds of megabytes."""
    versions = {check["check"]: check["facts_version"] for check in report["checks"]}
    with replacing(path) as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
        for check in book.checks():
            for ranks, text in book.groups(check):
                head = {"check": check, "facts_version": versions.get(check, 1), "ranks": rank_ranges.to_text(ranks)}
                packed.write(f'{json.dumps(head)[:-1]}, "facts": {text}}}\n'.encode())


def with_facts(report: Report, book: FactsStore) -> Report:
    """`--facts`: each check's facts inline, by groups of equal ranks."""

    def inline(check: str) -> list[dict[str, Any]]:
        return [{"ranks": rank_ranges.to_text(ranks), "facts": json.loads(text)} for ranks, text in book.groups(check)]

    return {**report, "checks": [{**check, "facts": inline(check["check"])} for check in report["checks"]]}


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
            report = json.load(file, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except OSError as error:
        why = f"cannot be read ({error.strerror})" if error.errno else str(error.strerror)
        raise UsageError(f"{path}: {why}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or "checks" not in report:
        found = report.get("schema") if isinstance(report, dict) else None
        raise UsageError(f"{path}: is not a preflight report of schema {SCHEMA} (schema: {found!r})")
    if wrong := well_formed.flaw(report):
        raise UsageError(f"{path}: is not a complete report ({wrong})")
    return report, file_path


def _refusal(descriptor: int) -> str:
    """Why a file is not read, by its size and its beginning, or ""."""
    size = os.fstat(descriptor).st_size
    if size > LARGEST:
        return f"is {size:,} bytes, expected a report of at most {LARGEST:,}"
    head = os.pread(descriptor, HEAD, 0)
    if size > LARGEST_UNKNOWN and not (head.lstrip().startswith(b"{") and b'"schema"' in head):
        return f"is {size:,} bytes and does not begin as a report of preflight"
    return ""


@contextlib.contextmanager
def whole(path: str, what: str = "complete report") -> Iterator[None]:
    """A context for reading a report or a history that someone may have changed. Raises UsageError."""
    try:
        yield
    except BROKEN as error:
        raise UsageError(f"{path}: is not a {what} ({in_one_line(error)})", everywhere=False) from None


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
