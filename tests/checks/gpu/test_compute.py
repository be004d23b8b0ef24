"""Made-up facts of many GPUs, known products, and what stands in for CUDA. The faults are in faults/gpu_compute.py."""

import contextlib
import copy
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from preflight import testing
from preflight.check import Context, Job, Run, Skip
from preflight.checks.gpu import compute
from preflight.checks.gpu.compute import copies, gemm, timing, workload
from preflight.checks.gpu.compute.workload_facts import Facts
from preflight.planning import registry
from preflight.results import judging
from preflight.sdk import arithmetic
from tests import running

CPU = torch.device("cpu")
H100: Facts = {
    "kind": {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "units": 132, "driver": "550.54.15",
             "torch": "2.6.0", "cuda": "12.4", "cudnn": "90100", "blas": "12.4.5", "threads": 1, "settings": []},
    "uuid": "",
    "speeds": {"bf16 GEMM": 650.0, "fp32 GEMM": 50.0, "device copy": 2900.0, "H2D copy": 55.0, "D2H copy": 54.0},
    "wrong": [],
    "repeats": {name: {"digest": "ab", "repeats": 10, "unlike": 0, "elements": 0, "of": 16} for name in gemm.DTYPES},
    "not_measured": [],
    "error": None,
}  # fmt: skip


def nodes(world: int) -> dict[str, range]:
    return {f"node-{first // 8}": range(first, min(world, first + 8)) for first in range(0, world, 8)}


def sound(world: int = 8) -> dict[int, Facts]:
    """Speeds up to 4% below the best."""
    facts = {rank: copy.deepcopy(H100) for rank in range(world)}
    for rank, of_rank in facts.items():
        of_rank["uuid"] = f"GPU-{rank}"
        of_rank["speeds"] = {name: speed * (1 - rank * 7 % 41 / 1000) for name, speed in of_rank["speeds"].items()}
        of_rank["speeds"][f"P2P copy {rank % 8} to {(rank + 1) % 8}"] = 380.0 - rank % 8 * 40
    return facts


def judge(facts: Mapping[int, Facts]) -> list[dict[str, Any]]:
    return testing.judge(compute, facts, nodes=nodes(len(facts)), backend="nccl")


def told(facts: Mapping[int, Facts]) -> list[tuple[str, str, int | None]]:
    """(severity, slug, rank)."""
    return [(f["severity"], f["code"].rpartition(".")[2], f["where"].get("rank")) for f in judge(facts)]


@pytest.mark.parametrize("world", [1, 2, 3, 8, 520])
def test_sound_gpus_give_no_finding(world: int) -> None:
    assert told(sound(world)) == []


def test_every_code_is_tested() -> None:
    """Here and in faults/gpu_compute.py."""
    codes = {
        "wrong_product",
        "wrong_copy",
        "unstable",
        "corrupt",
        "different_bits",
        "device_error",
        "slow",
        "below_own",
    }
    assert set(registry.load(registry.sources()["gpu.compute"]).codes) == codes


def test_one_odd_among_512_nodes_is_found_in_time() -> None:
    facts = sound(4096)
    facts[1000]["speeds"]["bf16 GEMM"] = 400.0
    facts[2000]["repeats"]["bf16"]["digest"] = "cd"
    start = time.process_time()
    run = Run(Job("env", 4096, "nccl", ()), tuple(facts), {})
    assert [found.where["rank"] for found in compute.judge(facts, run)] == [2000, 1000]
    assert time.process_time() - start < judging.deadline_s(4096) / 3


# Speeds


def test_a_slow_gpu_is_named() -> None:
    facts = sound()
    facts[3]["speeds"]["fp32 GEMM"] = 35.0
    (found,) = judge(facts)
    assert (found["severity"], found["code"]) == ("warn", "gpu.compute.slow")
    assert found["where"] == {"node": "node-0", "rank": 3, "uuid": "GPU-3"}
    assert found["message"].startswith("fp32 GEMM runs at 35 TFLOP/s, expected at least 42 (0.85 of the median of 8 ")


def test_a_slow_copy_to_the_host_is_another_matter() -> None:
    facts = sound()
    facts[3]["speeds"]["D2H copy"] = 24.0
    (found,) = judge(facts)
    assert "NUMA node" in found["fix"] and found["message"].startswith("D2H copy runs at 24 GB/s")
    facts[3]["speeds"]["D2H copy"] = 42.0
    assert told(facts) == [], "the ranks of a node share its memory"


