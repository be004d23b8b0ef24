"""The real pynvml talks to the stand-in: every machine answers as its hardware and its driver would."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.standin import library, machines
from tests.standin.machines import Machine, load, needs_gcc, needs_mounts

pytestmark = needs_gcc

PRELUDE = """
import json, os, sys
import pynvml as n
def of(call, *words):
    try:
        found = call(*words)
    except Exception as error:
        return f"{type(error).__name__} {getattr(error, 'value', '')}".strip()
    return found.decode() if isinstance(found, bytes) else found
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def links(gpu):
    states = [of(n.nvmlDeviceGetNvLinkState, gpu, link) for link in range(36)]
    return [states.count(1), states.count(0), states[-1]]
"""


def printed(machine: Machine, code: str, mounts: bool = False) -> str:
    """What a process prints that sees the machine, with `mounts` also its /sys."""
    words = [sys.executable, "-c", code]
    words = machine.command(words) if mounts else words
    return subprocess.check_output(words, env=os.environ | machine.environ(), text=True, timeout=60)


def ask(machine: Machine, code: str, mounts: bool = False) -> Any:
    """What an expression is there."""
    return json.loads(printed(machine, f"{PRELUDE}\nprint(json.dumps({code}))", mounts))


NO_LINKS, BEYOND = "NVMLError_NotSupported 3", "NVMLError_InvalidArgument 2"
SAMPLES = {
    # name of GPU 0; links up, down, and a link too high; NVLink to the last GPU; remapped rows; replays; level to GPU 1
    "h100_nvswitch": ("NVIDIA H100 80GB HBM3", [18, 0, BEYOND], 0, [0, 0, 0, 0], 0, 40),
    "a100_nvswitch": ("NVIDIA A100-SXM4-80GB", [12, 0, BEYOND], 0, [0, 0, 0, 0], 0, 20),
    "old_driver": ("NVIDIA A100-SXM4-40GB", [12, 0, BEYOND], 0, [0, 0, 0, 0], 0, 20),
    "b200_nvswitch": ("NVIDIA B200", [18, 0, BEYOND], 0, [0, 0, 0, 0], NO_LINKS, 40),
    "v100_cube_mesh": ("Tesla V100-SXM2-32GB", [6, 0, BEYOND], 5, NO_LINKS, 0, 10),
    "pcie_two_sockets": ("NVIDIA L40S", [0, 0, NO_LINKS], 5, [0, 0, 0, 0], NO_LINKS, 40),
    "h100_nvl": ("NVIDIA H100 NVL", [12, 6, BEYOND], 5, [0, 0, 0, 0], 0, 40),
    "consumer": ("NVIDIA GeForce RTX 4090", [0, 0, NO_LINKS], 5, NO_LINKS, NO_LINKS, 30),
    "rtx3090_cns": ("NVIDIA GeForce RTX 3090", [0, 0, NO_LINKS], 5, NO_LINKS, NO_LINKS, 30),
    "rtx_pro_6000": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", [0, 0, NO_LINKS], 5, NO_LINKS, NO_LINKS, 30),
    "rtx4090_patched": ("NVIDIA GeForce RTX 4090", [0, 0, NO_LINKS], 5, NO_LINKS, NO_LINKS, 10),
    "a6000_vm": ("NVIDIA RTX A6000", [0, 0, NO_LINKS], 5, NO_LINKS, NO_LINKS, 30),
    "wsl2": ("NVIDIA GeForce RTX 4090", [0, 0, NO_LINKS], 5, NO_LINKS, NO_LINKS, 30),
    "mig": ("NVIDIA A100 80GB PCIe", [0, 12, BEYOND], 5, [0, 0, 0, 0], 0, 50),
    "t4_vm": ("Tesla T4", [0, 0, NO_LINKS], BEYOND, NO_LINKS, NO_LINKS, NO_LINKS),
    "h200_vm": ("NVIDIA H200", [0, 0, NO_LINKS], 5, [0, 0, 0, 0], NO_LINKS, NO_LINKS),
    "container": ("NVIDIA H100 80GB HBM3", [18, 0, BEYOND], 0, [0, 0, 0, 0], 0, 40),
}
SAMPLE = """[
    of(n.nvmlDeviceGetName, gpus[0]), links(gpus[0]), of(n.nvmlDeviceGetP2PStatus, gpus[0], gpus[-1], 2),
    of(n.nvmlDeviceGetRemappedRows, gpus[0]), of(n.nvmlDeviceGetNvLinkErrorCounter, gpus[0], 0, 0),
    of(n.nvmlDeviceGetTopologyCommonAncestor, gpus[0], gpus[1 % len(gpus)])]"""


@pytest.mark.parametrize("name", machines.NAMES)
def test_each_machine_answers_as_its_hardware(name: str, tmp_path: Path) -> None:
    assert ask(load(name, tmp_path), SAMPLE) == list(SAMPLES[name])


def test_links_end_where_the_other_side_says_that_they_end(tmp_path: Path) -> None:
    """In a cube mesh each link meets the peer's link that meets it; a switch is a switch."""
    mesh = load("v100_cube_mesh", tmp_path).keys
    bus = {mesh[f"gpu.{gpu}.pci.bus"]: gpu for gpu in range(8)}
    pairs = Counter[tuple[int, int]]()
    for gpu in range(8):
        for link in range(6):
            peer, other = bus[mesh[f"gpu.{gpu}.link.{link}.remote.bus"]], mesh[f"gpu.{gpu}.field.146.{link}"]
            assert mesh[f"gpu.{peer}.link.{other}.remote.bus"] == mesh[f"gpu.{gpu}.pci.bus"]
            assert mesh[f"gpu.{peer}.field.146.{other}"] == link
            pairs[gpu, peer] += 1
    assert [pairs[0, 1], pairs[0, 3], pairs[0, 5]] == [1, 2, 0]
    ends = (
        "[[n.nvmlDeviceGetNvLinkRemoteDeviceType(gpus[0], 17), n.nvmlDeviceGetNvLinkRemotePciInfo(gpus[0], 17).busId]]"
    )
    assert ask(load("h100_nvswitch", tmp_path), ends) == [[2, "00000000:0A:00.0"]]


