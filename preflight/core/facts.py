"""Facts: what `measure` returns. Plain JSON, checked strictly, identified by content."""

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

LIMIT = 1024 * 1024
"""Bytes per rank and check: a larger value blocks the store's single thread for all ranks."""
_ATOMS = (str, int, bool, type(None))


class BadFacts(ValueError):  # noqa: N818 -- says what they are
    """What `measure` returned is not a JSON object, holds NaN, or is too large. Its text says where."""


def to_text(value: object) -> str:
    """One line of canonical JSON. Raises BadFacts."""
    if not isinstance(value, dict):
        raise BadFacts(f"measure() returned {_named(value)}, not a dict")
    flaw = None if _is_json(value) else next(_flaws(value, "facts"), None)
    if flaw:
        raise BadFacts(flaw)
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise BadFacts(f"the facts are not JSON: {error}") from None
    if len(text) > LIMIT:
        raise BadFacts(f"the facts are {len(text):,} bytes; the limit per rank and check is {LIMIT:,}")
    return text


def _is_json(value: Any) -> bool:
    """Without the words of `_flaws`, which take three times as long. False also for subclasses of JSON's types."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if kind is list or kind is tuple:
        return all(map(_is_json, value))
    return math.isfinite(value) if kind is float else kind in _ATOMS


def _flaws(value: object, at: str) -> Iterator[str]:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        yield f"{at} is {value}: JSON has no such number"
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{at} has the key {key!r}: keys are strings"
            yield from _flaws(item, f"{at}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flaws(item, f"{at}[{index}]")
    elif not isinstance(value, str | int | float | bool | None):
        yield f"{at} is {_named(value)}: facts are made of JSON's types"


def _named(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def content_hash(text: str) -> str:
    """Names facts by their content, so that equal facts are sent and stored once."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class FactsStore:
    """All facts of a run, at rank 0: compressed, and equal ones stored once."""

    def __init__(self) -> None:
        self._texts: dict[str, bytes] = {}
        self._of_check: dict[str, dict[int, str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def add(self, check: str, ranks: Iterable[int], text: str) -> None:
        """Adds what these ranks have measured for this check."""
        name = content_hash(text)
        self.add_text(name, text)
        for rank in ranks:
            self.note(check, rank, name)

    def add_text(self, name: str, text: str) -> None:
        """Stores a text under its content hash; `note` records which ranks measured it."""
        self._texts[name] = zlib.compress(text.encode(), 1)

    def note(self, check: str, rank: int, name: str) -> None:
        """Records the content hash of this rank's facts for this check."""
        self._of_check.setdefault(check, {})[rank] = name

    @property
    def size(self) -> int:
        """Bytes held in memory."""
        return sum(map(len, self._texts.values()))

    def ranks(self, check: str) -> list[int]:
        return sorted(self._of_check.get(check, {}))

    def checks(self) -> list[str]:
        return list(self._of_check)

    def groups(self, check: str) -> Iterator[tuple[list[int], str]]:
        """Yields (ranks, JSON text) for each group of ranks with equal facts."""
        ranks_of: dict[str, list[int]] = {}
        for rank, name in sorted(self._of_check.get(check, {}).items()):
            ranks_of.setdefault(name, []).append(rank)
        for name, ranks in ranks_of.items():
            yield ranks, zlib.decompress(self._texts[name]).decode()

    def of(self, check: str) -> dict[int, Any]:
        """The facts by rank. Ranks with equal facts share one object."""
        found = {rank: value for ranks, text in self.groups(check) for value in [json.loads(text)] for rank in ranks}
        return dict(sorted(found.items()))
