import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.env import launch
from preflight.checks.env.launch import Facts, places
from preflight.planning import registry
from tests import drawn, made, running
from tests.faults import ELSEWHERE

PORT = "29500"


def by_torchrun(*sizes: int) -> dict[int, Facts]:
    """A node for each size."""
    world = sum(sizes)
    facts: dict[int, Facts] = {}
    for size in sizes:
        for local_rank in range(size):
            rank = len(facts)
            facts[rank] = {
                "environ": {
                    "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local_rank),
                    "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "node-0", "MASTER_PORT": PORT,
                },
                "local_rank": local_rank,
            }  # fmt: skip
    return facts


def by_srun(world: int, *, sets_local_rank: bool = False) -> dict[int, Facts]:
    """`srun --gpus-per-task=1`: each rank sees its own GPU as number 0."""
    environ = {"CUDA_VISIBLE_DEVICES": "0", **({"LOCAL_RANK": "0"} if sets_local_rank else {})}
    return {rank: {"environ": environ, "local_rank": rank % 8} for rank in range(world)}


def by_hand(world: int) -> dict[int, Facts]:
    """Without LOCAL_RANK: preflight has counted off."""
    environ = {"RANK": "0", "WORLD_SIZE": str(world)}
    return {rank: {"environ": {**environ, "RANK": str(rank)}, "local_rank": rank % 2} for rank in range(world)}