# Drivers


def test_an_old_driver_lacks_functions_and_fields(tmp_path: Path) -> None:
    code = """[
        of(n.nvmlDeviceGetComputeRunningProcesses, gpus[0]), of(n.nvmlDeviceGetComputeRunningProcesses_v2, gpus[0]),
        of(n.nvmlDeviceGetCurrentClocksEventReasons, gpus[0]), of(n.nvmlDeviceGetCurrentClocksThrottleReasons, gpus[0]),
        [field.nvmlReturn for field in n.nvmlDeviceGetFieldValues(gpus[0], [82, 230])]]"""
    missing = "NVMLError_FunctionNotFound 13"
    assert ask(load("old_driver", tmp_path), code) == ["NVMLLibraryMismatchError", [], missing, 1, [0, 2]]


def test_a_struct_of_another_version_is_refused(tmp_path: Path) -> None:
    code = """[
        of(n.nvmlDeviceGetMemoryInfo, gpus[0], 2), n.nvmlDeviceGetMemoryInfo(gpus[0], n.nvmlMemory_v2).reserved,
        n.nvmlDeviceGetMemoryInfo(gpus[0]).used,
        of(n.nvmlDeviceGetGpuFabricInfoV, gpus[0], n.byref(n.c_nvmlGpuFabricInfo_v3_t())),
        of(n.nvmlDeviceGetGpuFabricInfoV, gpus[0], n.byref(n.c_nvmlGpuFabricInfo_v2_t())),
        of(n.nvmlDeviceGetSramEccErrorStatus, gpus[0], n.byref(n.c_nvmlEccSramErrorStatus_v1_t())),
        of(n.nvmlDeviceGetTemperatureV, gpus[0], 0), of(n.nvmlDeviceGetMarginTemperature, gpus[0])]"""
    refused = "NVMLError_ArgumentVersionMismatch 25"
    assert ask(load("h100_nvswitch", tmp_path), code) == [refused, 578813952, 578813952, refused, 0, 0, 31, 56]


def test_the_newest_fabric_tells_its_health(tmp_path: Path) -> None:
    code = """(lambda told: [n.nvmlDeviceGetGpuFabricInfoV(gpus[1], n.byref(told)), told.state, told.healthMask,
        told.healthSummary, told.cliqueId, bytes(told.clusterUuid).hex()])(n.c_nvmlGpuFabricInfo_v3_t())"""
    changes = {"gpu.1.fabric.clique": 7, "gpu.1.fabric.cluster": "00112233445566778899aabbccddeeff"}
    told = ask(load("b200_nvswitch", tmp_path, changes), code)
    assert told == [0, 3, 0x80, 1, 7, "00112233445566778899aabbccddeeff"]


def test_nothing_can_be_set(tmp_path: Path) -> None:
    code = """[name for name in dir(n) if name.startswith("nvml")
        and any(verb in name for verb in ("Set", "Clear", "Reset", "Modify")) and hasattr(n.nvmlLib, name)]"""
    assert ask(load("consumer", tmp_path), code) == []


# Faults


