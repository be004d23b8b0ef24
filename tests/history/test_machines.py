"""Nodes of a history are known by their machine ids: hosts that are renamed, that swap names, and that have no id."""

import gzip
import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight.core.job import Job, Node
from preflight.engine.machine_id import OF_A_DISK
from preflight.history import archive, expected, machines, questions
from preflight.history.run_entry import RunEntry
from tests import made
from tests.history.made import entry, figure, finding, started
from tests.history.told import dispatched
from tests.nodes import run_nodes

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
READ = ("gpu.compute", "read", "GB/s")


def _run(number: int, ids: Mapping[str, str], *bad: str, speeds: Mapping[str, float] | None = None) -> RunEntry:
    """A run on these nodes, of these ids ("" is none), in which a failure named the bad ones."""
    known = {node: id_ for node, id_ in ids.items() if id_}
    kept = entry(number, tuple(ids), findings=[finding("gpu.health.ecc", node) for node in bad], machines=known)
    return replace(kept, figures=[figure(READ, 1.0, speeds)]) if speeds else kept


def _asked(path: Path, *entries: RunEntry) -> dict[str, Any]:
    for each in entries:
        archive.write(str(path), each, 36500.0)
    with archive.reading(str(path)) as database:
        return questions.answers(database).to_json()


