"""Judging on made-up facts; real runs stand in test_gpu_faults.py."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from preflight import testing
from preflight.checks.gpu import inventory
from preflight.planning import registry
from tests.checks.gpu import made_gpus
from tests.checks.gpu.made_gpus import GIB, NAME, on_nodes
from tests.large import timed

Facts = dict[int, dict[str, Any]]


def judged(facts: Facts, *sizes: int, backend: str = "nccl", **settings: object) -> list[dict[str, Any]]:
    return testing.judge(inventory, facts, nodes=on_nodes(*sizes), backend=backend, settings=settings)


def visible(facts: Facts, rank: int, wanted: str | None, *uuids: str, **more: Any) -> None:
    facts[rank] |= {"visible": list(uuids), "wanted": wanted, **more}


def by_srun(world: int) -> Facts:
    """`srun --gpus-per-task=1`: each rank sees its own GPU as number 0, and looks at it."""
    facts = made_gpus.inventory(world)
    for rank, of_rank in facts.items():
        handle = {**of_rank["seen"]["gpus"][str(rank)]}
        of_rank["seen"]["gpus"] = {"0": handle}
        of_rank["look"] = made_gpus.look({handle["uuid"]: made_gpus.identity()})
        of_rank |= {"visible": [handle["uuid"]], "wanted": "0", "confined": True}
    return facts


@pytest.mark.parametrize(
    ("facts", "sizes"),
    [
        (made_gpus.inventory(1), (1,)),
        (made_gpus.inventory(8, 8), (8, 8)),
        (made_gpus.inventory(4, gpus=8), (4,)),
        (by_srun(8), (8,)),
        (made_gpus.inventory(2, 2, gpus=0), (2, 2)),
    ],
    ids=["1", "2 nodes", "4 ranks on 8 GPUs", "srun", "CPUs"],
)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_sound_nodes_give_no_finding(facts: Facts, sizes: tuple[int, ...], backend: str) -> None:
    if backend == "gloo" or facts[0]["visible"]:
        assert judged(facts, *sizes, backend=backend) == []


def _lose(facts: Facts) -> None:
    """Rank 2's node has a GPU less."""
    for rank in (2, 3):
        del facts[rank]["seen"]["gpus"]["3"]
        facts[rank]["seen"]["pci"].pop()


def _share(facts: Facts) -> None:
    visible(facts, 3, None, "GPU-1-1", "GPU-1-0")


def _hide(facts: Facts) -> None:
    visible(facts, 1, "-1", names_none="-1")


def _too_few(facts: Facts) -> None:
    for rank in (0, 1):
        visible(facts, rank, "0", "GPU-0-0")


def _vbios(facts: Facts) -> None:
    facts[0]["look"]["gpus"]["GPU-0-2"]["vbios"] = "96.00.01"


def _vbios_of_node(facts: Facts) -> None:
    for gpu in facts[4]["look"]["gpus"].values():
        gpu["vbios"] = "96.00.01"


def _memory(facts: Facts) -> None:
    facts[0]["look"]["gpus"]["GPU-0-2"]["memory_total"] = 78 * GIB


def _used(facts: Facts) -> None:
    facts[2]["look"]["gpus"]["GPU-1-3"]["memory_free"] = 30 * GIB


def _model(facts: Facts) -> None:
    facts[0]["seen"]["gpus"]["2"]["name"] = "NVIDIA A100-SXM4-80GB"


def _torch(facts: Facts) -> None:
    facts[1]["torch"] = 3


def _excluded(facts: Facts) -> None:
    facts[0]["seen"]["system"]["excluded"] = ["0000:1f:00.0"]


def _mig(facts: Facts) -> None:
    facts[0]["look"]["gpus"]["GPU-0-1"]["mig"] = {"current": True, "pending": True, "devices": ["MIG-1"]}


def _prohibited(facts: Facts) -> None:
    facts[0]["look"]["gpus"]["GPU-0-1"]["compute_mode"] = 2


def _one_process(facts: Facts) -> None:
    facts[0]["look"]["gpus"]["GPU-0-1"]["compute_mode"] = 3


def _names_none(facts: Facts) -> None:
    visible(facts, 1, "0,1,2,9", "GPU-0-0", "GPU-0-1", "GPU-0-2", names_none="9")


def _gone(facts: Facts) -> None:
    facts[0]["seen"]["pci"].append("0000:1f:00.0")


def _for_a_vm(facts: Facts) -> None:
    _gone(facts)
    facts[0]["unbound"] = {"0000:1f:00.0": "vfio-pci"}