def test_changes_and_errors(tmp_path: Path) -> None:
    changes = {
        "gpu.1.ecc.volatile.uncorrected": 3, "gpu.1.serial": "!4", "gpu.1.name": None, "gpu.1.link.4.state": 0,
        "gpu.1.processes.compute": "4711:1048576,4712:-", "gpu.1.retired.double": 2, "gpu.1.retired.single": 0,
        "gpu.1.field.230": 2, "gpu.1.field.208.3": "ull 5000000000", "gpu.1.field.193": "int -8", "excluded.count": 1,
        "excluded.0.bus": "00000000:D9:00.0", "excluded.0.uuid": "GPU-x",
    }  # fmt: skip
    code = """(lambda gpu, fields: [
        n.nvmlDeviceGetTotalEccErrors(gpu, 1, 0), n.nvmlDeviceGetTotalEccErrors(gpu, 1, 1),
        of(n.nvmlDeviceGetSerial, gpu), of(n.nvmlDeviceGetName, gpu), links(gpu)[:2],
        of(n.nvmlDeviceGetNvLinkRemotePciInfo, gpu, 4),
        [[one.pid, one.usedGpuMemory] for one in n.nvmlDeviceGetComputeRunningProcesses(gpu)],
        len(n.nvmlDeviceGetRetiredPages(gpu, 1)),
        [fields[0].value.uiVal, fields[1].value.ullVal, fields[2].value.siVal],
        n.nvmlGetExcludedDeviceInfoByIndex(0).pci.busId,
    ])(gpus[1], n.nvmlDeviceGetFieldValues(gpus[1], [230, (208, 3), 193]))"""
    assert ask(load("h100_nvswitch", tmp_path, changes), code) == [
        3, 0, "NVMLError_NoPermission 4", NO_LINKS, [17, 1], NO_LINKS, [[4711, 1048576], [4712, None]], 2,
        [2, 5000000000, -8], "00000000:D9:00.0",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [9, 18])
def test_a_driver_that_does_not_start(error: int, tmp_path: Path) -> None:
    machine = load("consumer", tmp_path, {"init": f"!{error}"})
    code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as error: print(error.value)"
    assert printed(machine, code) == f"{error}\n"


HANGS: dict[str, tuple[dict[str, object], str]] = {
    "init": ({"init.hang": 1}, "n.nvmlInit()"),
    "look-up": ({"gpu.1.hang": "handle"}, "n.nvmlDeviceGetHandleByIndex(1)"),
    "any call": ({"gpu.1.hang": "*"}, "n.nvmlDeviceGetName(gpu)"),
    "its calls": ({"gpu.1.hang": "nvmlDeviceGetSerial,nvmlDeviceGetNvLink*"}, "n.nvmlDeviceGetNvLinkState(gpu, 0)"),
}


@pytest.mark.parametrize("which", HANGS)
def test_a_call_that_hangs_ends_with_its_process(which: str, tmp_path: Path) -> None:
    changes, call = HANGS[which]
    before = {"init": "", "look-up": "n.nvmlInit()"}.get(which, "n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex(1)")
    start = f"import signal, pynvml as n\nsignal.alarm(30)\n{before}\nprint('calling', flush=True)"
    code = f"{start}\n{call}\nprint('returned', flush=True)"
    environ = os.environ | load("consumer", tmp_path, changes).environ()
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "calling\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)
        child.kill()
        assert child.stdout.read() == ""


def test_a_gpu_whose_other_calls_hang_answers_the_rest(tmp_path: Path) -> None:
    machine = load("consumer", tmp_path, {"gpu.1.hang": "nvmlDeviceGetSerial", "gpu.0.slow": "nvmlDeviceGetName:0.05"})
    code = "[of(n.nvmlDeviceGetName, gpu) for gpu in gpus]"
    assert ask(machine, code) == ["NVIDIA GeForce RTX 4090"] * 2


def test_a_gpu_is_lost_in_mid_run_and_stays_lost(tmp_path: Path) -> None:
    machine = load("h100_nvswitch", tmp_path, {"gpu.3.lost_after": 3, "gpu.4.calls": "!16"})
    code = "[of(n.nvmlDeviceGetPersistenceMode, gpus[index]) for index in (3, 3, 3, 3, 4, 5)]"
    lost = "NVMLError_GpuIsLost 15"
    assert ask(machine, code) == [1, 1, lost, lost, "NVMLError_ResetRequired 16", 1]
    again = "import pynvml as n\nn.nvmlInit()\nn.nvmlDeviceGetHandleByIndex(2)\ntry: n.nvmlDeviceGetHandleByIndex(3)\n"
    assert printed(machine, f"{again}except n.NVMLError as error: print(error.value)") == "15\n"


def test_late_keys_hold_from_the_next_start_on(tmp_path: Path) -> None:
    machine = load("h100_nvswitch", tmp_path, late={"gpu.0.pcie.replay": 9, "gpu.0.memory.used": 1 << 30})
    code = """(lambda read: [read(), open(os.environ["PREFLIGHT_STANDIN"] + ".late", "w").close(), read(),
        n.nvmlShutdown(), n.nvmlInit(), read()])(lambda: [n.nvmlDeviceGetPcieReplayCounter(gpus[0]),
        n.nvmlDeviceGetMemoryInfo(gpus[0], n.nvmlMemory_v2).used])"""
    before = [0, 0]
    assert ask(machine, code) == [before, None, before, None, None, [9, 1 << 30]]


