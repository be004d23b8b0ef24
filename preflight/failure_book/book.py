"""What preflight knows about failure logs: causes and signatures, from the TOML files in `signatures/`.

`causes.toml` says what a slug means and how to fix it. The other files hold signatures: forms of lines that show a
cause. A new one needs no Python, only a row. `preflight explain` asks the whole `book`, comm.init the `live_book`,
node.kernel the `kernel_rows`.
"""

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from preflight.core.action import Action
from preflight.failure_book import xids
from preflight.failure_book.line import Line

ROLES = ("cause", "failure", "fallout", "slower", "clue", "harmless")
"""cause: the line says what is wrong. failure: something failed here, and the cause may be elsewhere. fallout: from a
survivor, or after the end; it counts only if nothing else explains the failure. slower: the job works, over a slower
path or beside a fault that ends no job. clue: no finding; other rows need it. harmless: such a line is matched by no
other row."""
WARN = "WARN"
"""The word of rows for NCCL warnings that match no other row: their `place` shows their subject."""
IN_ORDER = ("python.", "any.failure", "any.exception", "progress.", "epoch.")
"""Prefixes of the names of rows for which the lines around matter."""
SHAPES = 20_000
"""Cached shapes (lines without digits), with the rows that may fit."""
LINES, LONGEST_KNOWN = 10_000, 1000
"""Cached texts of lines, with the rows that fit, and their longest: some 10 MB."""
_ROW, _LIVE = "[[signature]]", "\nlive = "
_KERNEL = "kernel.toml"
_POINTER = re.compile("0x[0-9a-f]+")
_DIGITS = b"0123456789"


@dataclass(frozen=True)
class Cause:
    """A slug of `explain.<slug>`."""

    slug: str
    meaning: str
    fix: str
    severity: str
    """fail, or warn."""
    seen_by: tuple[str, ...] = ()
    """Codes of live checks that find the same, to merge a report with a log; "gpu.nvlink.*": any of that check."""
    action: Action = Action.FIX_CONFIG


@dataclass(frozen=True)
class LiveFinding:
    """What a live check finds if a failed rank's log has such a line."""

    code: str
    """ "comm.init.open_files"."""
    variable: str = ""
    """A variable that may be the reason: it is named if NCCL says that it has read it."""
    sure: bool = False
    """NCCL prints the line only if the variable is set, and does not say that it has read it."""
    or_victim: bool = False
    """A rank that lost a peer may print it, too: it counts only if no rank died or names another cause."""


@dataclass(frozen=True)
class KernelLine:
    """What node.kernel makes of such a line in /dev/kmsg."""

    kind: str
    """Of its event."""
    code: str = ""
    """Slug of its finding; "" if it is none by itself."""
    severity: str = ""
    """fail, warn, or info (known, and no fault of the node). "": node.kernel has a rule of its own."""


@dataclass(frozen=True)
class Signature:
    """A row: a form of line, and what it shows."""

    name: str
    """Unique: "nccl.duplicate_gpu"."""
    slug: str
    """The slug of its cause; "" for roles clue and harmless."""
    role: str
    word: str
    """Text without digits that is in every line that `pattern` fits: it is searched first."""
    or_words: tuple[str, ...]
    """Other such texts: every line that `pattern` fits has at least one of all."""
    pattern: re.Pattern[str]
    """Searched in `Line.text`. The message uses its named groups; those named rank, peer_rank, local_rank, node,
    peer_node, gpu, device, interface, variable, parameter, file, line name the culprit."""
    place: re.Pattern[str] | None
    """Searched in `Line.place` if the text is ambiguous: a CUDA error in transport/nvls.cc means something different
    from one in include/alloc.h. None: any."""
    says: str
    """One sentence with {groups}: what was measured, and what was expected."""
    fix: str
    """Replaces its cause's fix; "" keeps it."""
    severity: str
    """Replaces its cause's severity; "" keeps it."""
    action: str
    """Replaces its cause's action; "" keeps it."""
    versions: str
    source: str
    """Where the text comes from: a project's source file."""
    needs: tuple[str, ...]
    """Names of signatures that must also fit some line."""
    unless: tuple[str, ...]
    """Names of signatures that must not fit any line."""
    weight: int
    """0 to 100: how directly the line shows the cause, among rows of its role."""
    lines: int
    """This many lines after it belong to it, and are read, too."""
    asked: bool
    """Only lines requested by an earlier row (`lines`) are tried: its word appears in ordinary output."""
    rarely: bool
    """One of many consecutive lines is enough: for progress bars."""
    least: int
    """Fewer such lines mean nothing."""
    example: str
    near_miss: str
    live: LiveFinding | None
    """None: comm.init does not ask for it."""
    kernel: KernelLine | None
    """None: node.kernel does not ask for it."""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.word, *self.or_words)


