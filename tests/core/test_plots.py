"""What checks draw, as data."""

import json

from preflight.core import plots


def test_of_many_subjects_only_odd_ones_keep_their_names() -> None:
    count = plots.MOST_SUBJECTS + 1
    strip = plots.Strip("speed", "GB/s", [1.0] * (count - 1) + [0.5], [count - 1])
    told = plots.Strips("t", [(f"node-{number}", "gpu 0") for number in range(count)], [strip]).to_json()
    assert told["subjects"] == [[f"node-{count - 1}", "gpu 0"]] and told["of"] == count
    [few] = told["strips"]
    assert (few["values"], few["odd"], sum(few["counts"])) == ([0.5], [0], count)


def test_a_large_matrix_is_binned_to_the_slowest_and_names_the_slow_as_they_are() -> None:
    names = [f"n{number}" for number in range(2 * plots.MOST_SIDE)]
    cells = {(0, 0): 9.0, (0, 1): 3.0, (7, 6): 8.0}
    told = plots.HeatMap("t", names, names, cells, "GB/s", 9.0, 5.0).to_json()
    assert told["binned"] == 2 and told["rows"][0] == "n0 to n1" and len(told["rows"]) == plots.MOST_SIDE
    assert told["cells"] == [0, 0, 3.0, 3, 3, 8.0]
    assert told["slow"] == [["n0", "n1", 3.0]]


def test_what_is_not_finite_stays_json() -> None:
    chart = plots.Chart("t", "x", "y", [plots.Series("a", [(1.0, float("inf")), (2.0, 1.23456789)])])
    assert json.loads(json.dumps(chart.to_json(), allow_nan=False))["series"][0]["points"] == [[1.0, 0.0], [2.0, 1.235]]


def test_only_what_differs_is_in_the_table() -> None:
    values = {
        "A": {"n0": "1", "n1": "1", "n2": "2"},
        "B": {"n0": "x", "n1": "x", "n2": "x"},
        "C": {"n0": "", "n1": "y"},
    }
    table = plots.differing("t", values, "variables")
    assert table is not None
    assert table.rows == [("A", "2", "n2"), ("A", "1", "n0 and n1"), ("C", "not set", "n0"), ("C", "y", "n1")]
    assert table.note == "1 variables are the same on all nodes."
    assert plots.differing("t", {}, "variables") is None