def _failing(found: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(failed, runs) by node."""
    return {node["node"]: (node["failed"], node["runs"]) for node in found["failing"]}


def test_a_renamed_host_goes_on_under_its_new_name_and_says_so(path: Path) -> None:
    runs = [_run(n, {"old": A, "beside": B}, *["old"] * (n == 0)) for n in range(3)]
    runs += [_run(n, {"new": A, "beside": B}, *["new"] * (n == 4)) for n in range(3, 6)]
    found = _asked(path, *runs)
    assert _failing(found) == {"new": (2, 6)}
    assert found["renamed"] == [{"node": "new", "earlier": "old", "until": started(3)}]
    assert _asked(path, _run(6, {"old": A}))["renamed"][0]["earlier"] == "new", "and back"


def test_two_hosts_that_swapped_names_do_not_swap_histories(path: Path) -> None:
    runs = [_run(n, {"x": A, "y": B}, *["x"] * (n == 0), speeds={"x": 50.0, "y": 100.0}) for n in range(9)]
    runs += [_run(n, {"x": B, "y": A}, *["y"] * (n == 12), speeds={"x": 100.0, "y": 50.0}) for n in range(9, 18)]
    found = _asked(path, *runs)
    assert _failing(found) == {"y": (2, 18)}
    assert [(host["node"], host["earlier"]) for host in found["renamed"]] == [("x", "y"), ("y", "x")]
    assert found["steps"] == [], "neither became slower"


def test_a_node_is_held_beside_its_own_machine_after_a_swap(path: Path) -> None:
    for number in range(3):
        archive.write(str(path), _run(number, {"x": A, "y": B}, speeds={"x": 50.0, "y": 100.0}), 36500.0)
    with archive.reading(str(path)) as database:
        swapped = _run(9, {"x": B, "y": A}, speeds={"x": 100.0, "y": 50.0})
        assert [found.severity for found in expected.findings(database, swapped)] == ["info"]
        swapped = _run(9, {"x": B, "y": A}, speeds={"x": 50.0, "y": 50.0})
        slow, _ = expected.findings(database, swapped)
        assert slow.where == {"node": "x"} and "is 50% of 100" in slow.message
        new = _run(9, {"x": C, "y": B}, speeds={"x": 1.0, "y": 100.0})
        assert [found.severity for found in expected.findings(database, new)] == ["info"], "nothing is known of it"


def test_nodes_of_one_image_are_known_by_their_names_then_and_later(path: Path) -> None:
    runs = [_run(n, {"x": A, "y": A}, *["x"] * (n in (0, 2))) for n in range(4)]
    runs += [_run(n, {node: A}, *[node] * (node == "x")) for n, node in enumerate(("y", "x", "z"), 4)]
    found = _asked(path, *runs)
    assert _failing(found) == {"x": (3, 5)} and found["renamed"] == []


def test_a_node_whose_id_is_missing_is_known_by_its_name(path: Path) -> None:
    """Runs of an earlier version have none; a container of the same host may have none."""
    earlier = _run(0, {"x": "", "y": ""}, "x").to_json()
    del earlier["machines"]
    runs = [_run(n, {"x": "" if n % 2 else A, "y": ""}, *["x"] * (n == 3)) for n in range(1, 5)]
    found = _asked(path, RunEntry.from_json(earlier), *runs)
    assert _failing(found) == {"x": (2, 5)} and found["renamed"] == []
    half = _asked(path, _run(5, {"z": A, "x": ""}), _run(6, {"z": A, "x": ""}, "z"))
    assert _failing(half) == {"z": (3, 7)}, "the name is another node's now"


def test_another_machine_of_the_same_name_has_no_part_in_its_history(path: Path) -> None:
    runs = [_run(n, {"x": A}, *["x"] * (n == 0)) for n in range(3)]
    runs += [_run(n, {"x": B}, *["x"] * (n == 4)) for n in range(3, 6)]
    found = _asked(path, *runs)
    assert found["failing"] == [] and found["renamed"] == []
    assert _failing(_asked(path, _run(6, {"z": A}, "z"))) == {"z": (2, 4)}


def test_nodes_that_share_a_host_name_are_not_told_as_renamed(path: Path) -> None:
    found = _asked(path, _run(0, {"pod#0": A, "pod#1": B}, "pod#0"), _run(1, {"pod#0": B, "pod#1": A}))
    assert found["renamed"] == [] and _failing(_asked(path, _run(2, {"pod#0": A}, "pod#0"))) == {"pod#0": (2, 3)}


def test_a_history_of_an_earlier_version_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "history"
    _asked(path, _run(0, {"x": ""}, "x"), _run(1, {"x": ""}))
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE machine")
    assert _asked(path)["runs"] == 2
    with archive.reading(str(path)) as database:
        assert machines.known(database, _run(2, {"x": A})).keys() == {"x"}
    assert _failing(_asked(path, _run(2, {"x": A}, "x"))) == {"x": (2, 3)}


def test_the_id_is_kept_in_a_report_and_one_without_is_read() -> None:
    job = Job("env", 1, "gloo", (Node("x", 0, (0,), (), A),))
    made.made_report(made.result(), on=job)  # valid by the schema
    assert Job.from_json(job.to_json()) == job
    earlier = job.to_json()
    del earlier["nodes"][0]["machine"]
    assert Job.from_json(earlier).nodes[0].machine == ""


def _disk(path: Path) -> str:
    mounts = [each for each in psutil.disk_partitions(all=True) if str(path).startswith(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
def test_real_runs_of_renamed_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if _disk(tmp_path) not in OF_A_DISK:
        pytest.skip("a container's /etc/machine-id is not trusted")
    (tmp_path / "history").mkdir()
    for number in range(2):
        (tmp_path / f"machine-{number}").write_text(f"{number + 1:032x}\n")
    for run, names in enumerate((("gpu-1", "gpu-2"), ("gpu-1b", "gpu-1"))):
        folder = tmp_path / f"run-{run}"
        folder.mkdir()
        finished = run_nodes(
            folder, 2, "--level", "quick", "--only", "env.software", "--history", str(tmp_path / "history"),
            own={n: {"SLURMD_NODENAME": name} for n, name in enumerate(names)},
            before={n: f"mount --bind {tmp_path}/machine-{n} /etc/machine-id" for n in range(2)},
        )  # fmt: skip
        assert finished.exit_codes == [0, 0], finished.told()
    ids = [node["machine"] for node in finished.report["job"]["nodes"]]
    assert len(set(ids)) == 2 and all(len(id_) == 32 and not id_.startswith("0000") for id_ in ids)
    found, screen = dispatched(capsys, "history", str(tmp_path / "history"))
    assert [(host["node"], host["earlier"]) for host in found["renamed"]] == [("gpu-1", "gpu-2"), ("gpu-1b", "gpu-1")]
    assert "gpu-1b: was gpu-1 until " in screen
    kept = [json.loads(gzip.decompress(file.read_bytes())) for file in sorted((tmp_path / "history").iterdir())]
    assert {machine: node for node, machine in kept[0]["machines"].items()}[ids[0]] == "gpu-1"
