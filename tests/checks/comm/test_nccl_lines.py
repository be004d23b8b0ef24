import random
import time
from dataclasses import replace

import pytest

from preflight.nccl import log_lines
from tests.checks.comm import made_nccl
from tests.checks.comm.made_nccl import A100, EFA, GB200, L40S, ONE_GPU, ROCE, Machine

VERSIONS = ["2.14.3", "2.18.5", "2.21.5", "2.24.3", "2.27.5", "2.30.7"]


def parse(machine: Machine, rank: int = 0) -> log_lines.Lines:
    return log_lines.parse(made_nccl.log(machine, rank), lambda a, b: a // machine.gpus == b // machine.gpus)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(version: str) -> None:
    found = parse(replace(Machine(), version=version))
    assert (found["version"], found["cuda_driver"], found["network"]) == (version, 12040, "IB")
    assert found["ways"] == {"node": {"P2P/CUMEM": 2}, "net": {"NET/IB/GDRDMA": 4}}
    assert found["hcas"] == [f"mlx5_{number}:1/IB" for number in range(8)]
    assert found["bootstrap"] == "eth0"
    assert set(found["gdr"].values()) == {True} and len(found["gdr"]) == 8
    assert found["channels"] and found["channels"]["coll"] == 16
    assert found["channels"]["nvls"] == (None if version == "2.14.3" else 16)
    assert found["nvls"] == (None if version == "2.14.3" else True)
    assert (found["nodes"], found["local_ranks"]) == ((2, 8) if version >= "2.21" else (None, None))
    assert found["plugin"] == "" and found["warnings"] == []


@pytest.mark.parametrize(
    ("machine", "ways", "network", "plugin"),
    [
        (A100, {"node": {"P2P/IPC": 2}, "net": {"NET/IB/GDRDMA": 4}}, "IB", ""),
        (L40S, {"node": {"SHM": 2}, "net": {"NET/Socket": 4}}, "Socket", ""),
        (EFA, {"node": {"P2P/CUMEM": 2}, "net": {"NET/AWS Libfabric/GDRDMA": 4}}, "AWS Libfabric", "AWS Libfabric"),
        (GB200, {"node": {"P2P/MNNVL": 2}, "net": {"P2P/MNNVL": 2}}, "IB", ""),
        (ONE_GPU, {"node": {}, "net": {"NET/IB/GDRDMA": 4}}, "IB", ""),
        (ROCE, {"node": {"P2P/IPC": 2}, "net": {"NET/IBext/GDRDMA": 4}}, "IBext", "IBext"),
    ],
)
def test_every_kind_of_machine(machine: Machine, ways: object, network: str, plugin: str) -> None:
    found = parse(machine)
    assert (found["ways"], found["network"], found["plugin"]) == (ways, network, plugin)
    assert found["mnnvl"] is (None if machine.version < "2.21" else machine.mnnvl)


INFO = "gpu01:1234:1301 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "way", "card"),
    [
        ("Channel 00/1 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM", None),
        ("Channel 03 : 1[1b000] -> 0[1a000] via P2P/IPC", "P2P/IPC", None),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", "P2P/direct", None),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/2[2]", "P2P/indirect", None),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM", None),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct", "SHM", None),
        ("Channel 01/0 : 0[0] -> 1[1] [send] via NET/IB/3(5)/GDRDMA/Shared", "NET/IB/GDRDMA", 3),
        ("Channel 01/0 : 0[0] -> 1[1] [receive] via NET/IB/3/GDRDMA(PCI)", "NET/IB/GDRDMA", 3),
        ("Channel 01/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/12", "NET/AWS Libfabric", 12),
        ("Ring 00 : 51[3d000] -> 56[1a000] [receive] via NET/IB/2", "NET/IB", 2),
    ],
)
def test_ways(line: str, way: str, card: int | None) -> None:
    found = log_lines.parse(f"{INFO}{line}\n", lambda _a, _b: False)
    assert found["ways"]["net"] == {way: 1}
    assert found["cards"] == ([] if card is None else [card])


