"""The settings of a check: `--set <check id>.<constant in lower case>=VALUE`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Option(Generic[T]):
    """A setting of a check: `--set <check id>.<constant in lower case>=VALUE`."""

    type: Callable[[str], T]
    default: T
    help: str


def option(type: Callable[[str], T], default: T, help: str) -> Option[T]:  # noqa: A002 -- argparse's words
    """Declares an option. `type` makes the value from text (int, float, str, or any function that raises
    ValueError); `bool` is understood as true/false, yes/no, 1/0."""
    return Option(type, default, help)


def count(text: str) -> int:
    """An option type: a whole number of at least 1. Raises ValueError."""
    if not text.strip().isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """An option type: a time in seconds above 0. Raises ValueError."""
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a time above 0")
    return value
