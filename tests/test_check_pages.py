from pathlib import Path

from preflight.planning import built_in
from tests import book_page, check_pages, option_page


def test_every_page_is_fresh() -> None:
    there = {path.name: path.read_text() for path in check_pages.FOLDER.glob("*.md")}
    assert there == dict(check_pages.pages()), "run python -m tests.check_pages"


def test_what_the_list_says_is_fresh() -> None:
    assert Path(built_in.PATH).read_text() == check_pages.catalog(), "run python -m tests.check_pages"


def test_the_page_of_options_is_fresh() -> None:
    assert option_page.PATH.read_text() == option_page.text(), "run python -m tests.check_pages"


def test_the_book_is_fresh() -> None:
    assert book_page.PATH.read_text() == book_page.text(), "run python -m tests.check_pages"


def test_each_page_about_an_option_belongs_to_one() -> None:
    """An option that is renamed must not lose its link."""
    sections = option_page.text().split("\n## preflight ")[1:]
    there = {name for section in sections for name in _names(section)}
    assert set(option_page.PAGES) <= there


def _names(section: str) -> set[str]:
    command = section.split()[0]
    options = (line.split("`")[1].split()[0] for line in section.splitlines() if line.startswith("| `"))
    return {command, *(f"{command} {option}" for option in options)}
