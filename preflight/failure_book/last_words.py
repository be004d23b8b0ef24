"""Forms of lines at the end of a log: errors that no signature knows, and what shows that a job went on or ended well.

They are data (`signatures/last_words.toml`), apart from the signatures: an error's form stands in many sound logs, and
counts only where nothing follows it.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

FILE = "last_words.toml"
KINDS = ("error", "quiet", "calm", "well")
CALM = 13
"""A calm line after an error counts as many others."""
WEAK = 12
"""An error of which no more lines may follow is one of a logger: after a job's end it is clean-up, and no failure."""


@dataclass(frozen=True)
class LastWord:
    """A form of line."""

    name: str
    kind: str
    pattern: re.Pattern[str]
    """Searched in the line with its prefixes."""
    after: int
    """Of an error: this many lines of no known form may follow it."""
    source: str
    example: str
    near_miss: str


@functools.cache
def forms() -> tuple[LastWord, ...]:
    """In their order; the first one that fits a line counts. Raises ValueError for a malformed row."""
    import tomllib  # comm.init imports this room in every command

    text = (resources.files(__package__) / "signatures" / FILE).read_text(encoding="utf-8")
    return tuple(_form(row) for row in tomllib.loads(text)["last_word"])


def form_of(text: str) -> LastWord | None:
    return next((form for form in forms() if form.pattern.search(text)), None)


def _form(row: Mapping[str, Any]) -> LastWord:
    if row["kind"] not in KINDS or ("after" in row) != (row["kind"] == "error"):
        raise ValueError(f"{FILE}: {row['name']}: kind is none of {', '.join(KINDS)}, or `after` is not an error's")
    pattern = re.compile(row["pattern"])
    return LastWord(
        row["name"], row["kind"], pattern, row.get("after", 0), row["source"], row["example"], row["near_miss"]
    )
