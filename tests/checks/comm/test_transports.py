from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from preflight import testing
from preflight.check import Job, Node, Run
from preflight.checks.comm import transports
from preflight.nccl.log_lines import Lines
from preflight.planning import registry
from tests.checks.comm import made_nccl
from tests.checks.comm.made_nccl import A100, EFA, GEFORCE, L40S, ONE_GPU, ROCE, SOUND, Machine
from tests.large import timed

Found = list[tuple[str, str, Any, Any]]


def found(machine: Machine, changes: Mapping[int, Machine] | None = None) -> list[dict[str, Any]]:
    """`changes`: other machines, by node."""
    return judged(machine, made_nccl.facts(machine, changes), made_nccl.reads(machine, changes))


def judged(
    machine: Machine, facts: Mapping[int, Lines], reads: Mapping[str, Mapping[int, Any]]
) -> list[dict[str, Any]]:
    return testing.judge(transports, facts, nodes=made_nccl.on_nodes(machine), backend="nccl", reads=reads)


def told(machine: Machine, changes: Mapping[int, Machine] | None = None) -> Found:
    return made_nccl.where(found(machine, changes))


@pytest.mark.parametrize("machine", SOUND.values(), ids=SOUND)
def test_a_sound_cluster_gives_no_finding(machine: Machine) -> None:
    assert found(machine) == []


@pytest.mark.parametrize("machine", SOUND.values(), ids=SOUND)
def test_without_other_checks_nothing_is_said_of_the_hardware(machine: Machine) -> None:
    assert judged(machine, made_nccl.facts(machine), {}) == []


def sockets(machine: Machine, **settings: str) -> Machine:
    """RDMA is there, and is not taken."""
    return replace(machine, across="Socket", plugin="", settings=settings)


@pytest.mark.parametrize(
    ("settings", "variable"),
    [
        ({}, None),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE"),
        ({"NCCL_IB_DISABLE": "0"}, None),
        ({"NCCL_NET": "Socket"}, "NCCL_NET"),
        ({"NCCL_IB_HCA": "mlx4"}, "NCCL_IB_HCA"),
        ({"NCCL_IB_DISABLE": "0", "NCCL_NET": "socket"}, "NCCL_NET"),
    ],
)
def test_sockets_where_there_is_rdma(settings: dict[str, str], variable: str | None) -> None:
    machine = sockets(A100, **settings)
    assert told(machine) == [("warn", "socket", None, variable)]
    (finding,) = found(machine)
    assert finding["message"].startswith(
        "NCCL uses sockets to other nodes, expected RDMA: mlx5_0, mlx5_1, mlx5_2 and 5"
    )
    assert finding["message"].endswith("the same on all 2 nodes")
    assert variable is None or variable in finding["fix"]


def test_efa_without_its_plugin() -> None:
    (finding,) = found(sockets(EFA))
    assert "aws-ofi-nccl" in finding["message"] and "aws-ofi-nccl" in finding["fix"]
    assert told(sockets(EFA, NCCL_NET_PLUGIN="none")) == [("warn", "socket", None, "NCCL_NET_PLUGIN")]
    (finding,) = found(replace(sockets(EFA), plugin="AWS Libfabric"))
    assert "the plugin AWS Libfabric is loaded, and NCCL could not start it" in finding["message"]
    assert finding["fix"].startswith("Run fi_info -p efa")


@pytest.mark.parametrize(
    "machine",
    [
        sockets(replace(A100, active=False)),
        sockets(replace(A100, vendor="0x8086")),
        sockets(replace(A100, nodes=1), NCCL_IB_DISABLE="1"),
        sockets(L40S),
    ],
)
def test_sockets_where_they_are_right(machine: Machine) -> None:
    """A link that is down (net.rdma tells), a make that NCCL may not use, one node, no RDMA."""
    assert found(machine) == []


def test_hcas_that_the_process_may_not_open_are_net_rdmas_finding() -> None:
    reads = made_nccl.reads(sockets(A100))
    for of_rank in reads["net.rdma"].values():
        of_rank["hcas"] = [{**hca, "opens": False} for hca in of_rank["hcas"]]
    assert judged(A100, made_nccl.facts(sockets(A100)), reads) == []


def test_the_one_node_that_goes_over_sockets_is_named() -> None:
    odd = sockets(Machine(), NCCL_IB_DISABLE="1")
    assert told(replace(Machine(), nodes=4), {2: odd}) == [("warn", "socket", "node-2", "NCCL_IB_DISABLE")]


