"""Judging on made-up facts, and who holds a GPU; real runs stand in test_gpu_faults.py too."""

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from preflight import testing
from preflight.check import Run
from preflight.checks.gpu import health
from preflight.checks.gpu.health import in_use
from preflight.checks.gpu.shared import processes
from preflight.checks.gpu.shared.readings import Health
from preflight.planning import registry
from tests import made
from tests.checks.gpu import in_machine, made_gpus
from tests.checks.gpu.in_machine import needs_machines
from tests.checks.gpu.made_gpus import GIB, NAME, on_nodes
from tests.large import timed
from tests.standin import machines

Facts = dict[int, dict[str, Any]]
STRANGER = {"name": "python", "user": "bob", "seconds": 11000.0, "ours": False}


def healthy() -> Health:
    """An idle H100."""
    return {
        "ecc": True, "ecc_pending": True,
        "ecc_errors": {"volatile_corrected": 0, "volatile_uncorrected": 0, "aggregate_corrected": 3,
                       "aggregate_uncorrected": 0},
        "sram": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "threshold_exceeded": 0},
        "remapped": {"corrected": 1, "uncorrected": 2, "pending": 0, "failed": 0},
        "retired": {"single_bit": None, "double_bit": None, "pending": None},
        "recovery_action": 0, "throttle": 0x1, "temperature": 30,
        "temperature_limits": {"shutdown": 92, "slowdown": 89, "memory_max": 95, "gpu_max": 87},
        "temperature_margin": 56, "memory_temperature": 41, "persistence": True, "pstate": 0,
        "power_limit_mw": 700_000, "power_default_mw": 700_000,
        "clocks": {"sm": 345, "memory": 2619, "sm_max": 1980, "memory_max": 2619, "sm_application": 1980,
                   "sm_application_default": 1980},
        "bar1": 128 * GIB, "memory_total": 80 * GIB, "memory_used": 2**22, "memory_reserved": GIB // 2,
        "processes": [], "inforom_valid": True,
    }  # fmt: skip


def desktop() -> Health:
    """A card that gives almost nothing, and shows a screen."""
    card = healthy()
    unknown = dict.fromkeys(card["ecc_errors"])
    card.update({"ecc": None, "ecc_pending": None, "ecc_errors": unknown, "sram": None, "remapped": None})
    card.update({"recovery_action": None, "throttle": None, "temperature_margin": None, "persistence": False})
    card.update({"temperature_limits": dict.fromkeys(card["temperature_limits"]), "memory_temperature": None})
    card.update({"power_limit_mw": None, "memory_reserved": None, "memory_used": GIB, "processes": None})
    card.update({"clocks": dict.fromkeys(card["clocks"]), "bar1": None, "inforom_valid": None, "pstate": 8})
    return card


def facts_of(*sizes: int, of: Callable[[], Health] = healthy) -> Facts:
    """By rank; the first of a node looks at all its GPUs, as many as it has ranks."""
    return {
        rank: {"look": made_gpus.look({uuid: of() for uuid in size["look"]["gpus"]}),
               "holders": {}}
        for rank, size in made_gpus.inventory(*sizes).items()
    }  # fmt: skip


def judged(facts: Facts, *sizes: int, **settings: object) -> list[dict[str, Any]]:
    reads = {"gpu.inventory": made_gpus.inventory(*sizes)}
    return testing.judge(health, facts, nodes=on_nodes(*sizes), backend="nccl", settings=settings, reads=reads)


@pytest.mark.parametrize("of", [healthy, desktop])
@pytest.mark.parametrize("sizes", [(1,), (2,), (8, 8)])
def test_sound_gpus_give_no_finding(sizes: tuple[int, ...], of: Callable[[], Health]) -> None:
    assert judged(facts_of(*sizes, of=of), *sizes) == []