def test_of_three_gpus_none_is_odd() -> None:
    facts = sound(3)
    facts[1]["speeds"]["bf16 GEMM"] = 300.0
    assert told(facts) == []


def test_where_half_are_slower_by_design_none_is_odd() -> None:
    facts = sound()
    for rank in range(4):
        facts[rank]["speeds"]["H2D copy"] = 25.0
    assert told(facts) == []


def test_unlike_gpus_are_not_compared() -> None:
    facts = sound()
    for rank in range(3):
        facts[rank]["kind"]["name"] = "NVIDIA A100-SXM4-80GB"
        facts[rank]["speeds"]["bf16 GEMM"] = 270.0
        facts[rank]["repeats"]["bf16"]["digest"] = "cd"
    assert told(facts) == []


def test_speeds_of_cpus_are_not_judged() -> None:
    facts = sound()
    for of_rank in facts.values():
        of_rank["kind"]["type"] = "cpu"
    facts[3]["speeds"] = dict.fromkeys(facts[3]["speeds"], 0.001)
    assert told(facts) == []


def test_p2p_copies_are_compared_between_the_same_places_of_other_nodes() -> None:
    facts = sound(64)
    facts[17]["speeds"]["P2P copy 1 to 2"] = 120.0
    assert told(facts) == [("warn", "slow", 17)]
    assert told({rank: facts[16 + rank] for rank in range(8)}) == [], "one node: nobody knows what is wired there"


# Wrong results


def test_odd_bits_are_corrupt() -> None:
    facts = sound()
    facts[5]["repeats"]["fp32"]["digest"] = "cd"
    (found,) = judge(facts)
    assert (found["severity"], found["code"], found["where"]["uuid"]) == ("fail", "gpu.compute.corrupt", "GPU-5")
    assert found["message"] == "fp32 GEMM: the bits are 'cd', expected 'ab' as on 7 of 8 ranks of this kind"


def test_odd_bits_that_several_share_are_of_other_code() -> None:
    facts = sound(16)
    for rank in (8, 9):
        facts[rank]["repeats"]["fp32"]["digest"] = "cd"
    assert told(facts) == [("warn", "different_bits", 8), ("warn", "different_bits", 9)]
    for rank in range(8, 16):
        facts[rank]["repeats"]["fp32"]["digest"] = "cd"
    assert told(facts) == [("warn", "different_bits", None)]


def test_of_two_that_differ_none_is_named() -> None:
    facts = sound(2)
    facts[1]["repeats"]["fp32"]["digest"] = "cd"
    assert told(facts) == [("fail", "corrupt", None)]


def test_bits_of_cpus_are_compared_within_a_node() -> None:
    facts = sound(16)
    for rank, of_rank in facts.items():
        of_rank["kind"]["type"] = "cpu"
        of_rank["repeats"]["fp32"]["digest"] = f"node {rank // 8}"
    assert told(facts) == []
    facts[9]["repeats"]["fp32"]["digest"] = "cd"
    assert told(facts) == [("fail", "corrupt", 9)]


def test_what_differs_from_itself_is_named_and_has_no_vote() -> None:
    facts = sound()
    facts[5]["repeats"]["fp32"] |= {"unlike": 2, "elements": 7, "digest": "cd"}
    (found,) = judge(facts)
    assert (found["severity"], found["code"], found["where"]["rank"]) == ("fail", "gpu.compute.unstable", 5)
    assert "fp32 GEMM: 2 of 10 repeats differ from the first in up to 7 elements" in found["message"]


def test_where_most_differ_from_themselves_none_is_named() -> None:
    facts = sound()
    for rank in range(5):
        facts[rank]["repeats"]["fp32"] |= {"unlike": 2, "elements": 7}
    (found,) = judge(facts)
    assert (found["severity"], found["where"], found["noticed_by"]) == ("warn", {}, "0-4")


def test_where_half_differ_from_themselves_each_is_named() -> None:
    facts = sound()
    for rank in range(4):
        facts[rank]["repeats"]["fp32"] |= {"unlike": 2, "elements": 7}
    assert told(facts) == [("fail", "unstable", rank) for rank in range(4)]


