"""Which nodes env.launch knows to belong together, and that what a rack or all nodes behind a switch have is one
finding."""

import os
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Context, Group, Run
from preflight.checks.env import launch
from preflight.checks.env.launch import node_groups
from preflight.core.job import Job, Node
from preflight.planning import registry
from preflight.results import rejudge, report_files
from tests import made
from tests.faults import ELSEWHERE
from tests.nodes import run_nodes

pytestmark = pytest.mark.process
GROUPS = """
# name      where
node-0      rack=7 room=b   # the first
node-1.cluster.example rack=7 room=b
node-2      rack=8 room=b
gpu-17      rack=9
"""


class Page:
    def doing(self, what: str, where: object) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


def measured(path: Path, job: Job | None = None) -> dict[int, Any]:
    """By all ranks of three nodes; only the first reads the file."""

    def nothing() -> Any:
        raise AssertionError("it needs no group, and no store")

    on, options = job or made.job(1, 1, 1), {node_groups.GROUPS: str(path)}
    members = tuple(range(on.world_size))
    return {
        rank: launch.measure(
            Context("env.launch", on, rank, 0, members, {}, 20.0, Page(), nothing, nothing, None, options)
        )
        for rank in members
    }


def groups(facts: dict[int, Any], job: Job) -> list[Group]:
    return list(launch.groups(facts, Run(job, tuple(facts), {})))


def found(facts: dict[int, Any], row: str) -> str:
    (finding,) = testing.judge(launch, facts, nodes={f"node-{rank}": [rank] for rank in facts})
    assert ELSEWHERE[row].is_told_by([finding]) and finding["where"] == {}, finding
    return str(finding["message"])


def test_a_file_says_which_nodes_belong_together(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text(GROUPS)
    facts = measured(tmp_path / "groups")
    assert groups(facts, made.job(1, 1, 1)) == [
        Group("rack 7", ("node-0", "node-1")), Group("room b", ("node-0", "node-1", "node-2")),
        Group("rack 8", ("node-2",)),
    ]  # fmt: skip
    assert testing.judge(launch, facts, nodes={f"node-{rank}": [rank] for rank in facts}) == []
    assert "listed" not in facts[1]


def test_nodes_of_one_host_and_full_names_are_found(tmp_path: Path) -> None:
    names = ("gpu-1#0", "gpu-1#1", "gpu-2.cluster.example")
    job = Job("env", 3, "gloo", tuple(Node(name, number, (number,)) for number, name in enumerate(names)))
    (tmp_path / "groups").write_text("gpu-1 rack=1\ngpu-2 rack=2\ngpu-1#1 slot=2\n")
    assert groups(measured(tmp_path / "groups", job), job) == [
        Group("rack 1", names[:2]), Group("rack 2", names[2:]), Group("slot 2", names[1:2]),
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["node-1 rack7", "node-1 =7", "node-1 rack="])
def test_a_line_that_cannot_be_understood_is_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "groups").write_text(f"node-0 rack=7\n{line}\n")
    facts = measured(tmp_path / "groups")
    assert f"line 2 has {line.split()[1]!r}, expected words like rack=7" in found(facts, "bad_groups")
    assert groups(facts, made.job(1, 1, 1)) == []


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "it cannot be read (No such file or directory)" in found(measured(tmp_path / "none"), "bad_groups")
    assert "it cannot be read (Is a directory)" in found(measured(tmp_path), "bad_groups")
    assert "no group for 3 of 3 nodes" in found(measured(Path("/dev/zero")), "few_groups")


def test_a_file_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_groups, "READ_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    assert "it cannot be read (no answer within 0.2 s)" in found(measured(tmp_path / "pipe"), "bad_groups")


def test_nodes_that_the_file_does_not_have_are_told(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("node-0 rack=7\nnode-1\n")
    assert "no group for 2 of 3 nodes (node-1, node-2)" in found(measured(tmp_path / "groups"), "few_groups")


def test_what_a_rack_has_and_what_all_nodes_behind_a_switch_have_is_one_finding_each(tmp_path: Path) -> None:
    """OMP_NUM_THREADS on both nodes of a rack, an NCCL variable on both behind a switch of Slurm's."""
    (tmp_path / "groups").write_text("".join(f"node-{number} rack={number // 3 + 7}\n" for number in (1, 2, 3, 4, 0)))
    behind = {"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    own = {rank: {**behind, "SLURM_TOPOLOGY_ADDR": f"spine.leaf-{rank // 3}.node-{rank}"} for rank in range(5)}
    own[0]["SLURM_TOPOLOGY_ADDR"] = "spine.leaf-9.node-0"
    for rank in (1, 2):
        own[rank]["NCCL_CROSS_NIC"] = "1"
    for rank in (3, 4):
        own[rank]["OMP_NUM_THREADS"] = "3"
    file = f"env.launch.groups={tmp_path / 'groups'}"
    finished = run_nodes(tmp_path, 5, "--only", "env.launch,env.variables", "--set", file, own=own)
    rows = [ELSEWHERE["variable_of_a_switch"], ELSEWHERE["variable_of_a_rack"]]
    told = finished.findings()
    assert len(told) == 2 and all(row.is_told_by([each]) for row, each in zip(rows, told, strict=True)), finished.told()
    assert [each["ranks"] for each in told] == ["1-2", "3-4"], finished.told()
    assert (tmp_path / "bad_nodes.txt").read_text().split() == ["node-1", "node-2"]
    assert "FAIL  switch leaf-0 (2 nodes), ranks 1-2, variable NCCL_CROSS_NIC" in finished.output, finished.told()
    assert finished.left_over == [], finished.told()
    saved, path = report_files.load(str(tmp_path))
    again = rejudge.judge_again(saved, report_files.facts_beside(path), registry.sources(), {})
    assert again.checks == saved.checks, "preflight show --judge finds the same groups"
