"""The fault table's rows on made-up machines: real runs, real pynvml, a stand-in library."""

from pathlib import Path

import pytest

from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.faults import GPU_ROWS
from tests.faults.gpu_row import GpuFault
from tests.standin import machines

pytestmark = needs_machines


@pytest.mark.parametrize("name", machines.NAMES)
def test_a_healthy_machine_gives_no_finding(name: str, tmp_path: Path) -> None:
    finished = in_machine.run(machines.load(name, tmp_path), tmp_path, container=name == "container")
    assert finished.findings() == [], finished.told()
    assert {check["status"] for check in finished.report["checks"]} == {"pass"}, finished.told()
    assert finished.exit_codes == [0] and finished.left_over == [], finished.told()


@pytest.mark.parametrize("fault", GPU_ROWS, ids=lambda fault: fault.name)
def test_it_is_found_and_nothing_else(fault: GpuFault, tmp_path: Path) -> None:
    machine = machines.load(fault.machine, tmp_path, fault.changes, absent=fault.absent, files=fault.files)
    container = fault.machine == "container"
    finished = in_machine.run(machine, tmp_path, *fault.arguments, environ=fault.environ, container=container)
    found = finished.findings()
    assert fault.is_told_by(found), finished.told()
    assert not found or any(fault.says in finding["message"] for finding in found), finished.told()
    assert finished.exit_codes == [fault.exit_code] and finished.left_over == [], finished.told()