def _held(by: dict[str, Any], memory: int | None = 20 * GIB) -> dict[str, Any]:
    return {"processes": [{"pid": 4711, "memory": memory}], "memory_used": memory or GIB // 2, "holder": by}


def _mode(name: str) -> dict[str, Any]:
    return {**STRANGER, "name": name}


_SRAM = {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "threshold_exceeded": 0}
_PAGES = {"single_bit": 0, "double_bit": 0, "pending": 0}


def _drawing(mib: int) -> dict[str, Any]:
    """A browser, which is listed for graphics alone."""
    used = mib * 2**20
    return {**_held(STRANGER, used), "processes": [{"pid": 4711, "memory": used, "draws": True}], "memory_used": used}


FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("fail uncorrected", {"ecc_errors.volatile_uncorrected": 1}, "1 uncorrectable memory error since", "nvidia-smi -r"),
    ("fail uncorrected", {"sram.volatile_uncorrected": 2, "recovery_action": 1}, "2 uncorrectable memory errors", ""),
    ("info uncorrected", {"ecc_errors.aggregate_uncorrected": 7}, "7 uncorrectable memory errors in the GPU's", ""),
    ("fail sram", {"sram": {**_SRAM, "threshold_exceeded": 1, "volatile_uncorrected": 1}}, "exceeded", "replace"),
    ("warn sram", {"sram.aggregate_uncorrected": 5}, "5 uncorrectable SRAM errors in the GPU's life", "replace"),
    ("info uncorrected", {"sram.aggregate_uncorrected": 4}, "4 uncorrectable memory errors in the GPU's life", ""),
    ("fail remapped", {"remapped.failed": 1, "ecc_errors.volatile_uncorrected": 1}, "could not be remapped", "replace"),
    ("warn remapped", {"remapped.uncorrected": 512}, "512 memory rows are remapped, expected fewer", "replace"),
    ("warn remapped", {"remapped.pending": 1}, "memory rows wait to be remapped at the next reset", "nvidia-smi -r"),
    ("warn retired", {"remapped": None, "retired": {**_PAGES, "pending": 1}}, "memory pages wait to be", "smi -r"),
    ("warn retired", {"retired": {**_PAGES, "single_bit": 63}}, "63 memory pages are retired, 0 after", "replace"),
    ("warn retired", {"retired": {**_PAGES, "double_bit": 16}}, "16 memory pages are retired, 16 after", "replace"),
    ("warn corrected", {"ecc_errors.aggregate_corrected": 20_000_001}, "20,000,001 corrected memory errors", ""),
    ("fail recovery", {"recovery_action": 1}, "asks for a reset of the GPU, expected none", "nvidia-smi -r -i 2"),
    ("fail recovery", {"recovery_action": 2, "ecc_errors.volatile_uncorrected": 0}, "a reboot of the node", "Reboot"),
    ("fail recovery", {"recovery_action": 3}, "an end of P2P traffic (drain P2P)", "End all processes on node-1"),
    ("fail recovery", {"recovery_action": 4, "remapped.pending": 1}, "expected none: memory rows wait", "-r"),
    ("fail recovery", {"recovery_action": 5}, "a recovery of the IMEX domain", "nvidia-imex"),
    ("fail recovery", {"recovery_action": 6}, "a reset of the bus", "PCIe slot of GPU 2"),
    ("fail recovery", {"recovery_action": 7}, "a reboot of the whole system", "share its GPUs"),
    ("fail recovery", {"recovery_action": 99}, "recovery action 99", ""),
    ("warn inforom", {"inforom_valid": False}, "the InfoROM is corrupt", "replace"),
    ("warn hot", {"temperature": 87, "temperature_margin": 0, "throttle": 0x28}, "is at 87 °C with 0 degrees left", ""),
    ("warn hot", {"temperature": 87, "temperature_margin": None}, "expected less than its limit of 87 °C", ""),
    ("warn hot", {"memory_temperature": 95}, "the memory is at 95 °C, expected less than its limit of 95 °C", ""),
    ("warn throttled", {"throttle": 0x48}, "HW Thermal Slowdown (SM clock 345 of 1980 MHz)", ""),
    ("warn throttled", {"throttle": 0xA8}, "HW Power Brake and SW Thermal Slowdown (SM clock", ""),
    ("warn throttled", {"throttle": 0x8, "clocks.sm": None}, "HW Slowdown, expected no", ""),
    ("warn persistence", {"persistence": False}, "persistence mode is off, expected on as on 3 of 4 GPUs", "-pm 1"),
    ("warn ecc_mode", {"ecc": False, "ecc_pending": False}, "the ECC mode is off, expected on as on 3 of 4 GPUs", ""),
    ("warn ecc_mode", {"ecc_pending": False}, "the ECC mode is on (off after the next reset), expected on as", ""),
    ("warn clock", {"clocks.sm_max": 1500}, "the highest SM clock is 1,500 MHz, expected 1,980 MHz", ""),
    ("warn clock", {"clocks.memory_max": 1500}, "the highest memory clock is 1,500 MHz", ""),
    ("warn clock", {"clocks.memory": 1500}, "the memory clock in P0 is 1,500 MHz, expected 2,619 MHz", ""),
    ("warn clock", {"clocks.sm_application": 600}, "the SM application clock is 600 MHz, expected 1,980", "-rac"),
    ("warn power_limit", {"power_limit_mw": 300_000}, "the power limit is 300 W, expected 700 W as on 3 of 4", "-pl"),
    ("warn bar1", {"bar1": 2**28}, "the size of BAR1 is 256 MiB, expected 131,072 MiB as on 3 of 4 GPUs", ""),
    ("warn process", {**_held(STRANGER), "memory_used": 30 * GIB},
     "python (pid 4711, user bob, for 3 h, 20 GiB); expected no", "ps -fp 4711"),
    ("warn process", _held({**STRANGER, "name": None, "user": None, "seconds": None}, None),
     "a process that cannot be seen from here (pid 4711); expected", ""),
    ("info process", _held(_mode("Xorg"), 2**28), "Xorg (pid 4711, user bob, for 3 h, 256 MiB)", ""),
    ("info process", _held(_mode("nvidia-cuda-mps-server"), 2**25), "nvidia-cuda-mps-server (pid 4711", ""),
    ("warn memory_used", {"memory_used": 3 * GIB}, "3.0 of 80.0 GiB are in use, and no process is listed", "fuser"),
    ("warn memory_used", {"memory_used": 3 * GIB, "processes": None}, "processes cannot be listed here", "fuser"),
    ("info memory_used", {"memory_used": 500 * 2**20}, "500 MiB are in use, and no process is listed", "fuser"),
    ("info process", _drawing(700), "(pid 4711, user bob, for 3 h, 700 MiB)", ""),
    ("warn process", _drawing(1500), "(pid 4711, user bob, for 3 h, 1.46 GiB); expected no", "ps -fp 4711"),
    ("warn memory_used", {**_held({**STRANGER, "ours": True}, GIB), "memory_used": 3 * GIB}, "2.0 of 80.0 GiB", ""),
]  # fmt: skip


