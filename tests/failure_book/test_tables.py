"""Tables of the book: each row fits its example, and not its near miss."""

import re
from collections.abc import Mapping

import pytest

from preflight.failure_book.book import book
from preflight.failure_book.tables import table

ROWS = [(name, row) for name in ("second_hand", "exception", "full_place") for row in table(name)]


def fits(name: str, row: Mapping[str, str], text: str) -> bool:
    if name == "full_place":
        return bool(re.search(row["pattern"], text))
    kind, _, rest = text.partition(": ")
    return bool(re.search(row["type"], kind) or ("text" in row and re.search(row["text"], rest)))


@pytest.mark.parametrize(("name", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_row_fits_what_it_says(name: str, row: Mapping[str, str]) -> None:
    assert fits(name, row, row["example"]) and not fits(name, row, row["near_miss"]) and row["source"]
    assert "slug" not in row or row["slug"] in book().causes
