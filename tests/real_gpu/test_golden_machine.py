"""The machine h200_vm answers what a real H200 answered (torch 2.11, driver 580.159.04, a virtual machine with one GPU
whose driver has NVLink turned off; UUID and serial are made up)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import running
from tests.checks.gpu.in_machine import needs_machines
from tests.checks.gpu.test_reading import read
from tests.real_gpu import nvml_fixture
from tests.standin import machines
from tests.standin.machines import Machine

pytestmark = needs_machines
FIXTURES = Path(__file__).parent / "fixtures"
FAMILY = json.loads((FIXTURES / "h200_family_gpu.json").read_text())
IDLE, LOAD = (json.loads((FIXTURES / f"h200_nvml_{state}.json").read_text()) for state in ("idle", "load"))
NEWER = {
    ".health.0.values.memory_bus_bits": IDLE["nvmlDeviceGetMemoryBusWidth()"]["value"],
    ".health.0.values.pcie_kbs": None,
    ".health.0.values.utilization": IDLE["nvmlDeviceGetUtilizationRates()"]["value"]["gpu"],
}
"""What the family did not yet read when FAMILY was recorded, from the same card's own answers."""
CPUS = {"/proc/cpuinfo": "vendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n"}
"""The CPUs are no part of a machine of the stand-in: it keeps those of the machine that runs the tests."""
NOT_FOUND = {"error": 13}
"""Of a function that the stand-in does not have: the family gpu does not ask it."""
AT_WORK: dict[str, object] = {
    "bar1.used": 2873622528, "clock.graphics": 1545, "clock.sm": 1545, "clock.video": 1545, "reasons": 4,
    "temperature": 56, "temperature.margin": 25, "memory.used": 2871853056, "power.usage": 683115,
    "field.74": "ull 5428584640", "field.78": "ull 120797177888", "field.80": "ull 53728195680",
    "field.81": "ull 49724774272", "field.82": 43, "field.83": "ull 19810913", "field.185": 685429, "field.186": 635303,
    "field.191": "ull 19810913", "field.197": 623562452, "field.198": 456196372,
    "utilization.gpu": 98, "utilization.memory": 25, "pcie.tx": 8666, "pcie.rx": 17292,
}  # fmt: skip
"""What GEMMs change in the answers that the stand-in has."""


def fields(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of all that is no list or dictionary, and of empty ones."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inner or not value:
        yield path, value
    for key, each in inner:
        yield from fields(each, f"{path}.{key}")


def test_the_family_gpu_reads_what_it_read_from_the_card(tmp_path: Path) -> None:
    machine = machines.load("h200_vm", tmp_path, files=CPUS)
    assert dict(fields(read(machine))) == dict(fields(FAMILY)) | NEWER


@pytest.mark.parametrize(("card", "changes"), [(IDLE, {}), (LOAD, AT_WORK)], ids=["idle", "load"])
def test_each_function_answers_as_the_card_did(card: Any, changes: dict[str, object], tmp_path: Path) -> None:
    machine = machines.load("h200_vm", tmp_path, {f"gpu.0.{key}": value for key, value in changes.items()})
    answers = recorded(machine, tmp_path / "record.json")
    answers = {call: answer for call, answer in answers.items() if answer != NOT_FOUND}
    unlike = {call: (answer, card[call]) for call, answer in answers.items() if call in card and answer != card[call]}
    assert unlike == {}
    assert set(answers) > {f"field {field}" for field in range(1, 301)}


def recorded(machine: Machine, path: Path) -> Any:
    """What `nvml_record` and then `nvml_fixture` make of it."""
    env = os.environ | machine.environ() | {"PYTHONPATH": str(running.ROOT)}
    words = [sys.executable, "-m", "tests.real_gpu.nvml_record", str(path)]
    subprocess.run(words, env=env, check=True, timeout=running.HUNG_S)
    return nvml_fixture.compact(json.loads(path.read_text()))
