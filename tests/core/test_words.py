import pytest

from preflight.core import words


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", ""),
        ("a", "a"),
        ("ab", "a and b"),
        ("abc", "a, b and c"),
        ("abcd", "a, b, c and d"),
        ("abcde", "a, b, c and 2 more"),
    ],
)  # fmt: skip
def test_a_long_list_says_how_many_more_there_are(names: str, expected: str) -> None:
    assert words.some(names, 3) == expected


def test_lists_inside_lists_have_other_separators() -> None:
    assert words.some("abc", last=", ") == "a, b, c"
    assert words.some(range(2000), 2, "; ") == "0; 1; and 1,998 more"
    assert words.clauses(["a, b", "c"]) == "a, b; c"
    assert words.clauses(range(2000), 2) == "0; 1; and 1,998 more"


def test_names_are_counted_and_the_first_ones_named() -> None:
    assert words.examples(["a", "b"]) == "2 (a, b)"
    assert words.examples(["norm"], "module") == "1 module (norm)"
    assert words.examples(list("abcd"), "module") == "4 modules (a, b, c, ...)"


def test_each_unit_of_rates_has_its_own_function() -> None:
    assert words.rate(40e9) == words.rate_of_gb(40) == "40 GB/s"
    assert [words.link_rate(mbit) for mbit in (100, 2_500, 100_000)] == ["100 Mb/s", "2.5 Gb/s", "100 Gb/s"]


@pytest.mark.parametrize(
    ("bytes_per_s", "expected"),
    [(0, "0 kB/s"), (1500, "1.5 kB/s"), (1e6, "1 MB/s"), (312.4e6, "312 MB/s"), (39.96e9, "40 GB/s"),
     (999.5e6, "1 GB/s"), (999.4e6, "999 MB/s"),
     (1234e9, "1,234 GB/s")],
)  # fmt: skip
def test_rates(bytes_per_s: float, expected: str) -> None:
    assert words.rate(bytes_per_s) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1024**2 - 1, "1 MiB"),
     (1000 * 1024, "1,000 KiB"), (1536 * 1024, "1.5 MiB"), (8 << 30, "8 GiB")],
)  # fmt: skip
def test_sizes(size: int, expected: str) -> None:
    assert words.size(size) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (0.000123, "0.123 ms"), (0.05, "50 ms"),
     (0.99999, "1 s"), (0.999, "999 ms"), (1.25, "1.25 s"), (119, "119 s"), (120, "2 min"),
     (7199, "120 min"), (7200, "2 h"), (172800, "2 days")],
)  # fmt: skip
def test_durations(seconds: float, expected: str) -> None:
    assert words.duration(seconds) == expected


def test_what_is_counted() -> None:
    assert (words.count(1, "rank"), words.ranks([0, 1, 2, 5])) == ("1 rank", "ranks 0-2,5")
