"""Reads the members of JSON objects that somebody may have changed, or a full disk cut off. What does not fit is named
with its place."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from preflight.core import rank_ranges

SHOWN = 40
"""Characters of a wrong value that a sentence quotes."""
DEEPEST = 64
"""Lists and objects within each other, where a report may hold any JSON: what reads it is recursive."""
RANKS = re.compile(r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$")
_NAMES: Mapping[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
T = TypeVar("T")


class MalformedReport(ValueError):  # noqa: N818 -- as it reads where it is caught
    """Something in a report is not what it must be: "checks[3].findings[0].where is a list, expected object"."""


def refuse(value: object, place: str, expected: str) -> NoReturn:
    """Raises MalformedReport."""
    text = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    shown = f"{text[:SHOWN]}{'...' * (len(text) > SHOWN)}"
    raise MalformedReport(f"{place or 'it'} is {shown}, expected {expected}")


def typed(value: object, kind: type[T], place: str) -> T:
    """The value, if it is of exactly this type: JSON's true is no integer."""
    return value if type(value) is kind else refuse(value, place, _NAMES[kind])


def number(value: object, place: str) -> float:
    """An integer stays one."""
    return value if type(value) in (int, float) else refuse(value, place, "number")  # type: ignore[return-value]


def integer(value: object, place: str) -> int:
    return typed(value, int, place)


def text(value: object, place: str) -> str:
    return typed(value, str, place)


def items(value: object, place: str, read: Callable[[object, str], T]) -> list[T]:
    """`read` gets each item and its place."""
    return [read(item, f"{place}[{at}]") for at, item in enumerate(typed(value, list, place))]


def row(value: object, place: str, length: int) -> list[Any]:
    """A list of this many items."""
    listed = typed(value, list, place)
    return listed if len(listed) == length else refuse(listed, place, f"{length} items")


class Fields:
    """One object of a report. Its methods read a member each, and raise MalformedReport for one that is not there or
    is something else; they ignore the members that a newer preflight has added."""

    def __init__(self, data: object, place: str = "") -> None:
        self.data: dict[str, Any] = typed(data, dict, place)
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self.data

    def place_of(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def member(self, name: str, read: Callable[[object, str], T]) -> T:
        if name not in self.data:
            raise MalformedReport(f"{self.place_of(name)} is not there")
        return read(self.data[name], self.place_of(name))

    def text(self, name: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self.member(name, text)
        if pattern and not pattern.search(value):
            refuse(value, self.place_of(name), f"what {pattern.pattern} matches")
        return value

    def sentence(self, name: str) -> str:
        return self.text(name) or refuse("", self.place_of(name), "some text")

    def text_or_none(self, name: str) -> str | None:
        return self.member(name, lambda value, place: _or_none(value, str, place))

    def choice(self, name: str, allowed: Sequence[T]) -> T:
        value = self.member(name, lambda value, _: value)
        for known in allowed:
            if value == known and type(value) is type(known):
                return known
        one_of = "one of " * (len(allowed) > 1)
        refuse(value, self.place_of(name), one_of + ", ".join(map(str, allowed)))

    def true(self, name: str) -> bool:
        """False where it is not there: if it is, it is true."""
        if name not in self.data:
            return False
        return self.data[name] is True or refuse(self.data[name], self.place_of(name), "true")

    def flag(self, name: str) -> bool:
        return self.member(name, lambda value, place: typed(value, bool, place))

    def integer(self, name: str, least: int | None = None) -> int:
        value = self.member(name, integer)
        return value if least is None or value >= least else refuse(value, self.place_of(name), f"{least} or more")

    def integer_or_none(self, name: str) -> int | None:
        return self.member(name, lambda value, place: _or_none(value, int, place))

    def number(self, name: str, least: float | None = None) -> float:
        value = self.member(name, number)
        return value if least is None or value >= least else refuse(value, self.place_of(name), f"{least} or more")

    def ranks_text(self, name: str) -> str:
        """Ranks as "0-7,9", which stand for a bounded number of ranks."""
        value = self.text(name, RANKS)
        try:
            rank_ranges.blocks(value)
        except ValueError:
            refuse(value, self.place_of(name), f"ranges of at most {rank_ranges.MOST:,} ranks")
        return value

    def ranks(self, name: str) -> tuple[int, ...]:
        return rank_ranges.from_text(self.ranks_text(name))

    def list_of(self, name: str, read: Callable[[object, str], T]) -> list[T]:
        return self.member(name, lambda value, place: items(value, place, read))

    def texts(self, name: str) -> list[str]:
        return self.list_of(name, text)

    def objects(self, name: str) -> list["Fields"]:
        return self.list_of(name, Fields)

    def object(self, name: str) -> "Fields":
        return self.member(name, Fields)

    def texts_by_name(self, name: str) -> dict[str, str]:
        return self.object(name).all_texts()

    def all_texts(self) -> dict[str, str]:
        """This object, all of whose members are texts."""
        return {name: self.text(name) for name in self.data}

    def any_object(self, name: str) -> dict[str, Any]:
        """An object of any JSON, as checks make it."""
        return self.member(name, any_object)


def any_object(value: object, place: str) -> dict[str, object]:
    """The object; refuses one that is nested more deeply than DEEPEST."""
    found = typed(value, dict, place)
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for members in inner for item in members if isinstance(item, dict | list)]
        if not level:
            return found
    refuse(value, place, f"at most {DEEPEST} levels of objects and lists")


def _or_none(value: object, kind: type[T], place: str) -> T | None:
    return value if value is None or type(value) is kind else refuse(value, place, f"{_NAMES[kind]} or null")
