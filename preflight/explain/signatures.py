"""What preflight knows of failure logs: causes and signatures, read from the TOML files of `signatures/`.

`causes.toml` says what a slug means and what to do about it. Every other file holds signatures: how a line looks that
tells of a cause. Adding one needs no Python: a row in a file is all.
"""

import functools
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from preflight.explain.line import Line

ROLES = ("cause", "failure", "fallout", "slower", "clue", "harmless")
"""cause: the line says what is wrong. failure: something failed here, by a cause that may stand elsewhere. fallout:
from a survivor, or after the end; it explains nothing where anything else does. slower: the job works, over a slower
path. clue: no finding; others ask for it. harmless: nothing else is looked for in such a line."""
WARN = "WARN"
"""The word of rows for warnings of NCCL's that fit no other row: what they are about is told by their `place`."""
SHAPES = 20_000
"""Lines without their digits, of which it is remembered what may fit."""
_POINTER = re.compile("0x[0-9a-f]+")
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


@dataclass(frozen=True)
class Cause:
    """A slug of `explain.<slug>`."""

    slug: str
    meaning: str
    fix: str
    severity: str
    """fail, or warn."""
    seen_by: tuple[str, ...] = ()
    """Codes of live checks that find the same, to join a report with a log; "gpu.nvlink.*" is all of that check."""


@dataclass(frozen=True)
class Signature:
    """A row: a form of line, and what it tells."""

    name: str
    """Unique: "nccl.duplicate_gpu"."""
    slug: str
    """Of its cause; "" for a clue and for what is harmless."""
    role: str
    word: str
    """Stands in every line that `pattern` fits, letter for letter, and has no digit: it is looked for first."""
    pattern: re.Pattern[str]
    """Searched in `Line.text`. Its named groups are what the message and the culprit are made of; those named rank,
    peer_rank, local_rank, node, peer_node, gpu, device, interface, variable, parameter, file, line name the culprit."""
    place: re.Pattern[str] | None
    """Searched in `Line.place`, where the words alone say too little: the same CUDA error means one thing in
    transport/nvls.cc and another in include/alloc.h. None: any."""
    says: str
    """One sentence with {groups}: what was measured, and what was expected."""
    fix: str
    """Instead of its cause's; "" else."""
    severity: str
    """The same."""
    versions: str
    source: str
    """Where the text comes from: a project's file."""
    needs: tuple[str, ...]
    """Names of signatures that must fit lines elsewhere in what is read, too."""
    unless: tuple[str, ...]
    """Names of signatures of which none may."""
    weight: int
    """0 to 100: how directly the line tells of the cause, among those of its role."""
    lines: int
    """So many lines after it belong to it, and are read too."""
    asked: bool
    """Only lines that a row above them has asked for (`lines`) are tried: its word stands in ordinary output."""
    rarely: bool
    """Of many such lines on end one is enough: a progress bar's."""
    example: str
    near_miss: str


@dataclass(frozen=True, slots=True)
class Match:
    """A line that fits a signature."""

    signature: Signature
    line: Line
    groups: Mapping[str, str]
    """Those that took part."""


class Book:
    """All that is known."""

    def __init__(self, causes: Mapping[str, Cause], signatures: Collection[Signature]) -> None:
        self.causes = causes
        self.signatures = tuple(sorted(signatures, key=lambda one: one.role != "harmless"))
        self.by_name = {one.name: one for one in self.signatures}
        self._by_shape: dict[str, list[Signature]] = {}
        self._of_unknown = [one for one in self.signatures if one.word == WARN]

    @property
    def words(self) -> frozenset[str]:
        """A line without any of them is of no interest."""
        return frozenset(one.word for one in self.signatures if not one.asked)

    @property
    def rarely(self) -> frozenset[str]:
        """Words of rows of which one line in many is enough."""
        return self.words - {one.word for one in self.signatures if not one.rarely}

    @functools.cached_property
    def _by_word(self) -> dict[str, list[Signature]]:
        found: dict[str, list[Signature]] = {}
        for one in self.signatures:
            found.setdefault(one.word, []).append(one)
        return found

    def matches(self, line: Line) -> list[Match]:
        """Conditions (`needs`, `unless`) are not looked at: they are about all lines. A harmless line has no other."""
        found = list(self._matches(line))
        return [one for one in found if one.signature.role == "harmless"][:1] or found

    def _matches(self, line: Line) -> Iterator[Match]:
        is_known = False
        for one in self._candidates(line.text):
            for match in _match(one, line):
                is_known |= one.role != "clue"
                yield match
        if line.level == "WARN" and not is_known:
            yield from (match for one in self._of_unknown for match in _match(one, line))

    def _candidates(self, text: str) -> list[Signature]:
        """Those whose word may stand in it. Lines that differ in their digits and pointers only have the same ones."""
        shape = (_POINTER.sub("", text) if "0x" in text else text).translate(_NO_DIGITS)
        found = self._by_shape.get(shape)
        if found is None:
            if len(self._by_shape) >= SHAPES:
                self._by_shape.clear()
            found = [one for word, its in self._by_word.items() if word in shape and word != WARN for one in its]
            self._by_shape[shape] = found
        return found


