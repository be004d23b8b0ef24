import json
import os

import data_index
import pytest

from preflight import testing


def found(*digests):
    """The findings about nodes that have read these indexes, one rank each; "" is a node that could not."""
    facts = {
        rank: {"shards": 2, "samples": 30, "digest": digest, "error": "" if digest else "opening /data: no answer"}
        for rank, digest in enumerate(digests)
    }
    nodes = {f"node-{rank}": [rank] for rank in facts}
    findings = testing.judge(data_index, facts, nodes=nodes, settings={"index": "/data/index.json"})
    return [(finding["code"], finding["where"].get("node")) for finding in findings]


def test_equal_indexes_are_sound():
    assert found("a") == found("a", "a") == []


def test_the_odd_node_is_named():
    assert found("a", "a", "b", "a") == [("plugin.data_index.different", "node-2")]
    assert found("a", "b") == [("plugin.data_index.different", None)]


def test_a_node_that_cannot_read_it_is_named():
    assert found("a", "", "a") == [("plugin.data_index.unreadable", "node-1")]


def measured(index):
    """The check's part of the report of a real run with two ranks."""
    (check,) = testing.measure("data_index.py", settings={"index": index, "patience_s": 2})["checks"]
    return check["status"], [finding["message"] for finding in check["findings"]]


def test_an_index(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"shard-0.tar": 10, "shard-1.tar": 20}))
    assert measured(tmp_path / "index.json") == ("pass", [])


def test_a_file_system_that_hangs(tmp_path):
    os.mkfifo(tmp_path / "index.json")  # opening it waits for a writer
    status, (message,) = measured(tmp_path / "index.json")
    assert status == "fail" and message.startswith(f"opening {tmp_path}/index.json: no answer within 2.")


@pytest.mark.parametrize(("content", "error"), [(None, "FileNotFoundError: "), ("{", "JSONDecodeError: ")])
def test_no_index(tmp_path, content, error):
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    status, (message,) = measured(tmp_path / "index.json")
    assert status == "fail" and error in message
