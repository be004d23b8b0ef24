"""Judging on made-up facts; real runs stand in test_gpu_faults.py, and one below."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.gpu import topology
from preflight.checks.gpu.topology import topo_facts
from tests.checks.gpu import in_machine, made_gpus
from tests.checks.gpu.made_gpus import on_nodes
from tests.checks.gpu.made_topology import (
    Facts,
    apart,
    by_srun,
    device,
    drawn,
    no_p2p,
    peer,
    put_apart,
    take_nic,
    unlink,
    wired,
)
from tests.faults import gpu_topology
from tests.large import timed
from tests.standin import machines

ROWS = {fault.name: fault for fault in gpu_topology.ELSEWHERE}


def judged(facts: Facts, links: Facts, *sizes: int, backend: str = "nccl") -> list[dict[str, Any]]:
    reads = {"gpu.inventory": made_gpus.inventory(*sizes), "gpu.nvlink": links}
    return testing.judge(topology, facts, nodes=on_nodes(*sizes), backend=backend, reads=reads)


@pytest.mark.parametrize("sizes", [(1,), (8,), (8, 8), (8, 4), (4, 4, 4)], ids=str)
def test_sound_nodes_give_no_finding(sizes: tuple[int, ...]) -> None:
    assert judged(*wired(*sizes), *sizes) == []
    facts, links = wired(*sizes)
    unlink(links)
    assert judged(facts, links, *sizes) == []


def _hide(facts: Facts, links: Facts) -> None:
    """A virtual machine: all is one host bridge, no NUMA node is named, no NIC is there."""
    unlink(links)
    for of_rank in facts.values():
        of_rank["nics"] = {}
        for known in of_rank["gpus"].values():
            known |= {"path": ["pci0000:00", known["path"][-1]], "numa": -1}
        for place in of_rank["look"]["gpus"].values():
            place["cpus"] = list(range(112))
            for other in place["peers"].values():
                other |= {"ancestor": 30, "read": 1, "write": 1, "nvlink": 5}


def _bind(facts: Facts, links: Facts) -> None:
    """Each rank to the CPUs of its socket."""
    for rank, of_rank in facts.items():
        of_rank |= {"cpus": "0-55" if rank < 4 else "56-111", "bound": True}


def _nothing_told(facts: Facts, links: Facts) -> None:
    """NVML does not tell, and sysfs is not there."""
    unlink(links)
    for of_rank in facts.values():
        of_rank |= {"gpus": {}, "nics": {}}
        for place in of_rank["look"]["gpus"].values():
            place |= {"cpus": None, "memory_nodes": None}
            for other in place["peers"].values():
                other |= dict.fromkeys(other)


def _lone_pair_without_links(facts: Facts, links: Facts) -> None:
    """No P2P across the sockets is normal where all pairs across have none."""
    unlink(links)
    for place in facts[0]["look"]["gpus"].values():
        for other in place["peers"].values():
            other |= {"read": 3, "write": 3} if other["ancestor"] == 50 else {}


def _fewer_cpus(facts: Facts, links: Facts) -> None:
    """The process may use all CPUs that are online, and those near the last GPUs are not."""
    for of_rank in facts.values():
        of_rank["cpus"] = "0-55"


def _half_the_nics(facts: Facts, links: Facts) -> None:
    """A server with a NIC for some of its GPUs."""
    facts[0]["nics"] = {name: facts[0]["nics"][name] for name in ("mlx5_0", "mlx5_1", "mlx5_2")}


NORMAL = (_hide, _bind, _nothing_told, _lone_pair_without_links, _fewer_cpus, _half_the_nics, by_srun)


@pytest.mark.parametrize("change", NORMAL, ids=lambda c: c.__name__)
def test_what_is_normal_gives_no_finding(change: Callable[[Facts, Facts], None]) -> None:
    facts, links = wired(8)
    change(facts, links)
    assert judged(facts, links, 8) == []
    assert all(len(line) <= 114 for line in drawn(facts, links, 8))


def _no_p2p_of_one(facts: Facts, links: Facts) -> None:
    for other in (0, 1, 2, 4, 5, 6, 7):
        apart(facts, 8, "GPU-1-3", f"GPU-1-{other}", read=1, write=1)


def _no_p2p_at_all(facts: Facts, links: Facts) -> None:
    for number in range(8):
        for other in range(number):
            apart(facts, 8, f"GPU-1-{number}", f"GPU-1-{other}", read=4, write=4)


def _no_p2p_without_links(facts: Facts, links: Facts) -> None:
    unlink(links)
    apart(facts, 8, "GPU-1-0", "GPU-1-1", read=1, write=1)


def _one_way(facts: Facts, links: Facts) -> None:
    peer(facts, 8, "GPU-1-6", "GPU-1-4")["write"] = 1


def _past_nvlink(facts: Facts, links: Facts) -> None:
    apart(facts, 8, "GPU-1-0", "GPU-1-7", nvlink=5)


def _without_nics(facts: Facts, links: Facts) -> None:
    facts[8]["nics"] = {}


def _bound_far(facts: Facts, links: Facts) -> None:
    facts[13] |= {"cpus": "0-7", "bound": True}


ON_1 = {"node": "node-1"}


@pytest.mark.parametrize(
    ("change", "code", "says", "where"),
    [
        (no_p2p, "no_p2p", "no P2P between GPU 2 and GPU 5: the topology does not support it; expected it: NVLinks",
         {"gpu": 2, "peer_gpu": 5, "serial": "1650000012"}),
        (_no_p2p_of_one, "no_p2p", "no P2P between GPU 3 and GPUs 0-2,4-7: the chipset", {"gpu": 3}),
        (_no_p2p_at_all, "no_p2p", "no P2P between any two of 8 GPUs: the driver's registry turns it off", {}),
        (_no_p2p_without_links, "no_p2p", "expected it as between 35 of 36 pairs that are NODE apart",
         {"gpu": 0, "peer_gpu": 1}),
        (_one_way, "one_way", "works only from GPU4 to GPU6, not back: the chipset does not support it",
         {"gpu": 4, "peer_gpu": 6}),
        (_past_nvlink, "nvlink_unused", "is not over NVLink; expected it over NVLink as between 83 of 84 pairs",
         {"gpu": 0, "peer_gpu": 7}),
        (put_apart, "layout", "between GPU 3 and GPUs 0-2 is SYS, expected NODE as on 2 of 3 nodes", {"gpu": 3}),
        (take_nic, "far_nic", "RDMA device of GPU 6 is NODE away, expected PIX as on 2 of 3 nodes", {"gpu": 6}),
        (_without_nics, "far_nic", "no RDMA device for all 8 GPUs, expected PIX as on 2 of 3 nodes", {}),
        (_bound_far, "far_cpus", "bound to CPUs 0-7, expected some of 56-111, which are near its GPU 5",
         {"gpu": 5, "rank": 13, "uuid": "GPU-1-5"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)  # fmt: skip
def test_an_odd_one_of_three_nodes_is_named(
    change: Callable[[Facts, Facts], None], code: str, says: str, where: dict[str, Any]
) -> None:
    facts, links = wired(8, 8, 8)
    change(facts, links)
    (found,) = judged(facts, links, 8, 8, 8)
    assert (found["severity"], found["code"]) == ("warn", f"gpu.topology.{code}")
    assert says in found["message"]
    assert {"node": "node-1", **where}.items() <= found["where"].items()
    assert set(where) >= set(found["where"]) & {"gpu", "peer_gpu", "rank"}


@pytest.mark.parametrize("sizes", [(8,), (8, 8)], ids=str)
def test_on_one_node_a_gpu_without_its_nic_is_odd(sizes: tuple[int, ...]) -> None:
    facts, links = wired(*sizes)
    del facts[0]["nics"]["mlx5_5"]
    (found,) = judged(facts, links, *sizes)
    assert "GPU 5 is NODE away, expected PIX as on 7 of 8 GPUs of the node" in found["message"]


def test_of_two_unlike_nodes_none_is_blamed() -> None:
    facts, links = wired(8, 8)
    put_apart(facts, links)
    _without_nics(facts, links)
    found = judged(facts, links, 8, 8)
    assert {finding["code"] for finding in found} == {"gpu.topology.layout", "gpu.topology.far_nic"}
    assert all(finding["where"] == {} for finding in found), found
    assert "GPU0 and GPU3 are NODE apart on node-0, SYS on node-1" in found[0]["message"]
    assert "the nearest RDMA device of GPU0: PIX on node-0, none on node-1" in found[1]["message"]


def test_containers_that_see_other_gpus_are_not_compared() -> None:
    sizes = (2, 2, 2)
    facts, links = wired(*sizes)
    for of_rank in facts.values():
        of_rank["gpus"] |= {"0000:f0:00.0": device(9, 0, 8)} if of_rank["gpus"] else {}
    apart(facts, 2, "GPU-1-0", "GPU-1-1", ancestor=10)
    apart(facts, 4, "GPU-2-0", "GPU-2-1", ancestor=10)
    del facts[2]["nics"]["mlx5_1"]
    assert judged(facts, links, *sizes) == []


def test_ranks_on_the_cpu_may_run_anywhere() -> None:
    facts, links = wired(8, 8)
    _bound_far(facts, links)
    assert judged(facts, links, 8, 8, backend="gloo") == []


def test_mig_and_a_fabric_that_is_not_ready_explain_missing_p2p() -> None:
    facts, links = wired(8)
    apart(facts, 0, "GPU-0-0", "GPU-0-1", read=5, write=5)
    apart(facts, 0, "GPU-0-2", "GPU-0-3", read=5, write=5)
    inventory = made_gpus.inventory(8)
    inventory[0]["look"]["gpus"]["GPU-0-1"]["mig"]["current"] = True
    links[0]["look"]["gpus"]["GPU-0-2"]["fabric"] = {"state": 2, "status": 0}
    reads = {"gpu.inventory": inventory, "gpu.nvlink": links}
    assert testing.judge(topology, facts, nodes=on_nodes(8), backend="nccl", reads=reads) == []


@pytest.mark.parametrize(("status", "told"), [(0, 1), (7, 0)], ids=["ready", "failed"])
def test_a_fabric_that_has_failed_explains_missing_p2p_and_one_that_is_ready_does_not(status: int, told: int) -> None:
    facts, links = wired(8)
    apart(facts, 0, "GPU-0-2", "GPU-0-3", read=5, write=5)
    links[0]["look"]["gpus"]["GPU-0-2"]["fabric"] = {"state": 3, "status": status}
    assert len(judged(facts, links, 8)) == told


def test_512_nodes_are_judged_and_drawn() -> None:
    sizes = (8,) * 512
    facts, links = wired(*sizes)
    apart(facts, 800, "GPU-100-1", "GPU-100-2", read=1, write=1)
    reads = made_gpus.inventory(*sizes)
    job = Job(
        "torchrun", 4096, "nccl", tuple(Node(n, i, tuple(r)) for i, (n, r) in enumerate(on_nodes(*sizes).items()))
    )
    run = Run(job, tuple(facts), {}, {}, lambda check: reads if check == "gpu.inventory" else links)
    with timed("gpu.topology, 512 nodes of which one is odd"):
        (found,) = topology.judge(facts, run)
    assert found.where["node"] == "node-100"
    assert topo_facts.kind(topo_facts.layouts(facts, run)[5]) == "NVSwitch (8 GPUs, 18 links each)"  # type: ignore[arg-type]
    table = next(topology.plot(facts, run))  # type: ignore[arg-type]
    assert table.title.startswith("node-0 and 510 others like it: ")


# A real run


@in_machine.needs_machines
def test_three_nodes_with_something_wrong_on_each(tmp_path: Path) -> None:
    odd: dict[int, dict[str, object]] = {0: {"gpu.0.affinity.cpus": "0"}, 1: gpu_topology.apart(3, (0, 1, 2), 50)}
    no_nics = {f"/sys/class/infiniband/mlx5_{number}": None for number in range(9)}
    nodes = [
        machines.load(
            "h100_nvswitch", tmp_path, in_machine.own_uuids(number) | odd.get(number, {}),
            files=no_nics if number == 2 else None,
        )
        for number in range(3)
    ]  # fmt: skip
    words, bound = ("--level", "quick", "--only", "gpu.topology"), {0: ["taskset", "--cpu-list", "1"]}
    finished = in_machine.run_nodes(nodes, tmp_path, *words, wrap=bound)
    found = finished.findings()
    for name in ("gpu_in_another_slot", "nics_gone", "bound_far_from_gpu"):
        mine = [of_rank for of_rank in found if ROWS[name].is_told_by([of_rank])]
        assert [ROWS[name].says in finding["message"] for finding in mine] == [True], finished.told()
    assert len(found) == 3 and finished.exit_codes == [0, 0, 0], finished.told()
