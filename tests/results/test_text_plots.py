"""Plots on a terminal: they fit, show what is slow, and stay short however large the job is."""

import pytest

from preflight.check import plots
from preflight.results import text_plots

NODES = [f"node-{number}" for number in range(64)]


def between(nodes: int, *slow: int, rate: float = 12.0) -> list[str]:
    """All pairs of nodes; those that send slowly."""
    cells = {(a, b): rate if a in slow else 40.0 for a in range(nodes) for b in range(nodes) if a != b}
    return heat_map(cells, NODES[:nodes], NODES[:nodes])


def heat_map(cells: dict[tuple[int, int], float], rows: list[str], columns: list[str], width: int = 74) -> list[str]:
    plot = plots.HeatMap("from row to column", rows, columns, cells, "GB/s", 40.0, 20.0)
    lines = text_plots.lines(plot.to_json(), width)
    assert max(map(len, lines)) <= width
    return lines


def test_a_few_nodes_are_numbers() -> None:
    assert between(3, 1) == [
        "from row to column, GB/s (! is slow)",
        "          0    1    2",
        "node-0       40   40",
        "node-1  12!       12!",
        "node-2  40   40",
    ]


def test_where_nothing_is_slow_a_few_rows_are_enough() -> None:
    lines = between(64)
    assert len(lines) == 11 and lines[-1] == "56 other rows not drawn, all sound"


def test_the_slow_rows_of_many_are_drawn() -> None:
    lines = between(64, 40, 63)
    assert [line.split()[0] for line in lines if line.startswith("node-") and "3" in line.split(None, 1)[1]] == [
        "node-40",
        "node-63",
    ]


def test_numbers_that_do_not_fit_are_characters() -> None:
    lines = between(64, *range(0, 64, 2))
    assert lines[0] == "from row to column: . is sound, 0-9 slow, in tenths of 40 GB/s, blank not"
    assert len(lines) == 2 + 1 + text_plots.MOST_ROWS + 2
    rows = {line.split()[0]: line.split(None, 1)[1] for line in lines if line.startswith("node-")}
    assert rows["node-2"] == "33 " + "3" * 61
    assert all(set(cells) <= set("3 ") for name, cells in rows.items() if int(name[5:]) % 2 == 0)
    assert lines[-1] == "40 other rows not drawn"


def test_rows_that_are_not_nodes_keep_all_columns() -> None:
    cells = {(row, rail): 1.0 if (row, rail) == (9, 3) else 40.0 for row in range(64) for rail in range(8)}
    lines = heat_map(cells, NODES, [f"local rank {rail}" for rail in range(8)])
    assert lines[1].split() == [*"01234567"]
    assert [line.split()[0] for line in lines[2:-1]] == [*NODES[:7], "node-9"]
    assert lines[-2].split()[4] == "1!"


@pytest.mark.parametrize(("usual", "cell"), [(0.0, 1.0), (1e-300, 1e300), (40.0, -1e300)])
def test_whatever_a_plugin_yields_has_lines(usual: float, cell: float) -> None:
    """Also where no column fits."""
    cells = {(row, column): cell for row in range(64) for column in range(64)}
    plot = plots.HeatMap("p", NODES, NODES, cells, "GB/s", usual, 1e301).to_json()
    assert all(text_plots.lines(plot, width) for width in (3, 74))


TABLE = plots.Table("", ("", "a", "b"), [("x", "1", "word"), ("longer", "12", "w")], "a note", screen="quiet")


def test_a_table_has_its_numbers_to_the_right() -> None:
    assert text_plots.lines(TABLE.to_json(), 74) == ["         a  b", "x        1  word", "longer  12  w", "a note"]


def test_columns_that_do_not_fit_stand_below_the_others() -> None:
    assert text_plots.lines(TABLE.to_json(), 12) == [
        "         a", "x        1", "longer  12", "", "        b", "x       word", "longer  w", "a note",
    ]  # fmt: skip


def test_a_table_of_many_rows_ends() -> None:
    rows = [(str(row), "1") for row in range(100)]
    lines = text_plots.lines(plots.Table("many", ("row", "value"), rows).to_json(), 74)
    assert len(lines) == 2 + 32 + 1 and lines[-1] == "68 more rows: see report.html"


@pytest.mark.parametrize(
    ("screen", "passed", "warned"), [("", False, False), ("quiet", False, True), ("always", True, True)]
)
def test_what_is_quiet_is_shown_where_the_check_did_not_pass(screen: str, passed: bool, warned: bool) -> None:
    plot = TABLE._replace(screen=screen).to_json()
    assert text_plots.is_on_screen(plot, "pass") is passed
    assert text_plots.is_on_screen(plot, "warn") is warned


def test_what_only_a_page_can_draw_has_no_lines() -> None:
    chart = plots.Chart("c", "x", "y", [plots.Series("s", [(0, 1)])]).to_json()
    assert text_plots.lines(chart, 74) == [] and not text_plots.is_on_screen(chart, "fail")
