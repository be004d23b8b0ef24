"""On which nodes missing ranks were to run: named only where the launcher's variables leave no other."""

from collections.abc import Mapping

import pytest

from preflight.engine import rank_layout
from preflight.engine.rank_layout import Seat, nodes_of_missing
from preflight.sdk import slurm

STEP = {
    "SLURM_JOB_NODELIST": "gpu[01-04]", "SLURM_STEP_NODELIST": "gpu[01-04]", "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
}  # fmt: skip
AGENTS = {**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
"""srun of torchrun: a task a node, which starts two ranks."""
DAEMONS = {"SLURM_JOB_NODELIST": "gpu[01-04]", "SLURM_STEP_NODELIST": "gpu02"}
"""mpirun's ranks may see the daemon's step, or the job's list only."""


def seats(
    *ranks: int, size: int = 2, names: str = "gpu0{}", order: str = "block", local: bool = True
) -> dict[int, Seat]:
    found = {}
    for rank in ranks:
        place, at = divmod(rank, size) if order == "block" else (rank % 4, rank // 4)
        found[rank] = Seat(names.format(place + 1), at, size) if local else Seat(names.format(place + 1))
    return found


def nodes(launcher: str, environ: Mapping[str, str], came: Mapping[int, Seat], world: int = 8) -> dict[str, list[int]]:
    return nodes_of_missing(rank_layout.from_environ(launcher, environ, 0), world, came)


def test_slurms_tasks_say_it() -> None:
    came = seats(0, 1, 2, 5, 6, 7, local=False)
    assert nodes("slurm", STEP, came) == {"gpu02": [3], "gpu03": [4]}
    assert nodes("env", {**STEP, "WORLD_SIZE": "8"}, came) == {"gpu02": [3], "gpu03": [4]}
    uneven = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1,3,2(x2)"}
    assert nodes("slurm", uneven, {0: Seat("gpu01"), 1: Seat("gpu02"), 4: Seat("gpu03"), 6: Seat("gpu04")}) == {
        "gpu02": [2, 3], "gpu03": [5], "gpu04": [7],
    }  # fmt: skip


def test_slurms_other_distributions() -> None:
    cyclic = {**STEP, "SLURM_DISTRIBUTION": "cyclic:cyclic"}
    came = seats(0, 1, 2, 4, 5, 6, order="cyclic", local=False)
    assert nodes("slurm", cyclic, came) == {"gpu04": [3, 7]}
    for unknown in ("plane=2", "arbitrary"):
        assert nodes("slurm", {**STEP, "SLURM_DISTRIBUTION": unknown}, seats(0, 1, local=False)) == {}


def test_ranks_that_are_elsewhere_than_slurm_says_refute_it() -> None:
    assert nodes("slurm", STEP, {0: Seat("gpu01"), 1: Seat("gpu02")}) == {}
    assert nodes("slurm", STEP, {**seats(0, 1, local=False), 2: Seat("x")}) == {}


@pytest.mark.parametrize("launcher", ["torchrun", "mpi", "env"])
def test_ranks_beside_those_that_came(launcher: str) -> None:
    assert nodes(launcher, {}, seats(0, 1, 2, 4, 5, 6, 7)) == {"gpu02": [3]}


def test_a_gap_in_a_nodes_ranks_is_believed_of_torchrun_alone() -> None:
    """mpirun --map-by node numbers them round the nodes, and one rank of each does not show that."""
    assert nodes("torchrun", {}, seats(0, 2)) == {"gpu01": [1], "gpu02": [3]}
    assert nodes("mpi", {}, seats(0, 2)) == {}
    assert nodes("mpi", {}, seats(0, 1, 4, order="cyclic")) == {}
    assert nodes("torchrun", {}, seats(0, 1, 4, order="cyclic")) == {}


def test_a_whole_node_by_the_order_of_the_schedulers_list() -> None:
    assert nodes("torchrun", AGENTS, seats(0, 1, 4, 5, 7)) == {"gpu02": [2, 3], "gpu04": [6]}
    assert nodes("torchrun", AGENTS, seats(0, 1, 4, 5, 6, 7, names="gpu0{}.cluster")) == {"gpu02": [2, 3]}
    assert nodes("mpi", DAEMONS, seats(0, 1, 2, 3)) == {"gpu03": [4, 5], "gpu04": [6, 7]}


def test_a_single_whole_node_also_where_agents_came_in_another_order() -> None:
    """torchrun's c10d rendezvous numbers agents as it likes."""
    mixed = {rank: Seat(node, rank % 2, 2) for node, ranks in (("gpu03", (0, 1)), ("gpu01", (2, 3)), ("gpu04", (6, 7)))
             for rank in ranks}  # fmt: skip
    assert nodes("torchrun", AGENTS, mixed) == {"gpu02": [4, 5]}
    del mixed[6], mixed[7]
    assert nodes("torchrun", AGENTS, mixed) == {}


def test_a_list_of_another_size_says_nothing() -> None:
    assert nodes("torchrun", {"SLURM_JOB_NODELIST": "gpu[01-09]"}, seats(0, 1, 2, 3)) == {}
    assert nodes("torchrun", {"SLURM_JOB_NODELIST": "gpu[01-0"}, seats(0, 1, 2, 3)) == {}
    assert nodes("env", {}, seats(0, 1, local=False)) == {}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu[007-009,12],x1", ["gpu007", "gpu008", "gpu009", "gpu12", "x1"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("host-a,host-b", ["host-a", "host-b"]),
        ("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
        ("", []),
        ("gpu[1-", []),
        ("gpu[1-999999999]", ["gpu1-999999999"]),
        ("a[0-9999][0-9999]", []),
    ],
)
def test_a_node_list(text: str, hosts: list[str]) -> None:
    assert slurm.hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "tasks"), [("2(x3),1", [2, 2, 2, 1]), ("8", [8]), ("", []), ("2(x", []), ("2(x999999)", [])]
)
def test_tasks_per_node(text: str, tasks: list[int]) -> None:
    assert slurm.tasks_per_node(text) == tasks


def test_a_local_size_that_cannot_be_costs_no_time() -> None:
    seats = {rank: Seat("a", rank, 10**9) for rank in range(3)}
    assert nodes_of_missing(rank_layout.RankLayout("torchrun"), 4, seats) == {"a": [3]}
