from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from preflight.check import Job, Node, Run
from preflight.checks.comm.shared import expected
from preflight.checks.comm.shared.expected import ExpectedBusbw
from tests.checks.comm import made_nccl
from tests.checks.comm.made_nccl import A100, EFA, FAKED, GB200, GEFORCE, L40S, ONE_GPU, Machine
from tests.large import timed

MIB, GIB = 2**20, 2**30
H100 = replace(Machine(), nodes=1)
B200 = replace(H100, name="NVIDIA B200", link_version=5, speed=53125)


def run_on(machine: Machine, changes: Mapping[int, Machine] | None = None) -> Run:
    facts: dict[str, Mapping[int, Any]] = {"comm.transports": made_nccl.facts(machine, changes)}
    facts |= made_nccl.reads(machine, changes)
    nodes = tuple(Node(name, at, tuple(ranks)) for at, (name, ranks) in enumerate(made_nccl.on_nodes(machine).items()))
    members = tuple(range(machine.gpus * machine.nodes))
    return Run(Job("torchrun", len(members), "nccl", nodes), members, {}, {}, lambda check: facts.get(check, {}))


def busbw(machine: Machine, operation: str = "all_reduce", bytes_: int = 8 * GIB) -> ExpectedBusbw | None:
    return expected.busbw(operation, bytes_, run_on(machine))


PUBLISHED = [
    # (machine, operation, bytes, GB/s): see the docstring of expected.py
    (replace(A100, nodes=1), "all_reduce", 16 * GIB, 228.0),
    (replace(A100, nodes=1), "all_reduce", 16 * GIB, 235.0),
    (H100, "all_reduce", 16 * GIB, 460.0),
    (H100, "all_reduce", 16 * GIB, 367.6),
    (H100, "all_reduce", 16 * GIB, 482.3),
    (replace(H100, gpus=4), "all_reduce", 8 * GIB, 363.0),
    (H100, "all_gather", 16 * GIB, 361.4),
    (H100, "reduce_scatter", 16 * GIB, 362.9),
    (replace(B200, gpus=4), "all_reduce", 8 * GIB, 673.0),
    (B200, "all_reduce", 1 * GIB, 723.0),
    (B200, "all_reduce", 16 * GIB, 846.0),
    (B200, "all_reduce", 8 * GIB, 682.0),
    (replace(A100, nodes=2), "all_reduce", 8 * GIB, 165.0),
    (replace(Machine(), nodes=4), "all_reduce", 1 * GIB, 362.0),
    (replace(Machine(), nodes=4), "all_reduce", 16 * GIB, 382.0),
    (replace(GB200, nodes=2), "all_reduce", 8 * GIB, 617.0),
]


@pytest.mark.parametrize(("machine", "operation", "bytes_", "measured"), PUBLISHED)
def test_what_was_published_is_usual_and_far_above_the_least(
    machine: Machine, operation: str, bytes_: int, measured: float
) -> None:
    figures = busbw(machine, operation, bytes_)
    assert figures is not None and figures.source
    assert figures.usual[0] <= measured <= figures.usual[1]
    assert figures.least < 0.6 * measured


def test_the_figures_of_an_h100_node() -> None:
    figures = busbw(H100)
    assert figures is not None
    assert (figures.least, *figures.usual) == pytest.approx((162.0, 333.0, 486.0))
    assert figures.source.startswith("450 GB/s of NVLinks per GPU; ")


def test_the_figures_of_two_nodes() -> None:
    figures = busbw(Machine())
    assert figures is not None
    assert (figures.least, *figures.usual) == pytest.approx((120.0, 248.0, 656.0))
    assert figures.source.startswith("400 GB/s of HCAs per node; ")