def test_gpudirect_without_its_module() -> None:
    off = replace(A100, gdr=False, supported=False)
    assert told(off) == [("warn", "gdr_off", None, None)]
    assert told(replace(ROCE, gdr=False, supported=False)) == [("warn", "gdr_off", None, None)]
    (finding,) = found(replace(A100, nodes=4), {3: off})
    assert (finding["where"], finding["severity"]) == ({"node": "node-3"}, "warn")
    assert finding["message"] == (
        "no connection to another node uses GPUDirect RDMA, expected all as on 3 of 4 nodes: its HCAs have neither "
        "nvidia_peermem nor DMA-BUF"
    )


def test_a_virtual_machine_may_have_no_gpudirect() -> None:
    assert found(replace(A100, gdr=False, supported=False, virtual=True)) == []


def test_a_virtual_function_on_infiniband_is_rdma() -> None:
    assert told(replace(sockets(A100), virtual=True)) == [("warn", "socket", None, None)]
    assert told(replace(sockets(A100), layer="Ethernet")) == [("warn", "socket", None, None)]


def test_nodes_of_several_kinds_are_not_held_against_each_other() -> None:
    machine = replace(Machine(), nodes=4)
    other = replace(Machine(), name="NVIDIA L40S", inside="SHM", links=0, nvls=False, gdr=False, hcas=("mlx5_0",))
    assert found(machine, {2: other}) == []


def test_gpudirect_that_a_variable_turns_off() -> None:
    for level in ("LOC", "0"):
        off = replace(A100, gdr=False, settings={"NCCL_NET_GDR_LEVEL": level})
        assert told(off) == [("warn", "gdr_off", None, "NCCL_NET_GDR_LEVEL")]
    no_dmabuf = replace(A100, gdr=False, supported=False, settings={"NCCL_DMABUF_ENABLE": "0"})
    assert told(no_dmabuf) == [("warn", "gdr_off", None, "NCCL_DMABUF_ENABLE")]


def test_gpudirect_off_on_one_node_for_no_reason_that_nccl_tells() -> None:
    """As with ACS, or a card in another slot."""
    assert told(replace(A100, nodes=4), {1: replace(A100, gdr=False)}) == [("warn", "gdr_off", "node-1", None)]


def test_gpudirect_of_some_hcas() -> None:
    facts = made_nccl.facts(replace(A100, nodes=4))
    facts[9]["ways"]["net"] = {"NET/IB": 2, "NET/IB/GDRDMA": 2}
    (finding,) = judged(replace(A100, nodes=4), facts, {})
    assert finding["where"] == {"node": "node-1"} and finding["message"].startswith(
        "some connections to other nodes lack"
    )


def test_gpudirect_that_all_nodes_use_alike_for_some_is_nccls_choice() -> None:
    """On PCIe platforms NCCL receives by it and sends without (NCCL_NET_GDR_READ)."""
    facts = made_nccl.facts(A100)
    for of_rank in facts.values():
        of_rank["ways"]["net"] = {"NET/IB": 2, "NET/IB/GDRDMA": 2}
    assert judged(A100, facts, made_nccl.reads(A100)) == []


@pytest.mark.parametrize("settings", [{}, {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}])
def test_host_memory_between_gpus_with_nvlinks(settings: dict[str, str]) -> None:
    off = replace(Machine(), inside="SHM", settings=settings)
    assert told(off) == [("warn", "p2p_off", None, next(iter(settings), None))]
    assert told(replace(Machine(), nodes=4), {1: off}) == [("warn", "p2p_off", "node-1", next(iter(settings), None))]


