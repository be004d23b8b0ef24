import data_folder

from preflight import testing


def found(*entries):
    """The findings about nodes with these numbers of entries, one rank each."""
    facts = {rank: {"entries": count} for rank, count in enumerate(entries)}
    nodes = {f"node-{rank}": [rank] for rank in facts}
    findings = testing.judge(data_folder, facts, nodes=nodes, settings={"folder": "/data"})
    return [(finding["code"], finding["where"].get("node")) for finding in findings]


def test_equal_nodes_are_sound():
    assert found(120) == found(120, 120) == []


def test_the_odd_node_is_named():
    assert found(120, 120, 3, 120) == [("plugin.data_folder.different", "node-2")]


def test_two_different_nodes_have_no_culprit():
    assert found(120, 3) == [("plugin.data_folder.different", None)]


def measured(folder):
    """The check's part of the report of a real run with two ranks."""
    (check,) = testing.measure("data_folder.py", settings={"folder": folder})["checks"]
    return check["status"], [finding["code"] for finding in check["findings"]]


def test_a_folder_that_is_there(tmp_path):
    assert measured(tmp_path) == ("pass", [])


def test_a_folder_that_is_not_there(tmp_path):
    assert measured(tmp_path / "no") == ("fail", ["plugin.data_folder.missing"])


def test_no_folder():
    assert measured("") == ("skip", [])