def _silent(facts: Facts) -> None:
    """GPU 2 is lost when it is looked up, so that only the PCI bus has it."""
    trouble = made_gpus.trouble(2, "gpu.inventory", "lost", call="nvmlX", text="GPU is lost")
    for rank in (0, 1):
        del facts[rank]["seen"]["gpus"]["2"]
        facts[rank]["visible"].remove("GPU-0-2")
        facts[rank]["look"]["troubles"] = [trouble]


FAULTS: list[tuple[Callable[[Facts], None], str, dict[str, Any], str]] = [
    (_lose, "fail count", {"node": "node-1"}, "3 GPUs, expected 4 as on 2 of 3 nodes"),
    (_share, "fail shared_gpu", {"node": "node-1", "rank": 3, "uuid": "GPU-1-0", "peer_rank": 2}, "and so does rank 2"),
    (_hide, "fail no_gpu", {"node": "node-0", "rank": 1, "variable": "CUDA_VISIBLE_DEVICES"},
     "local rank 1 has no GPU: 0 are visible (CUDA_VISIBLE_DEVICES is -1)"),
    (_too_few, "fail shared_gpu", {"rank": 1, "peer_rank": 0}, "uses GPU GPU-0-0, and so does rank 0"),
    (_vbios, "warn vbios", {"node": "node-0", "gpu": 2, "uuid": "GPU-0-2"},
     "VBIOS 96.00.01, expected 96.00.74.00.01 as on 3 of 4 GPUs of the node"),
    (_vbios_of_node, "warn vbios", {"node": "node-2"}, "expected 96.00.74.00.01 as on 2 of 3 nodes"),
    (_memory, "warn memory", {"node": "node-0", "gpu": 2}, "78 GiB of memory, expected 80 GiB as on 3 of 4 GPUs"),
    (_used, "fail free_memory", {"node": "node-1", "gpu": 3}, "30.0 GiB of 80.0 are free, expected at least 60 GiB"),
    (_model, "warn model", {"node": "node-0", "gpu": 2}, f"NVIDIA A100-SXM4-80GB, expected {NAME} as on 3 of 4"),
    (_torch, "fail torch_count", {"node": "node-0", "rank": 1}, "CUDA shows torch 3 GPUs, expected NVML's 4"),
    (_excluded, "info excluded", {"node": "node-0", "device": "0000:1f:00.0"}, "is excluded"),
    (_mig, "fail mig", {"node": "node-0", "rank": 1, "gpu": 1, "uuid": "MIG-1"}, "MIG instance MIG-1"),
    (_prohibited, "fail exclusive", {"node": "node-0", "rank": 1, "gpu": 1}, "PROHIBITED (no process can use it)"),
    (_one_process, "info exclusive", {"node": "node-0", "rank": 1, "gpu": 1}, "EXCLUSIVE_PROCESS"),
    (_names_none, "warn not_visible", {"node": "node-0", "rank": 1, "variable": "CUDA_VISIBLE_DEVICES"},
     "CUDA_VISIBLE_DEVICES is 0,1,2,9: 9 matches none of the 4 GPUs here"),
    (_gone, "fail missing", {"node": "node-0", "device": "0000:1f:00.0"}, "NVML does not list, expected all 5"),
    (_for_a_vm, "info missing", {"node": "node-0", "device": "0000:1f:00.0"}, "its driver is vfio-pci"),
    (_silent, "fail no_answer", {"node": "node-0", "gpu": 2}, "GPU 2 is lost (fallen off the bus): nvmlX: GPU is lost"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "finds", "culprit", "says"), FAULTS, ids=[fault[0].__name__.strip("_") for fault in FAULTS]
)
def test_the_culprit_is_named(change: Callable[[Facts], None], finds: str, culprit: dict[str, Any], says: str) -> None:
    facts = made_gpus.inventory(2, 2, 2, gpus=4)
    change(facts)
    (found,) = judged(facts, 2, 2, 2, min_memory_gib=60)
    assert f"{found['severity']} {found['code']}".replace("gpu.inventory.", "") == finds
    assert culprit.items() <= found["where"].items() and says in found["message"], found
    assert "{" not in found["fix"]


def test_every_code_has_a_fault() -> None:
    codes = {fault[1].split()[1] for fault in FAULTS}
    assert codes == set(registry.load(registry.sources()["gpu.inventory"]).codes)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1)])
def test_one_node_against_one_blames_none(sizes: tuple[int, ...]) -> None:
    facts = made_gpus.inventory(*sizes, gpus=4)
    del facts[sizes[0]]["seen"]["gpus"]["3"]
    found = [finding for finding in judged(facts, *sizes, backend="gloo") if finding["code"].endswith("count")]
    assert [finding["where"] for finding in found] in ([{}], [])