def change(facts: Facts, rank: int, uuid: str, changes: dict[str, Any]) -> None:
    """ "sram.volatile_uncorrected" is a value inside another; "holder" is who has pid 4711."""
    for key, value in changes.items():
        outer, _, inner = key.rpartition(".")
        if key == "holder":
            facts[rank]["holders"]["4711"] = value
        else:
            gpu = facts[rank]["look"]["gpus"][uuid]
            (gpu[outer] if outer else gpu)[inner] = value


@pytest.mark.parametrize(("finds", "changes", "says", "fix"), FAULTS, ids=[str(fault[1]) for fault in FAULTS])
def test_the_gpu_is_named(finds: str, changes: dict[str, Any], says: str, fix: str) -> None:
    facts = facts_of(4, 4, 4)
    change(facts, 4, "GPU-1-2", changes)
    (found,) = judged(facts, 4, 4, 4)
    assert f"{found['severity']} {found['code']}".replace("gpu.health.", "") == finds, found
    assert found["where"] == {"node": "node-1", "gpu": 2, "uuid": "GPU-1-2", "serial": "1650000012"}
    assert says in found["message"] and "expected" in found["message"], found
    assert fix in found["fix"] and not re.search(r"[{}]", found["fix"]), found


def test_every_code_has_a_fault() -> None:
    codes = {fault[0].split()[1] for fault in FAULTS} | {"no_answer", "spins"}
    assert codes == set(registry.load(registry.sources()["gpu.health"]).codes)