@pytest.mark.parametrize(
    ("machine", "operation", "bytes_"),
    [
        (H100, "all_reduce", 128 * MIB),
        (Machine(), "all_reduce", 512 * MIB),
        (replace(Machine(), nodes=8), "all_reduce", 1 * GIB),  # 16 MiB a rank
        (H100, "broadcast", 8 * GIB),
        (H100, "all_to_all", 8 * GIB),
        (H100, "send_recv", 8 * GIB),
        (Machine(), "all_gather", 8 * GIB),
        (replace(Machine(), nodes=9), "all_reduce", 64 * GIB),
        (L40S, "all_reduce", 8 * GIB),
        (replace(L40S, nodes=1), "all_reduce", 8 * GIB),
        (GEFORCE, "all_reduce", 8 * GIB),
        (EFA, "all_reduce", 8 * GIB),
        (FAKED, "all_reduce", 8 * GIB),
        (replace(Machine(), gdr=False), "all_reduce", 8 * GIB),
        (replace(Machine(), across="Socket"), "all_reduce", 8 * GIB),
        (replace(H100, inside="SHM"), "all_reduce", 8 * GIB),
        (replace(H100, links=0), "all_reduce", 8 * GIB),
        (replace(H100, link_version=9), "all_reduce", 8 * GIB),
        (replace(H100, settings={"NCCL_ALGO": "Tree"}), "all_reduce", 8 * GIB),
        (replace(Machine(), rate=0.0), "all_reduce", 8 * GIB),
        (replace(H100, gpus=1), "all_reduce", 8 * GIB),
        (replace(H100, gpus=2), "all_reduce", 8 * GIB),
        (ONE_GPU, "all_reduce", 8 * GIB),
        (replace(Machine(), layer="Ethernet", virtual=True), "all_reduce", 8 * GIB),
        (replace(A100, rate=400.0), "all_reduce", 8 * GIB),  # a GPU's NVLinks do not carry what the HCAs bring
    ],
)
def test_nothing_is_expected_of_what_is_not_known(machine: Machine, operation: str, bytes_: int) -> None:
    assert busbw(machine, operation, bytes_) is None


def test_the_node_with_the_least_counts() -> None:
    """A link lost is gpu.nvlink's finding, a slow HCA net.rdma's: here nobody is told twice."""
    run = run_on(replace(Machine(), nodes=4), {1: replace(Machine(), rate=200.0)})
    text = expected.busbw("all_reduce", 8 * GIB, run)
    assert text is not None and text.least == pytest.approx(60.0)


def test_hcas_that_are_not_taken_do_not_count() -> None:
    """Four GPUs of a node with eight."""
    gpu = busbw(replace(Machine(), gpus=4))
    assert gpu is not None and gpu.least == pytest.approx(60.0)


def test_without_the_facts_of_transports_nothing_is_known() -> None:
    run = run_on(H100)
    lost = Run(run.job, run.members, {}, {}, lambda check: {} if check == "comm.transports" else run.facts(check))
    assert expected.busbw("all_reduce", 8 * GIB, lost) is None


def test_where_a_rank_has_no_facts_nothing_is_known() -> None:
    run = run_on(H100)
    fewer = {rank: of_rank for rank, of_rank in run.facts("comm.transports").items() if rank != 3}
    lost = Run(run.job, run.members, {}, {}, lambda check: fewer if check == "comm.transports" else run.facts(check))
    assert expected.busbw("all_reduce", 8 * GIB, lost) is None


def test_the_links_are_looked_at_once() -> None:
    facts = made_nccl.facts(replace(Machine(), nodes=8))
    reads = made_nccl.reads(replace(Machine(), nodes=8))
    asked: list[str] = []

    def facts_of(check: str) -> Mapping[int, Any]:
        asked.append(check)
        return facts if check == "comm.transports" else reads[check]

    nodes = tuple(Node(f"node-{at}", at, tuple(range(8 * at, 8 * at + 8))) for at in range(8))
    run = Run(Job("torchrun", 64, "nccl", nodes), tuple(range(64)), {}, {}, facts_of)
    for size in range(30):
        expected.busbw("all_reduce", size * GIB, run)
    assert sorted(asked) == sorted(expected.READS)


def test_a_thousand_nodes_cost_nothing() -> None:
    """They have no expectation, and that is known at once."""
    of_rank = made_nccl.facts(Machine())[0]
    facts = dict.fromkeys(range(8192), of_rank)
    nodes = tuple(Node(f"node-{at}", at, tuple(range(8 * at, 8 * at + 8))) for at in range(1024))
    run = Run(
        Job("torchrun", 8192, "nccl", nodes),
        tuple(facts),
        {},
        {},
        lambda _check: {} if _check != "comm.transports" else facts,
    )
    with timed("comm.expected, 1,024 nodes"):
        assert expected.busbw("all_reduce", 8 * GIB, run) is None