@pytest.mark.parametrize(
    "line",
    [
        "Channel 00/16 : 0 1 2 3 4 5 6 7",
        "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA",
        "NVLS comm 0x55 headRank 0 nHeads 8 buffSize 1048576 memSize 2097152",
        "Call to connect returned Connection refused, retrying",
        "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file",
        "NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
        "NET/Plugin: Loaded collnet plugin SHARP (v8)",
        "Channel 00/0 : 0[0] -> 1[1] via SOMETHING/new",
        "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
        "NET/Socket: Using 2 threads and 8 sockets per thread",
        "P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert log_lines.parse(INFO + line + "\n") == log_lines.empty()


def test_settings_and_warnings() -> None:
    text = (
        f"{INFO}NCCL_IB_DISABLE set by environment to 1.\n{INFO}NCCL_SOCKET_IFNAME set to eth0\n"
        "\n[2026-01-31 12:00:00] gpu01:1234:1301 [0] graph/paths.cc:1 NCCL WARN P2P is disabled between NVLINK "
        "connected GPUs 0 and 1. This should not be the case\n"
        "\ngpu01:1:1 [0] misc/socket.cc:50 (socketProgress) NCCL WARN Connection closed by remote peer gpu02<41234>\n"
    )
    found = log_lines.parse(text)
    assert found["settings"] == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"}
    assert [of_rank[:20] for of_rank in found["warnings"]] == ["P2P is disabled betw", "Connection closed by"]


def test_devices_with_rails_and_planes() -> None:
    """Of 2.30: device:port[:rail[:plane]]."""
    line = f"{INFO}NET/IB : Using [0]mlx5_0:1:0:1/IB [1]mlx5_1:1/RoCE [2]mlx5_2:1::1/IB ; OOB eth0:10.0.0.1<0>"
    assert log_lines.parse(line)["hcas"] == ["mlx5_0:1:0:1/IB", "mlx5_1:1/RoCE", "mlx5_2:1::1/IB"]


def test_two_ports_that_nccl_makes_one_of() -> None:
    """Of 2.20 to 2.23: the number of a connection counts these, not the ports."""
    merged = "[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}"
    found = log_lines.parse(f"{INFO}NET/IB : Using {merged} [2]mlx5_2:1/IB [RO]; OOB eth0:10.0.0.1<0>")
    assert found["hcas"] == ["mlx5_0:1/RoCE+mlx5_1:1/RoCE", "mlx5_2:1/IB"]


def test_nvls_that_gets_no_memory_is_off() -> None:
    """2.27 and 2.28 go on without."""
    failed = f"{INFO}Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 999 'unknown'."
    found = log_lines.parse(f"{INFO}NVLS multicast support is available on dev 0\n{failed} Proceeding without NVLS")
    assert found["nvls"] is False and found["warnings"][0].startswith("Failed to bind NVLink SHARP (NVLS)")


def test_the_world_comes_before_its_parts() -> None:
    part = made_nccl.log(replace(Machine(), nodes=1, gpus=2), 0).replace("16 coll channels", "4 coll channels")
    found = log_lines.parse(made_nccl.log(Machine(), 0) + part)
    assert found["local_ranks"] == 8 and found["channels"] and found["channels"]["coll"] == 16


def test_cards_are_those_to_other_nodes() -> None:
    line = f"{INFO}Channel 01/0 : 0[0] -> 1[1] [send] via NET/IB/3/GDRDMA\n"
    assert log_lines.parse(line, lambda _a, _b: True)["cards"] == []


def test_two_lines_that_ran_into_each_other() -> None:
    text = f"{INFO}Using network IB{INFO}cudaDriverVersion 12040\n"
    found = log_lines.parse(text)
    assert found["network"].startswith("IB") and found["cuda_driver"] == 12040


def test_a_log_that_was_cut_anywhere_raises_nothing() -> None:
    text = made_nccl.log(Machine(), 0)
    whole = parse(Machine())
    for end in range(0, len(text), 7):
        found = log_lines.parse(text[end:] + text[:end])
        assert len(found["hcas"]) <= len(whole["hcas"])


def test_garbage_costs_no_more_than_its_length() -> None:
    dice = random.Random(6)
    alphabet = "NCCL INFO WARN [0] -> via NET/IB/ :<>()\x00\xff1234\n"
    noise = "".join(dice.choices(alphabet, k=400_000))
    spiteful = f"{INFO}" + "NET/" + "a" * 500_000 + "\n" + f"{INFO}Channel " + "0" * 500_000 + "\n"
    many = f"{INFO}Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n" * 15_000
    start = time.process_time()
    assert log_lines.parse(noise + spiteful + many)["ways"]["node"] == {"P2P/IPC": 15_000}
    once = time.process_time() - start
    start = time.process_time()
    log_lines.parse((noise + spiteful + many) * 4)
    assert time.process_time() - start < 12 * max(once, 0.05)


def test_what_is_kept_is_bounded() -> None:
    text = "".join(f"{INFO}NCCL_X{number} set by environment to 1.\n" for number in range(1000))
    text += "".join(f"gpu:1:1 [0] a.cc:1 NCCL WARN number {number}\n" for number in range(1000))
    found = log_lines.parse(text)
    assert len(found["settings"]) == 64 and len(found["warnings"]) == 8