def test_a_wrong_p2p_copy_names_both_gpus() -> None:
    facts = sound()
    facts[5]["wrong"] = [{"what": "P2P copy 5 to 6", "peer": "GPU-6", "elements": 3, "of": 16, "index": 4, "got": 0.0,
                          "expected": 1e9}]  # fmt: skip
    (found,) = judge(facts)
    assert found["code"] == "gpu.compute.wrong_copy"
    assert found["where"] == {"node": "node-0", "rank": 5, "uuid": "GPU-5", "peer_gpu": "GPU-6"}
    assert found["message"] == (
        "P2P copy 5 to 6: 3 of 16 elements are wrong, the first at 4: 0, expected 1,000,000,000"
    )


def test_a_path_to_a_gpu_whose_memory_is_in_use_is_no_pass() -> None:
    facts = sound()
    facts[5]["no_memory"] = ["P2P copies with GPU-6: CUDA out of memory"]
    (found,) = judge(facts)
    assert found["not_measured"] and found["where"] == {"node": "node-0", "rank": 5}
    assert found["message"] == "not measured: P2P copies with GPU-6: CUDA out of memory; expected free memory there"


def test_the_summary_shows_the_range() -> None:
    facts = sound()
    facts[0]["not_measured"] = ["P2P copies: why"]
    text = compute.summarize(facts, Run(Job("env", 8, "nccl", ()), tuple(facts), {}))
    assert text.startswith("8 x NVIDIA H100 80GB HBM3: GEMM bf16 627-650, fp32 48.2-50 TFLOP/s; copy device ")
    assert text.endswith("P2P 100-380 GB/s; not measured: P2P copies: why")


# What is computed and copied


@pytest.mark.parametrize("dtype", gemm.DTYPES.values(), ids=str)
@pytest.mark.parametrize("rows", [8, 256])
def test_the_known_product_is_that_of_whole_numbers(rows: int, dtype: torch.dtype) -> None:
    left, right = gemm.known_factors(rows, dtype, CPU)
    exact = left.long() @ right.long()
    assert len(set(exact.flatten().tolist())) > 10 and len(set(left.flatten().tolist())) > 15
    assert torch.equal(gemm.known_product(rows, dtype, CPU).long(), exact)


def test_sums_of_the_known_product_are_exact_at_the_largest_size() -> None:
    rows = max(workload.GPU.rows.values())
    largest = max(float(values.abs().max()) for values in gemm.known_factors(256, torch.float32, CPU))
    assert rows * largest**2 < 2**24
    assert torch.equal(
        gemm.known_product(256, torch.bfloat16, CPU).float(), gemm.known_product(256, torch.float32, CPU)
    )


def test_the_first_wrong_element_is_told() -> None:
    expected = torch.zeros(4, 4)
    got = expected.clone()
    assert gemm.first_wrong("it", got, expected) is None
    got[1, 2], got[3, 0] = torch.nan, 7
    wrong = gemm.first_wrong("it", got, expected)
    assert wrong and (wrong["elements"], wrong["index"], wrong["got"], wrong["expected"]) == (2, 6, "nan", 0.0)


def test_made_up_numbers_and_the_pattern_do_not_repeat() -> None:
    values = gemm.made_up(64, torch.float32, CPU, 1)
    assert len(set(values.flatten().tolist())) > 4000 and float(values.abs().max()) <= 1
    assert torch.equal(values, gemm.made_up(64, torch.float32, CPU, 1))
    assert not torch.equal(values, gemm.made_up(64, torch.float32, CPU, 2))
    assert len(set(copies.pattern(2**20, CPU).tolist())) == 2**18


def test_the_arithmetic_is_as_before_afterwards() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with arithmetic.plain_arithmetic():
            assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == ("highest", 1)
            assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    finally:
        torch.set_float32_matmul_precision("highest")


# What says no


class NoPage:
    def doing(self, what: str, where: Mapping[str, Any]) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


def measure(backend: str = "gloo") -> Facts:
    job = Job("env", 1, backend, ())
    none: Any = None
    return compute.measure(Context("gpu.compute", job, 0, 0, (0,), {}, 20.0, NoPage(), none, none))


