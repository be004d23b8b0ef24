"""The picture that gpu.topology draws, of made-up facts."""

import pytest

from preflight.checks.gpu.topology import paths
from tests.checks.gpu import made_gpus
from tests.checks.gpu.made_topology import by_srun, device, drawn, no_p2p, put_apart, take_nic, wired


def test_the_matrix_has_a_row_a_device() -> None:
    lines = drawn(*wired(4), 4)
    cells = [line.split() for line in lines]
    assert lines[0] == "node-0: NVSwitch (4 GPUs, 18 links each)"
    assert cells[1] == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1", "NIC2", "NIC3", "CPU", "affinity", "NUMA"]
    assert cells[2] == ["GPU0", "X", "NV18", "NV18", "NV18", "PIX", "NODE", "SYS", "SYS", "0-55", "0"]
    assert cells[9] == ["NIC3", "SYS", "SYS", "NODE", "PIX", "SYS", "SYS", "NODE", "X", "1"]
    assert "NIC0: mlx5_0  NIC1: mlx5_1  NIC2: mlx5_2  NIC3: mlx5_3" in lines


def test_alike_nodes_share_a_matrix_and_what_is_wrong_is_marked() -> None:
    facts, links = wired(8, 8, 8)
    no_p2p(facts, links)
    put_apart(facts, links)
    take_nic(facts, links)
    lines = drawn(facts, links, 8, 8, 8)
    assert [line for line in lines if line.startswith("node-")] == [
        "node-0 and 1 other like it: NVSwitch (8 GPUs, 18 links each)", "node-1: NVSwitch (8 GPUs, 18 links each)",
    ]  # fmt: skip
    rows = [line.split() for line in lines if line.startswith(("GPU", "NIC"))]
    marked = [(row[0], cell) for row in rows for cell in row if cell.endswith("!")]
    farther = [(f"GPU{gpu}", "SYS!") for gpu in (0, 1, 2, 3, 3, 3)]
    assert sorted(marked) == sorted(
        [("GPU2", "NV18!"), ("GPU5", "NV18!"), ("GPU6", "NODE!"), ("NIC4", "NODE!"), *farther]
    )
    assert all(len(line) <= 114 for line in lines), max(lines, key=len)


def test_one_gpu_without_a_nic_is_not_drawn() -> None:
    facts, links = wired(1)
    facts[0]["nics"] = {}
    assert drawn(facts, links, 1) == []


def test_ranks_that_see_one_gpu_each_are_drawn_as_one_node() -> None:
    """Each calls its own number 0; the bus has them in the other order."""
    facts, links = wired(8)
    by_srun(facts, links)
    inventory = made_gpus.inventory(8)
    for rank, seen in inventory.items():
        seen["seen"]["gpus"] = {"0": {**seen["seen"]["gpus"][str(rank)], "bus": f"0000:{23 - rank:02x}:00.0"}}
    lines = drawn(facts, links, 8, inventory=inventory)
    assert [line.split()[1:4] for line in lines[2:4]] == [["X", "NV18", "NV18"], ["NV18", "X", "NV18"]]
    assert [line.split()[9] for line in lines[2:4]] == ["PIX", "NODE"]


def test_the_nics_that_fit_are_the_nearest() -> None:
    facts, links = wired(8)
    near = facts[0]["nics"]
    facts[0]["nics"] = {f"far_{number}": device(40 + number, 0, 80) for number in range(8)} | near
    lines = drawn(facts, links, 8)
    assert all(len(line) <= 114 for line in lines)
    shown = [word for line in lines if "GPU0  GPU1" in line or "NUMA" in line for word in line.split()]
    assert [word for word in shown if word.startswith("NIC")] == ["NIC0", *(f"NIC{number}" for number in range(8, 16))]
    assert "(7 farther from the GPUs not shown)" in " ".join(lines)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ([[1], [0], [3], [2]], "NVLink bridges (4 GPUs, 2 links per pair)"),
        ([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]], "NVLink, all to all (4 GPUs, 2 links per pair)"),
        ([[1, 2], [0, 3], [0, 3], [1, 2]], "cube mesh (4 GPUs, 4 links each)"),
        ([[], [], [], []], "PCIe (4 GPUs)"),
    ],
    ids=["bridges", "all", "mesh", "pcie"],
)
def test_the_kind_of_node_is_named(mesh: list[list[int]], said: str) -> None:
    facts, links = wired(4)
    for gpu, others in enumerate(mesh):
        links[0]["look"]["gpus"][f"GPU-0-{gpu}"]["links"] = [
            {"active": True, "remote": f"0000:{16 + other:02x}:00.0", "remote_type": "gpu"} for other in [*others] * 2
        ]
    assert drawn(facts, links, 4)[0] == f"node-0: {said}"


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [
        ("a b c d e", "a b c f g", "PIX"),
        ("a b c", "a b d", "PIX"),
        ("a b c d e f g", "a b c h i", "PXB"),
        ("a b c d e", "a b f g", "PXB"),
        ("a b c", "a d e", "PHB"),
        ("a b c", "h d e", "NODE"),
    ],
)
def test_two_paths_have_a_word(one: str, other: str, word: str) -> None:
    assert paths.nearness(tuple(one.split()), tuple(other.split()), True) == word
    assert paths.nearness(tuple(one.split()), tuple(other.split()), False) == word.replace("NODE", "SYS")