def test_a_misspelled_key_or_function_is_refused(tmp_path: Path) -> None:
    for wrong in ("gpu.0.ecc.volatile.uncorectable", "gpu.x.name", "gpu.0.link.state", "gpu.0.temprature"):
        with pytest.raises(AssertionError, match="no key"):
            load("consumer", tmp_path, {wrong: 1})
    with pytest.raises(AssertionError, match="no function"):
        library.build(["nvmlDeviceGetTemperatur"])


# MIG, and what a container sees


def test_mig_instances_have_handles_of_their_own(tmp_path: Path) -> None:
    code = """(lambda found: [
        n.nvmlDeviceGetMigMode(gpus[0]), n.nvmlDeviceGetMigMode(gpus[1]),
        [of(n.nvmlDeviceGetMigDeviceHandleByIndex, gpus[0], index) for index in (3, 7)],
        [n.nvmlDeviceGetUUID(one)[:4] for one in found], [n.nvmlDeviceGetMemoryInfo(one).total >> 30 for one in found],
        bool(n.nvmlDeviceIsMigDeviceHandle(found[0])), bool(n.nvmlDeviceIsMigDeviceHandle(gpus[0])),
    ])([n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], index) for index in range(3)])"""
    none, beyond = "NVMLError_NotFound 6", BEYOND
    told = ask(load("mig", tmp_path), code)
    assert told == [[1, 1], [0, 0], [none, beyond], ["MIG-"] * 3, [39, 19, 9], True, False]


SYSFS = """[
    [name for name in sorted(os.listdir("/sys/bus/pci/devices"))
     if open(f"/sys/bus/pci/devices/{name}/class").read().strip() == "0x030200"],
    sorted(os.listdir("/proc/driver/nvidia/gpus")), os.path.realpath("/sys/class/infiniband/mlx5_2/device"),
    os.path.realpath("/sys/bus/pci/devices/0000:52:00.0"), os.path.realpath("/sys/bus/pci/devices/0000:52:00.0/driver"),
    open("/sys/bus/pci/devices/0000:52:00.0/current_link_width").read().strip(),
    open("/sys/bus/pci/devices/0000:4e:01.0/current_link_width").read().strip(),
    open("/sys/devices/system/node/node1/cpulist").read().strip(), os.path.exists("/sys/class/net/lo/mtu"),
    open("/proc/version").read(), os.path.exists("/sys/module/nvidia_peermem")]"""


@needs_mounts
def test_a_container_hides_gpus_from_the_driver_but_not_from_sysfs(tmp_path: Path) -> None:
    files = {"/proc/version": "Linux of another time\n", "/sys/module/nvidia_peermem": None}
    gpus, driver, nic, gpu, module, *rest = ask(
        load("container", tmp_path, {"gpu.0.pcie.width": 8}, files=files), SYSFS, mounts=True
    )
    assert len(gpus) == 8 and driver == ["0000:52:00.0", "0000:61:00.0"]
    assert nic == "/sys/devices/pci0000:4c/0000:4c:01.0/0000:4d:00.0/0000:4e:00.0/0000:4f:00.0"
    assert gpu == "/sys/devices/pci0000:4c/0000:4c:01.0/0000:4d:00.0/0000:4e:01.0/0000:52:00.0"
    assert module == "/sys/bus/pci/drivers/nvidia"
    assert rest == ["8", "8", "56-111,168-223", True, "Linux of another time\n", False]


@needs_mounts
def test_a_service_runs_while_the_command_does(tmp_path: Path) -> None:
    machine = load("h100_nvswitch", tmp_path, services=("nvidia-imex",))
    comms = """[[pid, open(f"/proc/{pid}/comm").read()] for pid in os.listdir("/proc") if pid.isdecimal()
        and os.path.exists(f"/proc/{pid}/exe") and os.readlink(f"/proc/{pid}/exe").startswith("/tmp/preflight-standin-")
        and os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")]"""
    ((pid, comm),) = ask(machine, comms, mounts=True)
    assert comm == "nvidia-imex\n"
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        assert select.select([os.pidfd_open(int(pid))], [], [], 30)[0]
    assert ask(load("h100_nvswitch", tmp_path), comms, mounts=True) == []


@needs_mounts
def test_a_file_of_a_device_can_be_changed_through_its_link(tmp_path: Path) -> None:
    path = "/sys/bus/pci/devices/0000:27:00.0/numa_node"
    machine = load("pcie_two_sockets", tmp_path, files={path: "1\n"})
    assert ask(machine, f"open({path!r}).read()", mounts=True) == "1\n"