@pytest.mark.parametrize(
    "text", ["CUDA out of memory. Tried to allocate", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"]
)
def test_memory_that_others_hold_is_a_skip(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", raising(torch.OutOfMemoryError(text)))
    with pytest.raises(Skip, match=f"bf16 GEMM: {text}"):
        measure()


def test_an_error_of_our_own_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", raising(RuntimeError("mat1 and mat2 shapes cannot be multiplied")))
    with pytest.raises(RuntimeError, match="shapes"):
        measure()


def test_no_gpu_is_a_skip() -> None:
    with pytest.raises(Skip, match="torch sees no GPU"):
        measure("nccl")


def raising(error: Exception) -> Any:
    def function(*_arguments: Any, **_options: Any) -> None:
        raise error

    return function


# What stands in for CUDA


def test_too_little_memory_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 * 2**20, 2**36))
    with pytest.raises(Skip, match="100 MiB of the GPU's memory are free, expected 2,560"):
        workload._sizes_for(torch.device("cuda", 0))


def test_events_tell_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that takes 2 ms a step."""

    class Event:
        def __init__(self, **_: Any) -> None: ...
        def record(self) -> None:
            self.at = 2.0 * len(done)

        def synchronize(self) -> None: ...
        def elapsed_time(self, other: "Event") -> float:
            return other.at - self.at

    done: list[None] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    step = timing.seconds_of(lambda: done.append(None), torch.device("cuda", 0), 0.02)
    assert step == [pytest.approx(0.002)] * 10 and len(done) == 12


def found_peers(own: int, most: int, visible: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[str]]:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _, peer: peer.index != 3)
    device, facts = torch.device("cuda", own), workload.nothing_yet(CPU)
    return [peer.index for peer in workload._peers(facts, device, most)], facts["not_measured"]


def test_peers_are_the_next_ones_around(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_peers(7, 1, 8, monkeypatch) == ([0], [])
    assert found_peers(6, 99, 8, monkeypatch) == ([7, 0, 1, 2, 4, 5], ["P2P copies: GPUs cannot access each other"])
    assert found_peers(0, 1, 1, monkeypatch) == ([], ["P2P copies: a rank sees only its own GPU"])


def test_copies_to_a_peer_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "uuid_of", lambda _: "GPU-1")
    facts = workload.nothing_yet(CPU)
    copies.with_peer(facts, CPU, CPU, 2**16, 0.0)
    assert facts["speeds"] and not facts["wrong"]
    with monkeypatch.context() as patch, sick_copies(patch):
        copies.with_peer(facts, CPU, CPU, 2**16, 0.0)
    assert {(wrong["peer"], wrong["elements"]) for wrong in facts["wrong"]} == {("GPU-1", 1)}
    monkeypatch.setattr(torch, "zeros", raising(torch.OutOfMemoryError("CUDA out of memory.\nMore")))
    copies.with_peer(facts, CPU, CPU, 2**16, 0.0)
    assert facts["no_memory"] == ["P2P copies with GPU-1: CUDA out of memory."]


@contextlib.contextmanager
def sick_copies(patch: pytest.MonkeyPatch) -> Iterator[None]:
    right = torch.Tensor.copy_

    def wrong(target: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        right(target, *arguments, **options)
        target[5] ^= 1
        return target

    patch.setattr(torch.Tensor, "copy_", wrong)
    yield


@pytest.mark.parametrize(
    ("name", "uuid", "written"),
    [("NVIDIA H100", "a-b", "GPU-a-b"), ("NVIDIA A100 MIG 1g.5gb", "a-b", "MIG-a-b"), ("NVIDIA H100", None, None)],
)
def test_the_kind_and_the_uuid_of_a_gpu(
    name: str, uuid: str | None, written: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name=name, major=9, minor=0, multi_processor_count=132, uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    device = torch.device("cuda", 0)
    assert copies.uuid_of(device) == written
    found = arithmetic.kind_of(device, {"NVIDIA_TF32_OVERRIDE": "1", "HOME": "/root"})
    assert (found["name"], found["capability"], found["units"]) == (name, "9.0", 132)
    assert found["settings"] == ["NVIDIA_TF32_OVERRIDE=1"]
    assert (found["blas"] is None) == (torch.version.cuda is None)


def test_real_ranks_are_sound(tmp_path: Any) -> None:
    ranks = running.plain_ranks(2)
    finished = running.run_ranks(tmp_path, ranks, "--only", "gpu.compute")
    assert finished.check("gpu.compute")["status"] == "pass", finished.told()
    assert finished.findings() == [] and finished.left_over == [], finished.told()
    assert "2 x " in finished.check("gpu.compute")["summary"]