class _Groups(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


@dataclass(frozen=True, slots=True)
class Match:
    """A line that fits a signature."""

    signature: Signature
    line: Line
    groups: Mapping[str, str]
    """Groups with a value."""

    def fill(self, text: str) -> str:
        """`text` with its {groups}; one without a value becomes "?"."""
        return text.format_map(_Groups(self.groups))


class Book:
    """All causes and signatures."""

    def __init__(self, causes: Mapping[str, Cause], signatures: Collection[Signature]) -> None:
        self.causes = causes
        self.signatures = tuple(sorted(signatures, key=lambda file: file.role != "harmless"))
        self.by_name = {row.name: row for row in self.signatures}
        self._by_shape: dict[bytes, list[Signature]] = {}
        self._by_line: dict[tuple[str, str, str], list[tuple[Signature, Mapping[str, str]]]] = {}
        self._of_unknown = [row for row in self.signatures if row.word == WARN]

    @property
    def words(self) -> frozenset[str]:
        """A line without any of them cannot match."""
        return frozenset(word for row in self.signatures if not row.asked for word in row.words)

    @property
    def rarely(self) -> frozenset[str]:
        """Words of rows with `rarely`."""
        return self.words - {word for row in self.signatures if not row.rarely for word in row.words}

    @functools.cached_property
    def _by_word(self) -> dict[str, list[Signature]]:
        found: dict[str, list[Signature]] = {}
        for row in self.signatures:
            for word in row.words:
                found.setdefault(word, []).append(row)
        return found

    def matches(self, line: Line) -> list[Match]:
        """The matches of a line, ignoring `needs` and `unless`, which are about all lines; one if it is harmless."""
        key = (line.text, line.level, line.place)  # what many ranks say differs in its prefixes only
        if (known := self._by_line.get(key)) is not None:
            return [Match(row, line, groups) for row, groups in known]
        found = list(self._matches(line))
        found = [match for match in found if match.signature.role == "harmless"][:1] or found
        if len(line.text) <= LONGEST_KNOWN:
            if len(self._by_line) >= LINES:
                self._by_line.clear()
            self._by_line[key] = [(match.signature, match.groups) for match in found]
        return found

    def _matches(self, line: Line) -> Iterator[Match]:
        is_known = False
        for row in self._candidates(line.text):
            for match in _match(row, line):
                is_known |= row.role != "clue"
                yield match
        if line.level == "WARN" and not is_known:
            yield from (match for row in self._of_unknown for match in _match(row, line))

    def _candidates(self, text: str) -> list[Signature]:
        """Rows with a word that may be in it: the same for lines that differ only in digits and pointers."""
        coded = (_POINTER.sub("", text) if "0x" in text else text).encode("utf-8", "surrogatepass")
        key = coded.translate(None, _DIGITS)
        found = self._by_shape.get(key)
        if found is None:
            if len(self._by_shape) >= SHAPES:
                self._by_shape.clear()
            shape = key.decode("utf-8", "surrogatepass")
            by_word = (rows for word, rows in self._by_word.items() if word in shape and word != WARN)
            found = list({row.name: row for rows in by_word for row in rows}.values())
            self._by_shape[key] = found
        return found


def stand_alone(matches: Collection[Match]) -> bool:
    """Whether a copy of their line says nothing new."""
    return not any(match.signature.lines or match.signature.name.startswith(IN_ORDER) for match in matches)


def _match(signature: Signature, line: Line) -> Iterator[Match]:
    if (signature.place is None or signature.place.search(line.place)) and (
        fits := signature.pattern.search(line.text)
    ):
        yield Match(signature, line, {name: value for name, value in fits.groupdict().items() if value is not None})


@functools.cache
def book() -> Book:
    """Reads the package's own files. Raises ValueError, with file and row, for a malformed one."""
    causes: dict[str, Cause] = {}
    signatures: list[Signature] = []
    for name, text in _files():
        read = _parsed(text)
        causes |= {slug: _cause(slug, row) for slug, row in read.get("cause", {}).items()}
        signatures += [signature(row, name) for row in read.get("signature", [])]
    forms = {row.kernel.kind: row.pattern.pattern for row in signatures if row.kernel}
    signatures += [signature(row, xids.FILE) for row in xids.rows(forms)]
    check(causes, signatures)
    return Book(causes, signatures)


@functools.cache
def live_book() -> Book:
    """The rows with `live`, without causes. The others, twelve times as many, are not parsed or compiled."""
    rows = []
    for name, text in _files():
        live = "".join(_ROW + row for row in text.split(_ROW) if _LIVE in row)
        rows += [signature(row, name) for row in _parsed(live).get("signature", [])]
    return Book({}, rows)


@functools.cache
def kernel_rows() -> tuple[Signature, ...]:
    """The rows with `kernel`: lines of /dev/kmsg, and which of them are a fault of the node."""
    text = (resources.files(__package__) / "signatures" / _KERNEL).read_text(encoding="utf-8")
    return tuple(row for row in (signature(row, _KERNEL) for row in _parsed(text)["signature"]) if row.kernel)


def _parsed(text: str) -> dict[str, Any]:
    import tomllib  # comm.init imports this module in every command

    return tomllib.loads(text)


def _files() -> Iterator[tuple[str, str]]:
    """(name, text) of the TOML files."""
    for file in sorted((resources.files(__package__) / "signatures").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            yield file.name, file.read_text(encoding="utf-8")


def _cause(slug: str, row: Mapping[str, Any]) -> Cause:
    seen_by = tuple(row.get("seen_by", ()))
    action = Action(row.get("action", Action.FIX_CONFIG))
    return Cause(slug, row["meaning"], row["fix"], row.get("severity", "fail"), seen_by, action)


def signature(row: Mapping[str, Any], file: str) -> Signature:
    """A row of a TOML file. Raises ValueError if it is incomplete."""
    known = {*Signature.__annotations__}
    try:
        if unknown := row.keys() - known:
            raise ValueError(f"has {', '.join(sorted(unknown))}, which is unknown")
        return Signature(
            name=row["name"],
            slug=row.get("slug", ""),
            role=row["role"],
            word=row["word"],
            or_words=tuple(row.get("or_words", ())),
            pattern=re.compile(row["pattern"]),
            place=re.compile(row["place"]) if "place" in row else None,
            says=row.get("says", ""),
            fix=row.get("fix", ""),
            severity=row.get("severity", ""),
            action=row.get("action", ""),
            versions=row["versions"],
            source=row["source"],
            needs=tuple(row.get("needs", ())),
            unless=tuple(row.get("unless", ())),
            weight=row.get("weight", 50),
            lines=row.get("lines", 0),
            asked=row.get("asked", False),
            rarely=row.get("rarely", False),
            least=row.get("least", 1),
            example=row["example"],
            near_miss=row["near_miss"],
            live=LiveFinding(**row["live"]) if "live" in row else None,
            kernel=KernelLine(**row["kernel"]) if "kernel" in row else None,
        )
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ValueError(f"{file}: {row.get('name', 'a row without a name')}: {error}") from None


def check(causes: Mapping[str, Cause], signatures: Collection[Signature]) -> None:
    """Checks all rows together. Raises ValueError for the first wrong one."""
    names = [row.name for row in signatures]
    for row in signatures:
        wrong = ""
        if names.count(row.name) > 1:
            wrong = "its name is there twice"
        elif row.role not in ROLES:
            wrong = f"role {row.role} is none of {', '.join(ROLES)}"
        elif (row.role in ("clue", "harmless")) != (row.slug == ""):
            wrong = "a slug is for what is found, and a clue or what is harmless has none"
        elif row.slug and row.slug not in causes:
            wrong = f"there is no cause {row.slug}"
        elif row.slug and not row.says:
            wrong = "what is found needs a sentence (says)"
        elif row.severity not in ("", "fail", "warn"):
            wrong = f"its severity is {row.severity}, neither fail nor warn"
        elif row.action not in ("", *Action):
            wrong = f"its action is {row.action}, none of {', '.join(Action)}"
        elif any(not word or any(char.isdigit() for char in word) for word in row.words):
            wrong = "a word is empty, or has a digit"
        elif missing := {*row.needs, *row.unless} - set(names):
            wrong = f"there is no signature {', '.join(sorted(missing))}"
        if wrong:
            raise ValueError(f"{row.name}: {wrong}")
