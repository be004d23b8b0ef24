"""The fault table's rows on made-up machines: real runs, real pynvml, a stand-in library."""

from pathlib import Path

import pytest

from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.faults import ELSEWHERE, GPU_ROWS, gpu_row, row
from tests.faults.gpu_row import GpuFault
from tests.standin import machines

pytestmark = needs_machines


@pytest.mark.parametrize("name", machines.NAMES)
def test_a_healthy_machine_gives_no_finding(name: str, tmp_path: Path) -> None:
    finished = in_machine.run(machines.load(name, tmp_path), tmp_path, container=name == "container")
    assert finished.findings() == [], finished.told()
    assert {check["status"] for check in finished.report["checks"]} == {"pass"}, finished.told()
    assert finished.exit_codes == [0] and finished.left_over == [], finished.told()


def test_a_driver_that_takes_15_ms_a_call_is_healthy(tmp_path: Path) -> None:
    """One call after the other takes longer than the run may."""
    machine = machines.load("h100_nvswitch", tmp_path, {f"gpu.{gpu}.slow": "*:0.015" for gpu in range(8)})
    finished = in_machine.run(machine, tmp_path)
    assert finished.findings() == [] and finished.exit_codes == [0], finished.told()
    assert {check["status"] for check in finished.report["checks"]} == {"pass"}, finished.told()


@pytest.mark.parametrize("rows", row.params(gpu_row.runs(GPU_ROWS)))
def test_it_is_found_and_nothing_else(rows: tuple[GpuFault, ...], tmp_path: Path) -> None:
    first = rows[0]
    changes = {key: value for fault in rows for key, value in fault.changes.items()}
    machine = machines.load(first.machine, tmp_path, changes, absent=first.absent, files=first.files)
    container = first.machine == "container"
    finished = in_machine.run(machine, tmp_path, *first.arguments, environ=first.environ, container=container)
    found = finished.findings(finds=_finds(rows))
    assert {f"{finding['severity']} {finding['code']}" for finding in found} <= _finds(rows), finished.told()
    for fault in rows:
        mine = [finding for finding in found if f"{finding['severity']} {finding['code']}" in fault.finds]
        assert fault.is_told_by(mine), f"{fault.name}: {finished.told()}"
        assert not mine or any(fault.says in finding["message"] for finding in mine), f"{fault.name}: {finished.told()}"
    assert finished.exit_codes == [max(fault.exit_code for fault in rows)], finished.told()
    assert finished.left_over == [], finished.told()


def _finds(rows: tuple[GpuFault, ...]) -> set[str]:
    return {find for fault in rows for find in fault.finds}


def test_modified_kernel_modules_are_told_and_nothing_else(tmp_path: Path) -> None:
    finished = in_machine.run(
        machines.load("rtx4090_patched", tmp_path), tmp_path, "--level", "quick", "--only", "gpu.topology"
    )
    modified = ELSEWHERE["driver_modified"]
    topology = next(check for check in finished.report["checks"] if check["check"] == "gpu.topology")
    assert modified.is_told_by(topology["findings"]), finished.told()
    assert modified.says in topology["findings"][0]["message"] and len(topology["findings"]) == 1, finished.told()
    assert finished.exit_codes == [modified.exit_code], finished.told()


def test_an_excluded_gpu_is_told_and_nothing_else(tmp_path: Path) -> None:
    changes = {"count": 7, "excluded.count": 1, "excluded.0.bus": "00000000:DF:00.0", "excluded.0.uuid": "GPU-7"}
    finished = in_machine.run(machines.load("h100_nvswitch", tmp_path, changes), tmp_path)
    excluded = ELSEWHERE["gpu_excluded"]
    inventory = next(check for check in finished.report["checks"] if check["check"] == "gpu.inventory")
    assert excluded.is_told_by(inventory["findings"]), finished.told()
    assert excluded.says in inventory["findings"][0]["message"], finished.told()
    assert finished.findings() == [] and finished.exit_codes == [excluded.exit_code], finished.told()
    assert {check["status"] for check in finished.report["checks"]} == {"pass"}, finished.told()