def test_a_variable_that_turns_nothing_off_is_not_named() -> None:
    settings = {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS", "NCCL_SHM_DISABLE": "0", "NCCL_NVLS_ENABLE": "2"}
    four = replace(Machine(), nodes=4)
    assert told(four, {1: replace(Machine(), inside="SHM", settings=settings)}) == [("warn", "p2p_off", "node-1", None)]
    assert told(four, {1: replace(Machine(), nvls=False, settings=settings)}) == [("warn", "nvls_off", "node-1", None)]
    assert told(replace(L40S, inside="NET", settings=settings)) == [("warn", "shm_off", None, None)]


def test_a_gpu_in_slices_has_no_p2p() -> None:
    """MIG: its NVLinks are off."""
    machine = replace(Machine(), inside="SHM")
    reads = made_nccl.reads(machine)
    for of_rank in reads["gpu.nvlink"].values():
        next(iter(of_rank["look"]["gpus"].values()))["links"] = []
    assert judged(machine, made_nccl.facts(machine), reads) == []


def test_p2p_that_a_variable_turns_off_on_pcie() -> None:
    off = replace(L40S, settings={"NCCL_P2P_DISABLE": "1"})
    assert told(off) == [("warn", "p2p_off", None, "NCCL_P2P_DISABLE")]
    assert "expected NCCL to choose, since the driver has P2P" in found(off)[0]["message"]
    assert told(replace(off, p2p_works=False)) == []
    assert told(replace(GEFORCE, settings={"NCCL_P2P_DISABLE": "1"})) == []


def test_ranks_of_one_node_over_the_network() -> None:
    """Containers with a /dev/shm each, on GPUs without P2P."""
    off = replace(L40S, inside="NET")
    assert told(off) == [("warn", "shm_off", None, None)]
    assert told(replace(off, settings={"NCCL_SHM_DISABLE": "1"})) == [("warn", "shm_off", None, "NCCL_SHM_DISABLE")]


def test_rdma_inside_the_node_may_be_the_quickest_way() -> None:
    machine = replace(A100, inside="NET", links=0)
    assert found(machine) == []


def test_ranks_that_do_not_see_each_other() -> None:
    split = replace(Machine(), split=True, inside="NET", across="Socket", hcas=())
    assert told(split) == [("warn", "split_node", None, None)]
    by_id = replace(split, settings={"NCCL_HOSTID": "x"})
    assert told(by_id) == [("warn", "split_node", None, "NCCL_HOSTID")]
    (finding, *_) = found(replace(Machine(), nodes=3), {1: replace(Machine(), split=True)})
    assert finding["where"] == {"node": "node-1"}
    assert finding["message"] == "NCCL sees 1 rank on this node, expected its 8"


def test_unlike_versions() -> None:
    machine = replace(Machine(), nodes=4)
    told_ = found(machine, {1: replace(Machine(), version="2.26.2")})
    assert [(finding["severity"], finding["where"]) for finding in told_] == [
        ("fail", {"node": "node-1", "rank": rank}) for rank in range(8, 16)
    ]
    assert told_[0]["message"] == "has loaded NCCL 2.26.2, expected 2.27.5 as on 24 of 32 ranks"
    (finding,) = found(Machine(), {1: replace(Machine(), version="2.26.2")})
    assert finding["where"] == {} and finding["message"].startswith(
        "NCCL is '2.27.5' on ranks 0-7, '2.26.2' on ranks 8-15"
    )


def test_a_plugin_on_some_nodes() -> None:
    with_plugin = replace(Machine(), nodes=4, across="IBext", plugin="IBext")
    assert told(with_plugin, {2: Machine()}) == [("warn", "plugin", "node-2", None)]
    (finding,) = found(replace(with_plugin, nodes=2), {1: Machine()})
    assert finding["where"] == {} and finding["message"] == (
        "the network plugin is IBext on node-0, none on node-1, expected the same on all"
    )


def test_nvls_off_on_one_node() -> None:
    off = replace(Machine(), nvls=False)
    assert told(replace(Machine(), nodes=4), {1: off}) == [("warn", "nvls_off", "node-1", None)]
    named = replace(off, settings={"NCCL_NVLS_ENABLE": "0"})
    assert told(replace(Machine(), nodes=4), {1: named}) == [("warn", "nvls_off", "node-1", "NCCL_NVLS_ENABLE")]
    assert told(Machine(), {1: off}) == []
    facts = made_nccl.facts(replace(Machine(), nodes=4))
    facts[9]["nvls"] = False
    assert [finding["where"] for finding in judged(replace(Machine(), nodes=4), facts, {})] == [{"node": "node-1"}]
    assert told(replace(off, nodes=4), {1: Machine()}) == []
    for finding in facts.values():
        finding["nvls"] = finding["nvls"] or None
    for rank in range(8, 16):
        facts[rank]["nvls"] = None
    assert judged(replace(Machine(), nodes=4), facts, {}) == []  # its log does not say


def test_nvls_that_gets_no_memory() -> None:
    """On one node: no other is needed to tell."""
    facts = made_nccl.facts(replace(Machine(), nodes=1))
    facts[3] |= {"nvls": False, "warnings": ["Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152"]}
    (finding,) = judged(replace(Machine(), nodes=1), facts, {})
    assert (finding["code"], finding["where"]) == ("comm.transports.nvls_off", {"node": "node-0"})
    assert finding["evidence"]["nccl_warned"] == facts[3]["warnings"]
    assert finding["message"].endswith(
        "; expected NVLS to work on all ranks or none: without it on 1 of 8 the job may hang"
    )
    for rank in range(8):
        facts[rank] |= {"nvls": False, "warnings": facts[3]["warnings"]}
    (finding,) = judged(replace(Machine(), nodes=1), facts, {})
    assert finding["message"].endswith("expected NVLS to work")


def test_a_node_with_fewer_hcas() -> None:
    fewer = replace(Machine(), hcas=tuple(f"mlx5_{number}" for number in range(7)))
    (finding,) = found(replace(Machine(), nodes=4), {3: fewer})
    assert (finding["code"], finding["where"]) == ("comm.transports.differs", {"node": "node-3"})
    assert finding["message"] == "NCCL uses 7 HCAs, expected 8 as on 3 of 4 nodes"


@pytest.mark.parametrize("network", ["", "IB"])
def test_a_log_that_does_not_say_its_hcas_is_not_held_against_a_node(network: str) -> None:
    facts = made_nccl.facts(replace(ONE_GPU, nodes=3))
    facts[1] |= {"network": network, "hcas": [], "gdr": {}}
    assert judged(replace(ONE_GPU, nodes=3), facts, {}) == []


def test_a_node_with_fewer_ranks_is_not_held_against_the_others() -> None:
    facts = made_nccl.facts(replace(Machine(), nodes=3))
    for rank in range(9, 16):
        del facts[rank]
    for rank in range(8, 9):
        facts[rank]["ways"]["node"] = {}
        facts[rank]["local_ranks"] = 1
    assert judged(replace(Machine(), nodes=3), facts, {}) == []


def test_two_gpus_of_a_node_may_be_joined_otherwise_than_eight() -> None:
    machine = replace(A100, nodes=4, links=0)
    facts = made_nccl.facts(machine)
    for rank in range(10, 16):
        del facts[rank]
    for rank in (8, 9):
        facts[rank]["ways"]["node"], facts[rank]["local_ranks"] = {"SHM": 2}, 2
    assert judged(machine, facts, {}) == []


def test_every_code_is_tested_here() -> None:
    assert set(registry.load(registry.sources()["comm.transports"]).codes) == {
        "socket", "gdr_off", "p2p_off", "shm_off", "split_node", "versions", "plugin", "nvls_off", "differs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("dgx_h100", "NCCL 2.27.5: P2P/CUMEM in the node, IB with GPUDirect between nodes, NVLS, 16 channels"),
        ("l40s_pcie", "NCCL 2.21.5: SHM in the node, Socket between nodes, 16 channels"),
        ("one_gpu_a_node", "NCCL 2.14.3: IB with GPUDirect between nodes, 16 channels"),
        ("gb200", "NCCL 2.28.9: P2P/MNNVL in the node, P2P/MNNVL between nodes, NVLS, 16 channels"),
        ("one_node", "NCCL 2.27.5: P2P/CUMEM in the node, NVLS, 16 channels"),
    ],
)
def test_the_summary(name: str, summary: str) -> None:
    machine = SOUND[name]
    placed = tuple(Node(node, 0, tuple(ranks)) for node, ranks in made_nccl.on_nodes(machine).items())
    facts = made_nccl.facts(machine)
    run = Run(Job("torchrun", len(facts), "nccl", placed), tuple(facts), {})
    assert transports.summarize(facts, run) == summary


def test_1024_nodes_are_judged() -> None:
    machine = replace(Machine(), nodes=16)
    few, reads = made_nccl.facts(machine), made_nccl.reads(machine)
    facts = {64 * rank + more: few[rank] for rank in few for more in range(64)}
    reads = {check: {64 * rank: machine for rank, machine in of.items()} for check, of in reads.items()}
    nodes = {f"node-{number}": range(8 * number, 8 * number + 8) for number in range(1024)}
    with timed("comm.transports, 1,024 nodes, with the packing of the facts"):
        assert testing.judge(transports, facts, nodes=nodes, backend="nccl", reads=reads) == []


def test_one_gpu_a_node_and_one_that_lost_its_card() -> None:
    assert told(replace(ONE_GPU, nodes=5), {2: sockets(ONE_GPU)}) == [("warn", "socket", "node-2", None)]