def test_a_hardware_fault_carries_what_a_return_form_asks_for() -> None:
    facts = facts_of(2)
    change(facts, 0, "GPU-0-1", {"remapped.failed": 1})
    (found,) = judged(facts, 2)
    assert found["evidence"] == {
        "bus": "0000:11:00.0", "board": "692-2G520", "module": 1, "vbios": "96.00.74.00.01",
        "inforom": "G520.0200.00.05",
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"throttle": 0x1 | 0x2 | 0x4 | 0x10 | 0x100},
        {"pstate": 8, "clocks.memory": 405},
        {"temperature": 88},
        {"memory_used": 300 * 2**20},
        {"memory_used": 2 * GIB, "memory_reserved": None},
        _held({**STRANGER, "ours": True}),
        {"processes": None},
    ],
    ids=str,
)
def test_what_is_no_fault(changes: dict[str, Any]) -> None:
    """Harmless reasons, power saving, a limit that a margin speaks for, the driver's reserve, and our own."""
    facts = facts_of(4)
    change(facts, 0, "GPU-0-2", changes)
    assert judged(facts, 4) == []


SET_ON_ALL = [
    ({"persistence": False}, f"persistence mode is off on 4 GPUs ({NAME}), expected on"),
    ({"power_limit_mw": 500_000}, "the power limit is 500 W on 4 GPUs"),
    ({"clocks.sm_application": 1200}, "the SM application clock is 1,200 MHz on 4 GPUs"),
    ({"ecc_pending": False}, "the ECC mode is on (off after the next reset) on 4 GPUs"),
]


@pytest.mark.parametrize(("changes", "says"), SET_ON_ALL, ids=[said for _, said in SET_ON_ALL])
def test_what_is_set_on_all_alike_is_worth_knowing(changes: dict[str, Any], says: str) -> None:
    facts = facts_of(2, 2)
    for rank, node in ((0, 0), (2, 1)):
        for gpu in (0, 1):
            change(facts, rank, f"GPU-{node}-{gpu}", changes)
    (found,) = judged(facts, 2, 2)
    assert (found["severity"], found["where"]) == ("info", {}) and says in found["message"]


def test_who_has_its_own_default_is_not_the_odd_one() -> None:
    facts = facts_of(4)
    for gpu in range(3):
        change(facts, 0, f"GPU-0-{gpu}", {"power_limit_mw": 500_000})
    (found,) = judged(facts, 4)
    assert found["severity"] == "info" and "500 W on 3 GPUs" in found["message"]


def test_one_against_one_blames_none() -> None:
    facts = facts_of(2)
    change(facts, 0, "GPU-0-1", {"bar1": 2**28})
    (found,) = judged(facts, 2)
    assert found["where"] == {} and "131,072 MiB on GPU 0, 256 MiB on GPU 1 of node-0" in found["message"]


def test_a_node_that_is_set_up_otherwise_is_named_once() -> None:
    facts = facts_of(2, 2, 2)
    for gpu in (0, 1):
        change(facts, 2, f"GPU-1-{gpu}", {"power_limit_mw": 300_000})
    (found,) = judged(facts, 2, 2, 2)
    assert found["where"] == {"node": "node-1"} and "300 W, expected 700 W as on 2 of 3 nodes" in found["message"]


def test_how_much_memory_may_be_used_is_an_option() -> None:
    facts = facts_of(1)
    change(facts, 0, "GPU-0-0", {"memory_used": 300 * 2**20})
    assert judged(facts, 1) == []
    assert len(judged(facts, 1, max_used_mib=200)) == 1


def test_of_many_processes_some_are_named() -> None:
    facts = facts_of(1)
    listed = [{"pid": pid, "memory": None} for pid in range(1, 8)]
    change(facts, 0, "GPU-0-0", {"processes": listed})
    facts[0]["holders"] = {str(pid): STRANGER for pid in range(1, 8)}
    (found,) = judged(facts, 1)
    assert "for 3 h) and 3 more; expected" in found["message"] and found["evidence"]["pids"] == "1,2,3,4,5,6,7"


def test_512_nodes_with_one_odd_gpu_are_judged() -> None:
    sizes = [8] * 512
    facts = facts_of(*sizes)
    change(facts, 8 * 300, "GPU-300-5", {"power_limit_mw": 300_000})
    with timed("gpu.health, 512 nodes of which one GPU is odd"):
        (found,) = judged(facts, *sizes)
    assert (found["where"]["node"], found["where"]["gpu"]) == ("node-300", 5)


