import pytest

from preflight.core import rank_ranges

PAIRS = [
    ((), ""),
    ((0,), "0"),
    ((0, 1), "0-1"),
    ((0, 1, 2, 5), "0-2,5"),
    ((3, 5, 7), "3,5,7"),
    (tuple(range(8192)), "0-8191"),
]


@pytest.mark.parametrize(("numbers", "text"), PAIRS)
def test_ranges_go_there_and_back(numbers: tuple[int, ...], text: str) -> None:
    assert rank_ranges.to_text(numbers) == text
    assert rank_ranges.from_text(text) == numbers


def test_order_and_repetition_do_not_matter() -> None:
    assert rank_ranges.to_text([9, 1, 0, 1, 2, 9]) == "0-2,9"


@pytest.mark.parametrize("text", ["x", "1-2-3", "-3", "1;2", "0-2,y", "1.5", "0x10"])
def test_nonsense_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        rank_ranges.from_text(text)


@pytest.mark.parametrize(("numbers", "text"), [({3}, "rank 3"), ([0, 1, 2, 5], "ranks 0-2,5"), ([4, 4], "rank 4")])
def test_a_sentence_has_the_right_number(numbers: list[int], text: str) -> None:
    assert rank_ranges.ranks(numbers) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1024, "1,024 nodes")])
def test_a_count_has_the_right_number(number: int, text: str) -> None:
    assert rank_ranges.count(number, "node") == text


@pytest.mark.parametrize("text", ["3-1", "1-", ",", "1,,2", "-1", "a", "1 2", "0-99999999"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of ranks"):
        rank_ranges.from_text(text)