def _match(one: Signature, line: Line) -> Iterator[Match]:
    if (one.place is None or one.place.search(line.place)) and (fits := one.pattern.search(line.text)):
        yield Match(one, line, {name: value for name, value in fits.groupdict().items() if value is not None})


@functools.cache
def book() -> Book:
    """Of the package's own files. Raises ValueError, with file and row, for one that is not well formed."""
    causes: dict[str, Cause] = {}
    signatures: list[Signature] = []
    folder = resources.files("preflight.explain") / "signatures"
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if not file.name.endswith(".toml"):
            continue
        read = tomllib.loads(file.read_text(encoding="utf-8"))
        causes |= {slug: _cause(slug, row) for slug, row in read.get("cause", {}).items()}
        signatures += [signature(row, file.name) for row in read.get("signature", [])]
    check(causes, signatures)
    return Book(causes, signatures)


def _cause(slug: str, row: Mapping[str, Any]) -> Cause:
    seen_by = tuple(row.get("seen_by", ()))
    return Cause(slug, row["meaning"], row["fix"], row.get("severity", "fail"), seen_by)


def signature(row: Mapping[str, Any], file: str) -> Signature:
    """A row of a TOML file. Raises ValueError where it is not whole."""
    known = {*Signature.__annotations__}
    try:
        if unknown := row.keys() - known:
            raise ValueError(f"has {', '.join(sorted(unknown))}, which means nothing")
        return Signature(
            name=row["name"],
            slug=row.get("slug", ""),
            role=row["role"],
            word=row["word"],
            pattern=re.compile(row["pattern"]),
            place=re.compile(row["place"]) if "place" in row else None,
            says=row.get("says", ""),
            fix=row.get("fix", ""),
            severity=row.get("severity", ""),
            versions=row["versions"],
            source=row["source"],
            needs=tuple(row.get("needs", ())),
            unless=tuple(row.get("unless", ())),
            weight=row.get("weight", 50),
            lines=row.get("lines", 0),
            asked=row.get("asked", False),
            rarely=row.get("rarely", False),
            example=row["example"],
            near_miss=row["near_miss"],
        )
    except (KeyError, ValueError, re.error) as error:
        raise ValueError(f"{file}: {row.get('name', 'a row without a name')}: {error}") from None


def check(causes: Mapping[str, Cause], signatures: Collection[Signature]) -> None:
    """Of all rows together. Raises ValueError for the first that is wrong."""
    names = [one.name for one in signatures]
    for one in signatures:
        wrong = ""
        if names.count(one.name) > 1:
            wrong = "its name is there twice"
        elif one.role not in ROLES:
            wrong = f"role {one.role} is none of {', '.join(ROLES)}"
        elif (one.role in ("clue", "harmless")) != (one.slug == ""):
            wrong = "a slug is for what is found, and a clue or what is harmless has none"
        elif one.slug and one.slug not in causes:
            wrong = f"there is no cause {one.slug}"
        elif one.slug and not one.says:
            wrong = "what is found needs a sentence (says)"
        elif one.severity not in ("", "fail", "warn"):
            wrong = f"its severity is {one.severity}, neither fail nor warn"
        elif not one.word or any(char.isdigit() for char in one.word):
            wrong = "its word is empty, or has a digit"
        elif missing := {*one.needs, *one.unless} - set(names):
            wrong = f"there is no signature {', '.join(sorted(missing))}"
        if wrong:
            raise ValueError(f"{one.name}: {wrong}")
