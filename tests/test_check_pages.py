from tests import check_pages


def test_every_page_is_fresh() -> None:
    there = {path.name: path.read_text() for path in check_pages.FOLDER.glob("*.md")}
    assert there == dict(check_pages.pages()), "run python -m tests.check_pages"