@pytest.mark.parametrize(
    ("of", "summary"),
    [(healthy, "2 GPUs, 30 to 30 °C"), (desktop, "2 GPUs, 30 to 30 °C, processes cannot be listed on 2")],
)
def test_the_summary_says_what_was_seen(of: Callable[[], Health], summary: str) -> None:
    run = Run(made.job(2), (0, 1), {}, {}, lambda _: made_gpus.inventory(2))
    assert health.summarize(facts_of(2, of=of), run) == summary  # type: ignore[arg-type]


# Who holds a GPU


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process that nobody of this run has started: its parent has ended."""
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
    pid = int(subprocess.check_output([sys.executable, "-c", script], start_new_session=True))
    yield pid
    psutil.Process(pid).kill()


def test_a_stranger_is_told_with_name_user_and_age(stranger: int) -> None:
    holder = processes.holders([stranger])[str(stranger)]
    assert (holder["name"], holder["user"], holder["ours"]) == ("sleep", psutil.Process().username(), False)
    words = rf"sleep \(pid {stranger}, user \S+, for \d+ s, 2 GiB\)"
    assert re.fullmatch(words, processes.describe(stranger, holder, 2 * GIB))


def test_our_own_are_told_from_strangers(stranger: int) -> None:
    context = multiprocessing.get_context("fork")
    waits = context.Event()
    child = context.Process(target=waits.wait, args=(60,))
    child.start()
    grandchild = subprocess.Popen(["sleep", "60"])
    try:
        ours = {os.getpid(), os.getppid(), child.pid or 0, grandchild.pid} - {1}
        found = processes.holders([*ours, 1, stranger, 2**22 + 1])
        assert {pid for pid, holder in found.items() if holder["ours"]} == {str(pid) for pid in ours}
        assert found[str(2**22 + 1)]["name"] is None
    finally:
        waits.set()
        child.join()
        grandchild.kill()
        grandchild.wait()


def test_without_processes_nobody_is_looked_for() -> None:
    assert processes.holders([]) == {}


@needs_machines
def test_a_real_stranger_is_named_and_who_started_us_is_not(stranger: int, tmp_path: Path) -> None:
    held = {"gpu.1.processes.compute": f"{os.getpid()}:{GIB}", "gpu.2.processes.graphics": f"{stranger}:{4 * GIB}"}
    machine = machines.load("h100_nvswitch", tmp_path, held)
    finished = in_machine.run(machine, tmp_path, "--level", "quick", "--only", "gpu.health")
    (found,) = finished.findings()
    assert (found["code"], found["where"]["gpu"]) == ("gpu.health.process", 2), finished.told()
    assert f"sleep (pid {stranger}, user " in found["message"] and "4 GiB" in found["message"], finished.told()


@pytest.mark.parametrize(
    ("looks", "held", "found"),
    [([100, 100], [], 1), ([100, 3], [], 0), ([100], [], 0), ([100, 100], None, 1)],
    ids=["twice", "a driver that was just started", "then a process came", "not listed"],
)
def test_a_gpu_that_works_for_nobody_is_told_after_two_looks(looks: list[int], held: Any, found: int) -> None:
    facts = facts_of(2)
    facts[0]["look"]["gpus"]["GPU-0-1"] |= {"utilization": 100, "pcie_kbs": 0, "processes": held}
    facts[0]["at_work"] = {"GPU-0-1": looks}
    told = judged(facts, 2)
    assert [(finding["code"], finding["where"]["gpu"]) for finding in told] == [("gpu.health.spins", 1)] * found


def test_the_second_look_counts_only_where_nobody_has_come() -> None:
    first, idle, taken = healthy(), healthy(), healthy()
    first["utilization"] = 90
    taken |= {"utilization": 95, "processes": [{"pid": 1, "memory": None}]}
    assert in_use.works_for_nobody(first) and not in_use.works_for_nobody(idle)
    assert not in_use.works_for_nobody(taken)
    assert [in_use.twice(first, second) for second in (idle, taken, None)] == [[90, 0], [90], [90]]
