"""A row's word stands in each text that its pattern fits: a form without it would never be searched."""

import itertools
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from preflight.failure_book.book import WARN, Signature, book
from preflight.failure_book.line import LONGEST

LONG_S = 0.1
"""Of the processor: a row that tries each place with each other takes seconds."""
GAP = "\0"
"""Any text."""
MOST = 20_000
"""Alternatives that are told apart; of more, only those that hold a word are."""


@dataclass(frozen=True)
class Walk:
    """Reads a parsed pattern: what stands in each line that it fits, one text per alternative."""

    words: Collection[str]

    def texts(self, parsed: Sequence[Any], flags: int) -> set[str]:
        found = {""}
        for code, value in parsed:
            both = itertools.product(found, self.of(str(code), value, flags))
            found = {self._short(before + after) for before, after in both}
            if len(found) > MOST:
                found = {text if text in self.words else GAP for text in found}
        return found

    def _short(self, text: str) -> str:
        """The word alone, of a text that holds one: whatever follows, it stays there."""
        return next((word for word in self.words if word in text), text)

    def of(self, code: str, value: Any, flags: int) -> set[str]:
        if code == "LITERAL":
            return {GAP if flags & re.IGNORECASE and chr(value).isalpha() else chr(value)}
        if code == "IN" and all(str(kind) == "LITERAL" for kind, _ in value) and len(value) < 4:
            return set().union(*(self.of("LITERAL", char, flags) for _, char in value))
        if code == "SUBPATTERN":
            return self.texts(value[3], (flags | value[1]) & ~value[2])
        if code == "BRANCH":
            return set().union(*(self.texts(branch, flags) for branch in value[1]))
        if code in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            return self._repeated(self.texts(value[2], flags), *value[:2])
        if code == "ATOMIC_GROUP":
            return self.texts(value, flags)
        return {""} if code in ("AT", "ASSERT_NOT") else {GAP}

    def _repeated(self, item: set[str], least: int, most: int) -> set[str]:
        if len(item) > 1 and most > 1:
            return {GAP} if least else {"", GAP}
        exact = {"".join(parts) for parts in itertools.product(item, repeat=min(least, 4))}
        if most == least:
            return exact
        return exact | (item if most == 1 else {f"{text}{GAP}{text}" for text in item})


def lacking(pattern: re.Pattern[str], words: Collection[str]) -> list[str]:
    """The alternatives that hold none of the words."""
    parsed = re._parser.parse(pattern.pattern)  # type: ignore[attr-defined]
    return sorted(text for text in Walk(words).texts(parsed, pattern.flags) if text not in words)


ROWS = [row for row in book().signatures if row.word != WARN]
BY_WORD = {"loss.inf", "loss.inf_equal", "loss.inf_json", "loss.inf_upper"}
"""Rows of one pattern, each with the word of one form: "inf" itself stands in each "info"."""


@pytest.mark.parametrize(
    ("pattern", "word", "is_in"),
    [
        ("a (?:b|cb) d", "b d", True),
        ("a (?:b|c) d", "b", False),
        ("(?i)a b", "b", False),
        ("(?i:a) b", " b", True),
        ("a +b", " b", True),
        ("a(?: bc)?", "bc", False),
        ("[Pp]reempted", "reempted", True),
        ("[Pp]reempted", "Preempted", False),
        (r"a \d+ b", " b", True),
        ("a.*b", "ab", False),
    ],
)
def test_what_stands_in_each_text_of_a_pattern(pattern: str, word: str, is_in: bool) -> None:
    assert (not lacking(re.compile(pattern), (word,))) is is_in


def test_no_word_shuts_out_a_form_of_its_own_pattern() -> None:
    found = {
        row.name: texts[:3] for row in ROWS if row.name not in BY_WORD and (texts := lacking(row.pattern, row.words))
    }
    assert not found, "\n".join(f"{name}: no word is in {texts}" for name, texts in found.items())


def hostile(row: Signature) -> Iterator[str]:
    """Long lines: of what it seeks, again and again, of its example's beginning, and of what a repeat may try."""
    begin = row.example.splitlines()[0][: len(row.example) // 2] or row.word
    for text in (row.word, f"{row.word} ", row.example.splitlines()[0], begin, f"{begin}1 ", f"{row.word}: 0 [a"):
        yield (text * (LONGEST // len(text) + 1))[:LONGEST]
    for char in " 1a.:[":
        yield (begin + char * LONGEST)[:LONGEST]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_long_line_takes_no_row_long(row: Signature) -> None:
    """A pattern that tries each place with each other takes seconds for it."""
    for text in hostile(row):
        took: list[float] = []
        while len(took) < 3 and (not took or min(took) > LONG_S):
            begin = time.process_time()
            row.pattern.search(text)
            took.append(time.process_time() - begin)
        assert min(took) <= LONG_S, (row.pattern.pattern, text[:80])
