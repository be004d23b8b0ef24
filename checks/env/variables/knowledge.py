"""What is known of each environment variable: variables.tsv, a source a row."""

import csv
import difflib
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

from preflight.nccl.hca_names import strtoll

NCCL_VERSION = "2.30.7"
"""The newest whose variables the table holds."""
PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_", "OFI_")
SINGLES = ("OMP_NUM_THREADS",)
COMPLETE = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Prefixes of which the table holds every name there is; of the others only what matters here."""
CLOSE, VERY_CLOSE = 0.8, 0.9
"""How alike two names must be for a did-you-mean (difflib's ratio), where the table is complete and where not."""
UNSET = (-1, -2)
"""NCCL's own "not set" and "automatic", allowed wherever it takes an integer."""


@dataclass(frozen=True)
class Variable:
    """One row."""

    variable: str
    """Its name; with a `*` at the end all that begin so."""
    kind: str
    """Which of `READERS` reads it."""
    values: str
    """Words or numbers that are allowed ("0 1", "0..7"); "" is all."""
    differs: str
    """fail or warn where two ranks have different values; own where each may have its own."""
    leftover: str
    """ "warn:1": with such a value (`*`: any) it is a leftover of debugging."""
    status: str
    """"" or build (for compilers: no effect at run time), deprecated, removed, absent (never was one)."""
    note: str
    """What to use instead, or what a leftover costs."""
    source: str

    def leftover_severity(self, value: str) -> str:
        """warn, info, or "" where the value is none of debugging."""
        severity, _, values = self.leftover.partition(":")
        return severity if values == "*" or value.strip().upper() in values.split() else ""


@functools.cache
def table() -> dict[str, Variable]:
    """By name."""
    text = resources.files(__package__).joinpath("variables.tsv").read_text()
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {row["variable"]: Variable(**row) for row in rows}


@functools.cache
def find(name: str) -> Variable | None:
    """The row of a variable, by its name or by the beginning of it."""
    rows = table()
    words = name.split("_")
    beginnings = ("_".join([*words[:end], "*"]) for end in range(len(words), 0, -1))
    return rows.get(name) or next((rows[beginning] for beginning in beginnings if beginning in rows), None)


def is_ours(name: str) -> bool:
    """Whether the check looks at it."""
    return name.startswith(PREFIXES) or name in SINGLES


def reader(name: str) -> str:
    """Who would read it."""
    readers = {"NCCL": f"NCCL (up to {NCCL_VERSION})", "GLOO": "gloo", "CUDA": "CUDA", "UCX": "UCX"}
    return readers.get(name.partition("_")[0], "torch" if name.startswith("TORCH_") else "libfabric")


@functools.cache
def meant(name: str) -> str:
    """The variable that was probably meant by an unknown one, or ""."""
    cutoff = CLOSE if name.startswith(COMPLETE) else VERY_CLOSE
    usable = [row.variable for row in table().values() if row.status in ("", "deprecated")]
    return next(iter(difflib.get_close_matches(name, usable, n=1, cutoff=cutoff)), "")


@dataclass(frozen=True)
class Problem:
    """Why a value is not what was meant."""

    severity: str
    """fail where the library refuses it, warn where it reads something else."""
    reads: str
    """What is made of it."""
    expected: str


def problem(row: Variable, value: str) -> Problem | None:
    """Of a value that is not empty (an empty one is the same as none)."""
    return READERS[row.kind](row, value) if value else None


def _nccl_integer(row: Variable, value: str) -> Problem | None:
    """strtoll(value, NULL, 0): what is no number ends it, and text is 0."""
    number, whole = strtoll(value, 0)
    if not whole or re.match(r"\s*[+-]?0[0-7]+$", value):
        return Problem("warn", f"NCCL reads it as {number}", _allowed(row))
    if row.values and number not in UNSET and not _is_in(number, row.values):
        return Problem("warn", "NCCL takes it as it is", _allowed(row))
    return None


def _torch_integer(row: Variable, value: str) -> Problem | None:
    """std::stoi: text is refused, and what follows the number is dropped."""
    match = re.match(r"\s*([+-]?[0-9]+)", value)
    if match is None or abs(int(match[1])) >= 2**31:
        return Problem("fail", "torch refuses it when it makes the NCCL process group", _allowed(row))
    if match.end() != len(value):
        return Problem("warn", f"torch reads it as {match[1]}", _allowed(row))
    if row.values and not _is_in(int(match[1]), row.values):
        return Problem("warn", "torch takes it as it is", _allowed(row))
    return None


def _torch_boolean(_: Variable, value: str) -> Problem | None:
    if value.lower() in ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"):
        return None
    return Problem("fail", "torch refuses it when it makes the NCCL process group", "0 or 1")


def _torch_words(row: Variable, value: str) -> Problem | None:
    if value.upper() in row.values.split():
        return None
    return Problem("fail", "torch refuses it on import", _allowed(row))


def _words(row: Variable, value: str) -> Problem | None:
    if value.upper() in row.values.split():
        return None
    return Problem("warn", "it is ignored", _allowed(row))


def _mask(row: Variable, value: str) -> Problem | None:
    unknown = [word for word in value.removeprefix("^").split(",") if word.upper() not in row.values.split()]
    return Problem("warn", f"{unknown[0] or 'an empty word'} is ignored", _allowed(row)) if unknown else None


def _level(row: Variable, value: str) -> Problem | None:
    if re.fullmatch("[0-9]+", value):
        return Problem("warn", "the meaning of the numbers has changed between versions", _allowed(row))
    return _words(row, value)


def _count(row: Variable, value: str) -> Problem | None:
    if re.fullmatch("[0-9]{1,9}", value) and _is_in(int(value), row.values):
        return None
    return Problem("warn", "it is ignored", _allowed(row))


def _threads(_: Variable, value: str) -> Problem | None:
    """OpenMP: a positive number, or a list of them for nested levels."""
    numbers = [word.strip() for word in value.split(",")]
    if all(re.fullmatch("[0-9]{1,6}", number) and int(number) > 0 for number in numbers):
        return None
    return Problem("warn", "OpenMP ignores it, and takes every core for every rank", "a whole number from 1")


def _nccl_names(_: Variable, value: str) -> Problem | None:
    """`^` or `=` or both once, before the first name; then names or beginnings of names, without spaces."""
    names = re.sub(r"^\^?=?", "", value).split(",")
    if any(not name or re.search(r"[\s\"'^=]", name) for name in names):
        expected = "names with commas and no spaces, as in eth0,eth1, =eth0 (exactly) or ^docker (not these)"
        return Problem("warn", "NCCL looks for exactly these characters", expected)
    return None


def _gloo_names(_: Variable, value: str) -> Problem | None:
    """What is no name at all; whether the interface exists is the node's to say."""
    names = value.split(",")
    if any(not name or re.search(r"[\s\"'^=:*]", name) for name in names):
        return Problem("fail", "gloo looks for an interface of exactly this name", "whole names, as in eth0")
    return None


def _text(row: Variable, value: str) -> Problem | None:  # noqa: ARG001 -- one signature for all
    return None


READERS: dict[str, Callable[[Variable, str], Problem | None]] = {
    "text": _text, "int": _nccl_integer, "flag": _nccl_integer, "words": _words, "mask": _mask, "level": _level,
    "torch_int": _torch_integer, "torch_bool": _torch_boolean, "torch_words": _torch_words, "count": _count,
    "omp": _threads, "ifnames": _nccl_names, "hcas": _nccl_names, "gloo_ifname": _gloo_names,
}  # fmt: skip


def _is_in(number: int, values: str) -> bool:
    first, dots, last = values.partition("..")
    return int(first) <= number <= int(last) if dots else str(number) in values.split()


def _allowed(row: Variable) -> str:
    if row.kind == "flag":
        return "0 or 1"
    if not row.values:
        return "a whole number"
    first, dots, last = row.values.partition("..")
    return f"a number from {first} to {last}" if dots else " or ".join(row.values.split())