def dealt_out(nodes: int, each: int) -> dict[int, Facts]:
    """`mpirun --map-by node`: rank r is on node r % nodes."""
    world = nodes * each
    return {
        rank: {"environ": {"RANK": str(rank), "WORLD_SIZE": str(world)}, "local_rank": rank // nodes}
        for rank in range(world)
    }


def dealt(nodes: int, each: int) -> dict[str, range]:
    return {f"node-{number}": range(number, nodes * each, nodes) for number in range(nodes)}


def on_nodes(*sizes: int) -> dict[str, range]:
    return {f"node-{number}": range(sum(sizes[:number]), sum(sizes[: number + 1])) for number in range(len(sizes))}


def changed(facts: dict[int, Facts], rank: int, **environ: str | None) -> dict[int, Facts]:
    """The same, but one rank has other variables, or lacks them."""
    others = {**facts[rank]["environ"], **environ}
    kept = {name: value for name, value in others.items() if value is not None}
    return {**facts, rank: {**facts[rank], "environ": kept}}


@pytest.mark.parametrize(
    ("facts", "sizes"),
    [
        (by_torchrun(1), (1,)),
        (by_torchrun(2), (2,)),
        (by_torchrun(8), (8,)),
        (by_torchrun(8, 8), (8, 8)),
        (by_torchrun(*[8] * 128), (8,) * 128),
        (by_srun(8), (8,)),
        (by_srun(16, sets_local_rank=True), (8, 8)),
        (by_hand(8), (1,) * 8),
        (dealt_out(4, 1), (1,) * 4),
    ],
    ids=["1", "2", "8", "2 nodes", "1,024", "srun", "srun with LOCAL_RANK", "a rank a node by hand", "and by mpirun"],
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_sound_launch_gives_no_finding(facts: dict[int, Facts], sizes: tuple[int, ...], backend: str) -> None:
    assert testing.judge(launch, facts, nodes=on_nodes(*sizes), backend=backend) == []


def test_two_ranks_with_one_between_are_split() -> None:
    assert places.is_split(Node("node-0", 0, (0, 2))) and not places.is_split(Node("node-0", 0, (1, 2)))


def stranger(why: str, rank: int | None = 1, **more: object) -> dict[int, dict[str, object]]:
    about: dict[str, object] = {"why": why, "node": "node-9", "rank": rank, "pid": 77, "environ": {}, "problems": []}
    return {5: {**about, **more}}


@dataclass
class Fault:
    finds: str
    facts: dict[int, Facts]
    culprit: Mapping[str, Any]
    says: str
    sizes: tuple[int, ...] = (2, 2)
    backend: str = "nccl"
    strangers: dict[int, dict[str, object]] = field(default_factory=dict)
    nodes: Mapping[str, Iterable[int]] | None = None


SOUND = by_torchrun(2, 2)
FAULTS = [
    Fault("fail invalid", SOUND, {"node": "node-9", "variable": "RANK"}, "RANK is 'x' for process 77 on node-9",
          strangers=stranger("invalid", None, problems=[["RANK", "is 'x'"]])),
    Fault("fail duplicate_rank", SOUND, {"node": "node-9", "rank": 3, "variable": "RANK", "peer_node": "node-1"},
          "joined with RANK 3, which a process on node-1 already has", strangers=stranger("duplicate", 3)),
    Fault("fail rank_out_of_range", SOUND, {"node": "node-9", "rank": 4, "variable": "RANK"},
          "has RANK 4, expected below WORLD_SIZE 4", strangers=stranger("outside", 4)),
    Fault("fail late", SOUND, {"node": "node-9", "rank": 1}, "joined as rank 1 after the run had started without it",
          strangers=stranger("late")),
    Fault("info differs", changed(SOUND, 2, MASTER_ADDR="localhost"), {"variable": "MASTER_ADDR"},
          "MASTER_ADDR is 'node-0' on ranks 0-1,3, 'localhost' on rank 2, expected one spelling"),
    Fault("fail differs", changed(SOUND, 1, WORLD_SIZE="2"), {"node": "node-0", "rank": 1, "variable": "WORLD_SIZE"},
          "WORLD_SIZE is 2, expected 4 as on 3 of 4 ranks"),
    Fault("fail local_rank_taken", changed(SOUND, 3, LOCAL_RANK="0"),
          {"node": "node-1", "rank": 3, "variable": "LOCAL_RANK", "peer_rank": 2},
          "LOCAL_RANK is 0, which rank 2 on this node has, too"),
    Fault("fail local_world_size", changed(SOUND, 2, LOCAL_WORLD_SIZE="4"),
          {"node": "node-1", "rank": 2, "variable": "LOCAL_WORLD_SIZE"},
          "LOCAL_WORLD_SIZE is 4, expected 2, the ranks on this node"),
    Fault("warn uneven", by_torchrun(2, 1, 2), {"node": "node-1"}, "1 rank, expected 2 as on most nodes",
          sizes=(2, 1, 2)),
    Fault("warn not_grouped", dealt_out(2, 3), {}, "ranks are distributed round-robin over 2 nodes: node-0 has 0,2,4, "
          "node-1 has 1,3,5; expected consecutive ranks on each node", nodes=dealt(2, 3), backend="gloo"),
    Fault("warn not_grouped", dealt_out(128, 64), {}, "over 128 nodes: node-0 has 0,128,256,384,512,640,"
          "768,896,1024,1152,..., node-1 has 1,129,", nodes=dealt(128, 64), backend="gloo"),
    Fault("warn not_grouped", {rank: {"environ": {}, "local_rank": 0} for rank in range(9)}, {},
          "3 of 3 nodes have other nodes' ranks between their own: node-0 has 0-1,5, node-1 has 2,4,7, ...; expected",
          nodes={"node-0": (0, 1, 5), "node-1": (2, 4, 7), "node-2": (3, 6, 8)}, backend="gloo"),
    Fault("info no_local_rank", by_hand(4), {"variable": "LOCAL_RANK"},
          "LOCAL_RANK is not set on ranks 0-3, expected 0, 1, ... on each node"),
    Fault("info no_local_rank", changed(by_hand(4), 2, CUDA_VISIBLE_DEVICES="1"), {"variable": "LOCAL_RANK"},
          "LOCAL_RANK is not set on ranks 0-1,3, expected"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.finds}: {fault.says[:20]}")
def test_the_culprit_is_named(fault: Fault) -> None:
    reads = {launch.STRANGERS: fault.strangers}
    nodes = fault.nodes or on_nodes(*fault.sizes)
    found = testing.judge(launch, fault.facts, nodes=nodes, backend=fault.backend, reads=reads)
    severity, slug = fault.finds.split()
    assert [(finding["severity"], finding["code"], finding["where"]) for finding in found] == [
        (severity, f"env.launch.{slug}", fault.culprit)
    ]
    assert fault.says in found[0]["message"]
    assert "{" not in found[0]["fix"]


def test_every_code_has_a_fault() -> None:
    """Here, below by real ranks, in test_node_groups.py or in test_cores.py."""
    slugs = {fault.finds.split()[1] for fault in FAULTS} | {"single_process", "bad_groups"}
    slugs |= {"shared_cores", "few_cores"}
    assert slugs == set(registry.load(registry.sources()["env.launch"]).codes)


@pytest.mark.parametrize(("variable", "value"), [("WORLD_SIZE", "04"), ("WORLD_SIZE", " 4"), ("MASTER_PORT", "029500")])
def test_one_number_may_be_written_in_several_ways(variable: str, value: str) -> None:
    assert testing.judge(launch, changed(SOUND, 2, **{variable: value}), nodes=on_nodes(2, 2)) == []


def test_a_jobs_id_is_no_world_size() -> None:
    found = testing.judge(launch, changed(SOUND, 3, WORLD_SIZE="12345678"), nodes=on_nodes(2, 2))
    assert ("env.launch.invalid", 3) in [(finding["code"], finding["where"]["rank"]) for finding in found]
    assert "to 1,000,000" in found[0]["message"]


def test_the_world_size_is_rank_0s_also_where_most_say_otherwise() -> None:
    others = changed(changed(SOUND, 2, WORLD_SIZE="8"), 3, WORLD_SIZE="8")
    found = testing.judge(launch, changed(others, 1, WORLD_SIZE="8"), nodes=on_nodes(2, 2))
    assert [finding["where"]["rank"] for finding in found] == [1, 2, 3]
    assert found[0]["message"] == "WORLD_SIZE is 8, expected 4 as on 1 of 4 ranks"


def test_while_ranks_are_missing_the_sizes_of_nodes_are_not_judged() -> None:
    facts = {rank: environ for rank, environ in by_torchrun(2, 2).items() if rank != 2}
    found = testing.judge(launch, facts, nodes={"node-0": (0, 1), "node-1": (3,)})
    assert found == []


def test_a_stranger_is_judged_also_where_nobody_measured() -> None:
    found = testing.judge(launch, {}, nodes=on_nodes(2), reads={launch.STRANGERS: stranger("late")})
    assert [finding["code"] for finding in found] == ["env.launch.late"]


@pytest.mark.parametrize(
    ("facts", "sizes", "summary"),
    [
        (by_torchrun(1), (1,), "1 rank on 1 node"),
        (by_torchrun(8, 8), (8, 8), "16 ranks on 2 nodes"),
    ],
)
def test_the_summary_counts(facts: dict[int, Facts], sizes: tuple[int, ...], summary: str) -> None:
    job = made.job(*sizes)
    assert launch.summarize(facts, Run(job, tuple(facts), {})) == summary


def table(facts: dict[int, Facts], nodes: Mapping[str, Iterable[int]], backend: str = "nccl") -> list[str]:
    placed = tuple(Node(name, number, tuple(ranks)) for number, (name, ranks) in enumerate(nodes.items()))
    title, *lines = drawn.lines(launch, facts, Run(Job("env", len(facts), backend, placed), tuple(facts), {}))
    assert title == "where the ranks are"
    return lines


def cells(facts: dict[int, Facts], nodes: Mapping[str, Iterable[int]], backend: str = "nccl") -> list[list[str]]:
    """Without the heading."""
    return [re.split(" {2,}", line) for line in table(facts, nodes, backend)[1:]]


def test_nodes_that_are_alike_are_one_line_of_the_table() -> None:
    assert table(by_torchrun(*[8] * 1024), on_nodes(*[8] * 1024)) == [
        "ranks  node                             local ranks  GPUs",
        "0-7    node-0 and 1,023 others like it  0-7          0-7",
    ]


def test_the_table_shows_what_is_odd() -> None:
    facts = by_torchrun(2, 2, 2, 2, 2, 1, 1)
    facts = changed(facts, 2, CUDA_VISIBLE_DEVICES="6,7")
    facts = changed(changed(facts, 4, CUDA_VISIBLE_DEVICES="1"), 5, CUDA_VISIBLE_DEVICES="1")
    facts = changed(changed(facts, 6, CUDA_VISIBLE_DEVICES="3"), 7, CUDA_VISIBLE_DEVICES="3,2")
    facts = changed(changed(facts, 8, CUDA_VISIBLE_DEVICES="GPU-a1"), 9, CUDA_VISIBLE_DEVICES="4,")
    del facts[3]
    assert cells(facts, on_nodes(2, 2, 2, 2, 2, 1, 1)) == [
        ["0-1", "node-0", "0-1", "0-1"],
        ["2-3", "node-1", "0,?", "6,?"],
        ["4-5", "node-2", "0-1", "1 each"],
        ["6-7", "node-3", "0-1", "3,2"],
        ["8-9", "node-4", "0-1", "UUID,none"],
        ["10", "node-5 and 1 other like it", "0", "0"],
    ]


def test_without_gpus_the_table_has_none_and_a_cyclic_one_stays_narrow() -> None:
    (row,) = cells(dealt_out(128, 64), dealt(128, 64), "gloo")
    assert row == ["0,128,256,384,512,640,768,896,1024,1152,...", "node-0 and 127 others like it", "0-63"]


def test_a_table_of_many_kinds_ends() -> None:
    lines = table(by_torchrun(*range(1, 31)), on_nodes(*range(1, 31)))
    assert len(lines) == 18 and lines[-1] == "14 nodes of 14 other kinds not shown"


def test_real_ranks_that_share_gpus_without_local_rank(tmp_path: Path) -> None:
    folders = (running.ROOT / "tests" / "nccl_at_work", running.ROOT, running.PLUGINS)
    ranks = running.plain_ranks(2, PYTHONPATH=os.pathsep.join(map(str, folders)), PREFLIGHT_TEST_NCCL=str(tmp_path))
    for rank in ranks:
        del rank["LOCAL_RANK"], rank["LOCAL_WORLD_SIZE"]
    finished = running.run_ranks(tmp_path, ranks, "--only", "env.launch")
    row = ELSEWHERE["no_local_rank"]
    assert row.is_told_by(finished.findings(finds=row.finds)), finished.told()
    assert finished.exit_codes == [0, 0], finished.told()


def test_one_process_of_accelerate_is_told_of_and_its_ranks_are_our_own(tmp_path: Path) -> None:
    paths = (running.ROOT, Path(sys.prefix, "wrappers"))
    env = running.environment(PYTHONPATH=os.pathsep.join(map(str, paths)))
    run = running.Run(tmp_path)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    run.start([*command, "-m", "preflight", "--only", "env.launch", "--report", str(tmp_path)], env)
    finished = run.finish()
    job, row = finished.report["job"], ELSEWHERE["single_process"]
    assert (job["launcher"], job["world_size"]) == ("own", 2) and "(its own ranks, gloo)" in finished.output
    assert row.is_told_by(finished.findings()) and row.says in finished.output, finished.told()
    assert finished.exit_codes == [0], finished.told()


def test_a_rank_alone_is_what_one_process_is_for() -> None:
    assert testing.judge(launch, {0: {**by_torchrun(1)[0], "accelerate": "ACCELERATE_USE_CPU"}}) == []
