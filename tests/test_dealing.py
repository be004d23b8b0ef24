"""What dealing.py does with the list of tests."""

from typing import NamedTuple

from tests.dealing import dealt


class Named(NamedTuple):
    path: str
    name: int


def test_each_worker_begins_with_slow_files_and_ends_with_fast_tests() -> None:
    slow = [Named(file, number) for file, count in (("a", 5), ("b", 2), ("c", 2)) for number in range(count)]
    fast = [Named("d", number) for number in range(12)]
    pieces = [piece for first in range(0, 21, 7) for piece in [dealt(slow, fast, 3)[first : first + 7]]]
    assert sorted(test for piece in pieces for test in piece) == sorted(slow + fast)
    assert [[test.path for test in piece] for piece in pieces] == [
        ["a"] * 5 + ["d"] * 2, ["b"] * 2 + ["d"] * 5, ["c"] * 2 + ["d"] * 5,
    ]  # fmt: skip


def test_where_one_file_is_more_than_a_worker_s_share_none_is_lost() -> None:
    slow = [Named("a", number) for number in range(9)]
    assert sorted(dealt(slow, [Named("d", 0)], 3)) == sorted([*slow, Named("d", 0)])
