"""A full disk: which place it is (a checkpoint's folder, a cache, /tmp, /dev/shm), by the path and by the stack."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.core.own_code import is_own
from preflight.explain.candidates import Candidate, find_source, from_lines, ranks_of
from preflight.explain.evidence import Evidence
from preflight.explain.logs.tracebacks import Traceback
from preflight.failure_book.book import Match

BARE = "shm.no_space_bare"
"""Row of ENOSPC without a path."""
ROWS = (
    "torch.disk_full", "disk.quota", "disk.storage_full", "disk.stream_writer", "disk.write_fd",
    "disk.unexpected_position", BARE,
)  # fmt: skip


class Place(NamedTuple):
    """A kind of place that can be full."""

    what: str
    pattern: re.Pattern[str]
    """Searched in the path, in the line, and in the files of the stack, the innermost first."""
    fix: str


SHARED_MEMORY = Place(
    "shared memory (/dev/shm)",
    re.compile(r"/dev/shm|multiprocessing/(?:synchronize|heap|shared_memory|reductions|queues)\.py|/psm_|SemLock"),  # noqa: S108
    "",
)
PLACES = (
    Place(
        "the cache of triton",
        re.compile(r"\.triton|/triton/"),
        "Clear it, or set TRITON_CACHE_DIR to a local disk with room, in all ranks",
    ),
    Place(
        "the cache of torch.compile",
        re.compile(r"torchinductor|/_inductor/"),
        "Clear it, or set TORCHINDUCTOR_CACHE_DIR to a local disk with room, in all ranks",
    ),
    Place(
        "the folder where extensions are built",
        re.compile(r"torch_extensions|cpp_extension\.py"),
        "Clear it, or set TORCH_EXTENSIONS_DIR to a local disk with room, in all ranks",
    ),
    Place(
        "Weights & Biases' folder",
        re.compile(r"wandb"),
        "Set WANDB_DIR, WANDB_CACHE_DIR and WANDB_DATA_DIR to a disk with room; wandb artifact cache cleanup 1GB",
    ),
    Place(
        "the cache of Hugging Face",
        re.compile(r"huggingface|/hub/|/datasets/(?!.*/checkpoint)|datasets/arrow_writer\.py|file_download\.py"),
        "huggingface-cli scan-cache shows it; set HF_HOME (or HF_DATASETS_CACHE) to a disk with room, in all ranks",
    ),
    Place(
        "the folder of checkpoints",
        re.compile(
            r"(?i)checkpoint|\.pth?\b|ckpt|safetensors|\.distcp|torch/serialization\.py|PytorchStreamWriter|"
            r"write\(\): fd|unexpected pos"
        ),
        "Keep fewer checkpoints (save_total_limit), remove what is incomplete, or save to another file system",
    ),
    Place(
        "the folder of temporary files",
        re.compile(r"[\" ']/tmp/|/tempfile\.py|\A/tmp/"),
        "Set TMPDIR to a local disk with room, in all ranks; remove what earlier jobs left there",
    ),
)
UNKNOWN = Place("a file system", re.compile(""), "Remove what is not needed, or write elsewhere")
WEIGHT = 80


def find_candidates(evidence: Evidence) -> Iterator[Candidate]:
    """One candidate per matched row; none for ENOSPC without path and stack: its row says what that may mean."""
    for row in ROWS:
        matches = evidence.matches(row) if row in evidence.seen else []
        if matches and (place := _place(evidence, matches[0])):
            yield _candidate(evidence, matches, place)


def superseded(evidence: Evidence) -> set[str]:
    """The rows that find_candidates reports."""
    return {row for row in ROWS if row in evidence.seen and _place(evidence, evidence.matches(row)[0])}


def _place(evidence: Evidence, match: Match) -> Place | None:
    traceback = evidence.tracebacks.around(match.line)
    texts = [match.groups.get("path", ""), match.line.text, *reversed(traceback.frames if traceback else ())]
    for text in filter(None, texts):
        for place in (SHARED_MEMORY, *PLACES):
            if place.pattern.search(text):
                return place
    return UNKNOWN if match.signature.name != BARE or traceback else None


def _candidate(evidence: Evidence, matches: list[Match], place: Place) -> Candidate:
    first, lines = matches[0], [match.line for match in matches]
    traceback = evidence.tracebacks.around(first.line)
    own = traceback is not None and is_own(traceback.file)
    where = {**find_source(first.line), **_code_of(traceback if own else None)}
    if len(ranks_of(lines)) > 1:
        where.pop("rank", None)
    path = first.groups.get("path", "")
    at = f" ({where['file']}:{where['line']})" if own else ""
    quota = first.signature.name == "disk.quota"
    text = f"{place.what} is {'over its quota' if quota else 'full'}{f': {path}' if path else ''}, expected room{at}"
    shared = place is SHARED_MEMORY
    return from_lines(
        evidence, "shm_exhausted" if shared else "disk_full", "cause", _weight(first, place), text, lines, where,
        row=first.signature.name, fix="" if shared else _fix(place, path, quota),
    )  # fmt: skip


def _weight(first: Match, place: Place) -> int:
    return WEIGHT if first.signature.role == "cause" else WEIGHT - 10 if place is not UNKNOWN else 50


def _code_of(traceback: Traceback | None) -> dict[str, str | int]:
    return {"file": traceback.file, "line": traceback.number} if traceback else {}


def _fix(place: Place, path: str, quota: bool) -> str:
    show = f"df -h {path or 'PATH'}; df -i {path or 'PATH'}"
    show = f"quota -s (lfs quota -h {path or 'PATH'}); {show}" if quota else f"{show}; quota -s"
    return f"There: {show}. {place.fix}."
