"""What is known about each environment variable: variables.tsv, with a source per row."""

import csv
import functools
import re
from collections.abc import Callable
from importlib import resources
from typing import NamedTuple

from preflight.nccl.hca_names import strtoll

NCCL_VERSION = "2.30.7"
"""The newest NCCL whose variables are in the table."""
PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_", "OFI_")
SINGLES = ("OMP_NUM_THREADS",)
COMPLETE = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Prefixes for which the table has every existing name; for others it has only those that matter here."""
CLOSE, VERY_CLOSE = 0.8, 0.9
"""Similarity (difflib's ratio) required to suggest a name, for prefixes with and without a complete table."""
UNSET = (-1, -2)
"""NCCL's own "not set" and "automatic", allowed wherever it takes an integer."""


class Variable(NamedTuple):
    """A row of the table."""

    variable: str
    """Its name; a `*` at the end matches all names that start so."""
    kind: str
    """Which of `READERS` reads it."""
    values: str
    """The allowed words or numbers ("0 1", "0..7"); "" allows all."""
    differs: str
    """fail or warn if two ranks have different values; own if each may have its own."""
    leftover: str
    """ "warn:1": the severity, and the values (`*`: any) that make it a leftover from debugging."""
    status: str
    """"" or build (for compilers: no effect at run time), deprecated, removed, absent (never existed)."""
    note: str
    """What to use instead, or what a leftover costs."""
    source: str

    def leftover_severity(self, value: str) -> str:
        """warn, info, or "" if the value is not a leftover from debugging."""
        severity, _, values = self.leftover.partition(":")
        return severity if values == "*" or value.strip().upper() in values.split() else ""


@functools.cache
def table() -> dict[str, Variable]:
    """The rows of variables.tsv, by name."""
    text = resources.files(__package__).joinpath("variables.tsv").read_text()
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {row["variable"]: Variable(**row) for row in rows}


@functools.cache
def find(name: str) -> Variable | None:
    """The row of a variable: by its full name, else by its longest known prefix."""
    rows = table()
    words = name.split("_")
    beginnings = ("_".join([*words[:end], "*"]) for end in range(len(words), 0, -1))
    return rows.get(name) or next((rows[beginning] for beginning in beginnings if beginning in rows), None)


def is_ours(name: str) -> bool:
    """Whether this check looks at the variable."""
    return name.startswith(PREFIXES) or name in SINGLES


def reader(name: str) -> str:
    """The library that would read the variable."""
    readers = {"NCCL": f"NCCL (up to {NCCL_VERSION})", "GLOO": "gloo", "CUDA": "CUDA", "UCX": "UCX"}
    return readers.get(name.partition("_")[0], "torch" if name.startswith("TORCH_") else "libfabric")


@functools.cache
def meant(name: str) -> str:
    """The variable that was probably meant by an unknown name, or ""."""
    import difflib  # not where the names are right

    cutoff = CLOSE if name.startswith(COMPLETE) else VERY_CLOSE
    usable = [row.variable for row in table().values() if row.status in ("", "deprecated")]
    return next(iter(difflib.get_close_matches(name, usable, n=1, cutoff=cutoff)), "")


class Problem(NamedTuple):
    """Why a library does not read a value as intended."""

    severity: str
    """fail if the library refuses the value, warn if it reads something else."""
    reads: str
    """What the library makes of it."""
    expected: str


def problem(row: Variable, value: str) -> Problem | None:
    """What is wrong with a value; None if nothing, or if it is empty (same as not set)."""
    return READERS[row.kind](row, value) if value else None


def _nccl_integer(row: Variable, value: str) -> Problem | None:
    """strtoll(value, NULL, 0) stops at the first non-digit, and reads text as 0."""
    number, whole = strtoll(value, 0)
    if not whole or re.match(r"\s*[+-]?0[0-7]+$", value):
        return Problem("warn", f"NCCL reads it as {number}", _allowed(row))
    if row.values and number not in UNSET and not _is_in(number, row.values):
        return Problem("warn", "NCCL takes it as it is", _allowed(row))
    return None


def _torch_integer(row: Variable, value: str) -> Problem | None:
    """std::stoi refuses text, and drops what follows the number."""
    match = re.match(r"\s*([+-]?[0-9]+)", value)
    if match is None or abs(int(match[1])) >= 2**31:
        return Problem("fail", "torch refuses it when it creates the NCCL process group", _allowed(row))
    if match.end() != len(value):
        return Problem("warn", f"torch reads it as {match[1]}", _allowed(row))
    if row.values and not _is_in(int(match[1]), row.values):
        return Problem("warn", "torch takes it as it is", _allowed(row))
    return None


def _torch_boolean(_: Variable, value: str) -> Problem | None:
    if value.lower() in ("y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"):
        return None
    return Problem("fail", "torch refuses it when it creates the NCCL process group", "0 or 1")


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
    """OpenMP takes a positive number, or a list of them for nested levels."""
    numbers = [word.strip() for word in value.split(",")]
    if all(re.fullmatch("[0-9]{1,6}", number) and int(number) > 0 for number in numbers):
        return None
    return Problem("warn", "OpenMP ignores it, and each rank takes every core", "a whole number from 1")


def _nccl_names(_: Variable, value: str) -> Problem | None:
    """`^`, `=` or both once, before the first name; then names or prefixes of names, without spaces."""
    names = re.sub(r"^\^?=?", "", value).split(",")
    if any(not name or re.search(r"[\s\"'^=]", name) for name in names):
        expected = "names with commas and no spaces, like eth0,eth1, =eth0 (exactly) or ^docker (not these)"
        return Problem("warn", "NCCL looks for exactly these characters", expected)
    return None


def _gloo_names(_: Variable, value: str) -> Problem | None:
    """Only rejects what cannot be a name; net.interfaces checks whether the interface exists."""
    names = value.split(",")
    if any(not name or re.search(r"[\s\"'^=:*]", name) for name in names):
        return Problem("fail", "gloo looks for an interface of exactly this name", "full names, like eth0")
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
