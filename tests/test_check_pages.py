from pathlib import Path

from preflight.planning import built_in
from tests import check_pages


def test_every_page_is_fresh() -> None:
    there = {path.name: path.read_text() for path in check_pages.FOLDER.glob("*.md")}
    assert there == dict(check_pages.pages()), "run python -m tests.check_pages"


def test_what_the_list_says_is_fresh() -> None:
    assert Path(built_in.PATH).read_text() == check_pages.catalog(), "run python -m tests.check_pages"
