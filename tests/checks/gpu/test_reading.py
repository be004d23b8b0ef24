"""What the answers of NVML and sysfs become, on each made-up machine, with the newest pynvml and the oldest that is
allowed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from preflight.checks.gpu.shared import links, nvml
from tests import running
from tests.checks.gpu.in_machine import needs_machines
from tests.standin import machines
from tests.standin.machines import Machine

pytestmark = needs_machines
OLDEST = Path(sys.prefix) / "pynvml"
"""The oldest nvidia-ml-py that is allowed, which `make` installs there."""
VERSIONS = {"newest": "", "oldest": str(OLDEST)}
versions = pytest.mark.parametrize(
    "version",
    ["newest", pytest.param("oldest", marks=pytest.mark.skipif(not OLDEST.is_dir(), reason="`make` installs it"))],
)


def read(machine: Machine, *groups: str, version: str = "newest") -> Any:
    """What tests/checks/gpu/read_all.py prints there."""
    words = machine.command([sys.executable, "-m", "tests.checks.gpu.read_all", *groups])
    folders = [folder for folder in (VERSIONS[version], str(running.ROOT)) if folder]
    env = {**os.environ, **machine.environ(), "PYTHONPATH": os.pathsep.join(folders)}
    return json.loads(subprocess.check_output(words, env=env, text=True, timeout=running.HUNG_S))


NVLINK_4, NVLINK_5 = (18, 26562, 6, "crc_flit recovery replay"), (18, 53125, 7, (
    "buffer_overruns effective_errors local_link_integrity malformed_packets rcv_errors rcv_general_errors "
    "rcv_remote_errors recovery recovery_failed xmit_discards"
))  # fmt: skip
NVLINK_3 = (12, 25000, 4, "crc_data crc_flit ecc recovery replay")
NONE = (0, None, None, "")
TOLD: dict[str, tuple[Any, ...]] = {
    # NVLinks up: number, MB/s, version, counters; the fabric's state; whether the SRAM has failed too often; rows that
    # could not be remapped; pages that wait; the recovery action; degrees left; memory's temperature; MIG instances
    "h100_nvswitch": (*NVLINK_4, 3, 0, 0, None, 0, 56, 41, 0),
    "a100_nvswitch": (*NVLINK_3, None, None, 0, None, None, None, 38, 0),
    "old_driver": (*NVLINK_3, None, None, 0, None, None, None, 38, 0),
    "b200_nvswitch": (*NVLINK_5, 3, 0, 0, None, 0, 57, 31, 0),
    "v100_cube_mesh": (6, 25781, 2, "crc_data crc_flit recovery replay", None, None, None, 0, None, None, 32, None),
    "pcie_two_sockets": (*NONE, 0, 0, 0, None, None, None, None, None),
    "h100_nvl": (12, 26562, 6, "crc_flit recovery replay", 0, 0, 0, None, 0, 56, 41, 0),
    "consumer": (*NONE, 0, None, None, None, None, None, None, None),
    "mig": (*NONE, None, None, 0, None, None, None, 38, 3),
    "t4_vm": (*NONE, None, None, None, 0, None, None, None, None),
    "h200_vm": (*NONE, 0, 0, 0, None, 0, 55, 33, 0),
    "container": (*NVLINK_4, 3, 0, 0, None, 0, 56, 41, 0),
    **dict.fromkeys(("a6000_vm", "rtx3090_cns", "rtx4090_patched", "rtx_pro_6000", "wsl2"), (*NONE, 0, *[None] * 7)),
}


def told(answers: Any) -> tuple[Any, ...]:
    """Of the first GPU."""
    health, nvlink, identity = (answers[group][0]["values"] for group in ("health", "nvlink", "identity"))
    up = [link for link in nvlink["links"] if link["active"]]
    link = (up[0]["speed_mbps"], up[0]["version"], " ".join(sorted(up[0]["errors"]))) if up else NONE[1:]
    return (
        len(up), *link, nvlink["fabric"] and nvlink["fabric"]["state"],
        health["sram"] and health["sram"]["threshold_exceeded"], health["remapped"] and health["remapped"]["failed"],
        health["retired"]["pending"], health["recovery_action"], health["temperature_margin"],
        health["memory_temperature"], identity["mig"] and len(identity["mig"]["devices"]),
    )  # fmt: skip


def odd(answers: Any) -> list[str]:
    """Notes and troubles of all groups and GPUs."""
    groups = [answer for group in answers.values() if isinstance(group, list) for answer in group]
    return [note for answer in groups for note in [*answer.get("notes", ()), *answer.get("trouble", ())]]


@versions
@pytest.mark.parametrize("name", machines.NAMES)
def test_each_machine_tells_what_its_hardware_and_its_driver_do(name: str, version: str, tmp_path: Path) -> None:
    answers = read(machines.load(name, tmp_path), version=version)
    assert told(answers) == TOLD[name]
    assert odd(answers) == []


def test_what_a_driver_answers_oddly_is_noted_and_what_is_fatal_ends_the_group(tmp_path: Path) -> None:
    changes = {
        "gpu.0.mig.mode": "!999", "gpu.0.ecc.volatile.corrected": 2**64 - 1, "gpu.0.inforom.valid": "!14",
        "gpu.1.link.0.state": "!4", "gpu.1.inforom.valid": "!3", "gpu.1.memory.total": None,
        "gpu.2.link.3.state": "!999", "gpu.2.inforom.valid": "!15", "gpu.2.affinity.cpus": None,
        "gpu.3.link.0.state": "!15", "gpu.3.uuid": "", "gpu.3.pci.bus": "!3", "gpu.3.field.82": "double 41.5",
        "gpu.4.handle": "!4", "gpu.5.calls": "!16", "gpu.6.pstate": 32, "gpu.6.p2p.1.read": "!999",
        "gpu.6.p2p.1.write": "!999", "gpu.6.link.2.remote.bus": "!3", "gpu.6.link.2.remote.type": "!3",
        "gpu.6.link.3.remote.type": 7, "gpu.7.links": 64, **{f"gpu.7.link.{link}.state": 0 for link in range(18, 64)},
        "excluded.count": 1, "excluded.0.bus": "00000000:E0:00.0", "excluded.0.uuid": "GPU-8",
        "gpu.7.processes.compute": "4711:-", "gpu.7.processes.graphics": f"4712:{2**20}", "gpu.7.name": "",
    }  # fmt: skip
    answers = read(machines.load("h100_nvswitch", tmp_path, changes))
    health, nvlink, identity, place = (answers[group] for group in ("health", "nvlink", "identity", "place"))
    assert (identity[0]["values"]["mig"], identity[0]["notes"]) == (None, ["nvmlDeviceGetMigMode: Unknown Error"])
    assert health[0]["values"]["ecc_errors"]["volatile_corrected"] is None
    assert [health[gpu]["values"]["inforom_valid"] for gpu in (0, 1, 7)] == [False, None, True]
    assert identity[1]["values"]["memory_total"] is None and nvlink[1]["values"]["links"] is None
    assert health[2]["trouble"][:2] == ["lost", "nvmlDeviceValidateInforom"]
    assert [link["active"] for link in nvlink[2]["values"]["links"][:5]] == [True, True, True, None, True]
    assert nvlink[2]["notes"] == ["nvmlDeviceGetNvLinkState: Unknown Error"] and place[2]["values"]["cpus"] is None
    assert nvlink[3]["trouble"] == ["lost", "nvmlDeviceGetNvLinkState", "GPU is lost"]
    handle = answers["handle"]
    assert (handle[3]["values"]["uuid"], handle[3]["values"]["bus"]) == ("GPU-3", "")
    assert handle[4]["trouble"] == ["permission", "nvmlDeviceGetHandleByIndex", "Insufficient Permissions"]
    assert handle[5]["trouble"][0] == "reset" and handle[7]["values"]["name"] == "unknown GPU"
    assert health[3]["values"]["memory_temperature"] is None and health[6]["values"]["pstate"] is None
    assert place[6]["notes"] == ["nvmlDeviceGetP2PStatus: Unknown Error"]
    listed = [{"pid": 4711, "memory": None}, {"pid": 4712, "memory": 2**20, "draws": True}]
    assert health[7]["values"]["processes"] == listed
    ends = [(link["remote"], link["remote_type"]) for link in nvlink[6]["values"]["links"][2:4]]
    assert ends == [(None, None), ("0000:07:00.0", "unknown")] and len(nvlink[7]["values"]["links"]) == 64
    assert len(place[0]["values"]["peers"]) == 4  # three give no UUID
    assert answers["system"]["values"]["excluded"] == ["0000:e0:00.0"]
    assert answers["side_by_side"] == handle


@versions
def test_a_driver_without_the_newer_functions_is_asked_by_the_older_ones(version: str, tmp_path: Path) -> None:
    absent = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV")
    answers = read(machines.load("h100_nvswitch", tmp_path, absent=absent), "health", "nvlink", version=version)
    fabric, health = answers["nvlink"][0]["values"]["fabric"], answers["health"][0]["values"]
    if version == "newest" and pynvml.c_nvmlGpuFabricInfo_t.clusterUuid.size == links.UUID_BYTES:
        assert (fabric["state"], fabric["health_mask"], fabric["health_summary"]) == (3, None, None)
    else:  # that struct of pynvml is not the driver's
        assert fabric is None
    assert (health["memory_used"], health["memory_reserved"], health["temperature"]) == (578813952, None, 31)


def test_a_function_that_this_version_of_pynvml_lacks_or_gives_other_arguments_gives_nothing() -> None:
    assert nvml.call("nvmlDeviceGetName") is None and nvml.call("nvmlDeviceGetNameOfOld") is None


def test_a_driver_that_lists_no_processes(tmp_path: Path) -> None:
    changes = {"gpu.0.processes.compute": "!3", "gpu.0.processes.graphics": "!3"}
    answers = read(machines.load("consumer", tmp_path, changes), "health")
    assert answers["health"][0]["values"]["processes"] is None


def test_a_driver_that_does_not_start(tmp_path: Path) -> None:
    answers = read(machines.load("consumer", tmp_path, {"init": "!9"}), "handle")
    assert answers["start"]["trouble"] == ["error", "nvmlInit", "Driver Not Loaded"]


def test_sysfs_tells_of_devices_links_drivers_and_imex(tmp_path: Path) -> None:
    gpu, virtual = "/sys/bus/pci/devices/0000:1b:00.0", "/sys/bus/pci/devices/0000:40:00.0"
    software = "/sys/class/infiniband/rxe0"
    files: dict[str, str | None] = {
        f"{gpu}/driver": None, f"{gpu}/current_link_width": "63\n", f"{gpu}/current_link_speed": "Unknown\n",
        f"{virtual}/physfn": "", f"{software}/node_type": "1: CA\n", "/dev/nvidia-caps-imex-channels/channel0": "",
        "/sys/bus/pci/devices/0000:43:00.0/numa_node": "-1\n",
    }  # fmt: skip
    sysfs = read(machines.load("h100_nvswitch", tmp_path, files=files), "sysfs")["sysfs"]
    assert sysfs["drivers"][:2] == ["", "nvidia"] and len(sysfs["switches"]) == 4
    assert [sysfs["slots"][0][0][name] for name in ("width", "width_max", "generation")] == [None, 16, None]
    assert [end["bus"] for end in sysfs["slots"][0]] == [
        "0000:1b:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0",
    ]  # fmt: skip
    assert sysfs["gpus"]["0000:1b:00.0"]["cpus"] == "0-55,112-167"
    assert (sysfs["gpus"]["0000:43:00.0"]["numa"], sysfs["gpus"]["0000:43:00.0"]["cpus"]) == (-1, "")
    assert list(sysfs["nics"]) == ["mlx5_0", *(f"mlx5_{number}" for number in range(2, 9))]
    assert (sysfs["imex"]["channels"], sysfs["imex"]["usable"]) == (1, 1)
