"""Finds the few lines that hold a word among gigabytes that do not.

A log's lines have few shapes with new numbers. So digits are deleted from a whole block at once, and only new shapes
are searched, for all words together: a word of seven bytes holds four bytes that start at a multiple of four, wherever
it is. A block that lacks these four, read as integers, lacks the word.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

DELETED = b"0123456789.:+-" + bytes(range(128, 256))
GRAM = 4
SURE = 2 * GRAM - 1
"""A word of at least this many bytes holds a whole gram, wherever it is."""
SHAPES = 1 << 15
LONGEST_SHAPE = 1024
"""Both limit the cache: 32 MiB, and a few hundred KiB for a real log."""
_POINTERS = re.compile(rb"0x[0-9a-f]{6,16}")
"""Without them, no line of a stack has a shape of its own."""
_LINES = bytes.maketrans(b"\r", b"\n")


class Prefilter:
    """Remembers shapes: one for all inputs."""

    def __init__(self, words: Collection[str]) -> None:
        """`words` have no line ends. Raises ValueError for an empty one."""
        coded = {word.encode() for word in words}
        short = {byte for word in coded if len(word.translate(None, DELETED)) < 2 for byte in word}
        self._deleted = bytes(byte for byte in DELETED if byte not in short)
        self._words: dict[bytes, list[str]] = defaultdict(list)
        for word in sorted(words):
            if not word:
                raise ValueError("an empty word is in every line")
            self._words[word.encode().translate(None, self._deleted)].append(word)
        self._short = [form for form in self._words if len(form) < SURE]
        self._needed: dict[int, list[tuple[frozenset[int], bytes]]] = defaultdict(list)
        for form in self._words.keys() - {*self._short}:
            for start in range(GRAM):
                grams = _grams(form[start : len(form) - (len(form) - start) % GRAM])
                for gram in grams:
                    self._needed[gram].append((frozenset(grams), form))
        self._grams = frozenset(self._needed)
        self._without_words: set[bytes] = set()
        self._with_words: dict[bytes, tuple[str, ...]] = {}

    def shapes(self, block: bytes) -> list[bytes]:
        """One per line; carriage returns end a line, too."""
        return _POINTERS.sub(b"0x", block).translate(_LINES, self._deleted).split(b"\n")

    def with_words(self, shapes: Sequence[bytes]) -> Mapping[bytes, tuple[str, ...]]:
        """Those of these shapes that may hold a word, with the words. The line itself decides."""
        distinct = set(shapes)
        fresh = distinct - self._without_words - self._with_words.keys()
        added = self._search(fresh) if fresh else {}
        return {shape: self._with_words[shape] for shape in self._with_words.keys() & distinct} | added

    def _search(self, fresh: set[bytes]) -> dict[bytes, tuple[str, ...]]:
        held: dict[bytes, list[str]] = defaultdict(list)
        for form in self._hits(b"\n".join(fresh)):
            for shape in [shape for shape in fresh if form in shape]:
                held[shape] += self._words[form]
        held_by = {shape: tuple(words) for shape, words in held.items()}
        if len(self._without_words) + len(self._with_words) + len(fresh) > SHAPES:
            self._without_words, self._with_words = set(), {}
        kept = {shape for shape in fresh if len(shape) <= LONGEST_SHAPE}
        self._with_words |= {shape: words for shape, words in held_by.items() if shape in kept}
        self._without_words |= kept - held_by.keys()
        return held_by

    def _hits(self, text: bytes) -> list[bytes]:
        """The forms in it."""
        grams = self._grams.intersection(_cast(text + b"\n" * (-len(text) % GRAM)))
        maybe = {form for gram in grams for needed, form in self._needed[gram] if needed <= grams}
        return [form for form in (*maybe, *self._short) if form in text]


def _cast(text: bytes) -> memoryview:
    return memoryview(text).cast("I")


def _grams(text: bytes) -> list[int]:
    return _cast(text).tolist()