def test_in_a_container_what_it_does_not_see_is_not_missing() -> None:
    facts = made_gpus.inventory(2, gpus=2)
    for of_rank in facts.values():
        of_rank["seen"]["pci"] += ["0000:1e:00.0", "0000:1f:00.0"]
        of_rank["confined"] = True
    assert judged(facts, 2) == []


def test_two_containers_of_one_host_that_share_a_gpu_are_seen_between_nodes() -> None:
    facts = made_gpus.inventory(1, 1)
    facts[1] = copy.deepcopy(facts[0])
    (found,) = judged(facts, 1, 1)
    assert (found["code"], found["where"]["rank"]) == ("gpu.inventory.shared_gpu", 1)


def test_two_unlike_nodes_are_both_told_and_none_is_odd() -> None:
    facts = made_gpus.inventory(2, 2, gpus=4)
    for gpu in facts[2]["look"]["gpus"].values():
        gpu["vbios"] = "96.00.01"
    (found,) = judged(facts, 2, 2)
    assert found["where"] == {} and "96.00.74.00.01 on node-0, 96.00.01 on node-1" in found["message"]


def test_512_nodes_with_one_odd_gpu_are_judged() -> None:
    facts = made_gpus.inventory(*[8] * 512)
    facts[8 * 300]["look"]["gpus"]["GPU-300-5"]["vbios"] = "old"
    with timed("gpu.inventory, 512 nodes of which one GPU is odd"):
        (found,) = judged(facts, *[8] * 512)
    assert (found["where"]["node"], found["where"]["gpu"]) == ("node-300", 5)


@pytest.mark.parametrize(
    ("facts", "sizes", "summary"),
    [
        (made_gpus.inventory(2, 2, gpus=0), (2, 2), "no NVIDIA GPU"),
        (made_gpus.inventory(8, 8), (8, 8), f"16 x {NAME}; driver 535.161.08"),
        (by_srun(2), (2,), f"2 x {NAME}; driver 535.161.08"),
    ],
)
def test_the_summary_counts(facts: Facts, sizes: tuple[int, ...], summary: str) -> None:
    report = judged(facts, *sizes, backend="gloo")
    assert report == []
    from preflight.check import Run
    from tests import made

    assert inventory.summarize(facts, Run(made.job(*sizes), tuple(facts), {})) == summary  # type: ignore[arg-type]


def test_of_a_silent_and_a_missing_gpu_nobody_knows_which_is_where() -> None:
    facts = made_gpus.inventory(1, gpus=4)
    for gpu in ("2", "3"):
        del facts[0]["seen"]["gpus"][gpu]
    facts[0]["look"]["troubles"] = [made_gpus.trouble(2, "gpu.inventory", "lost")]
    missing, lost = sorted(judged(facts, 1, backend="gloo"), key=lambda finding: str(finding["code"]))
    assert missing["where"] == {"node": "node-0"} and lost["where"]["gpu"] == 2
    assert "NVML lists 1 GPU too few, among those at 0000:12:00.0, 0000:13:00.0, expected all 4" in missing["message"]


def test_cuda_that_does_not_start_hides_no_missing_gpu() -> None:
    facts = made_gpus.inventory(1, gpus=4)
    del facts[0]["seen"]["gpus"]["3"]
    facts[0]["look"]["troubles"] = [made_gpus.trouble(None, "gpu.inventory", "cuda")]
    found = judged(facts, 1, backend="gloo")
    assert {finding["code"] for finding in found} == {"gpu.inventory.missing", "gpu.inventory.no_answer"}


def test_a_gpu_that_may_not_be_read_is_another_jobs() -> None:
    facts = made_gpus.inventory(1, gpus=4)
    del facts[0]["seen"]["gpus"]["3"]
    facts[0]["look"]["troubles"] = [made_gpus.trouble(3, "gpu.inventory", "permission")]
    (found,) = judged(facts, 1, backend="gloo")
    assert (found["severity"], found["where"]["gpu"]) == ("info", 3)


def test_a_gpu_that_is_named_as_missing_is_not_counted_again() -> None:
    facts = made_gpus.inventory(1, 1, 1, gpus=4)
    del facts[1]["seen"]["gpus"]["3"]
    (found,) = judged(facts, 1, 1, 1)
    assert (found["code"], found["where"]["device"]) == ("gpu.inventory.missing", "0000:13:00.0")
