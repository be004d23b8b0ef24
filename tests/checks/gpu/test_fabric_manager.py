"""node.kernel on a made-up machine with NVSwitches, whose processes are all there are."""

import time
from pathlib import Path

import pytest

from tests.checks.gpu import in_machine
from tests.checks.gpu.in_machine import needs_machines
from tests.faults import ELSEWHERE
from tests.standin import machines

pytestmark = needs_machines


@pytest.mark.parametrize(("services", "fault"), [((), "kernel_fabric_manager"), (("nv-fabricmanager",), "")])
def test_a_node_with_nvswitches_needs_a_fabric_manager(services: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    """The kernel keeps 15 letters of its name."""
    log = f"6,0,{int((time.monotonic() - 60) * 1e6)},-;Linux version 6.8.0\n"
    own = {"files": {"/dev/kmsg": log}, "services": services, "own_processes": True}
    machine = machines.load("h100_nvswitch", tmp_path, **own)  # type: ignore[arg-type]
    finished = in_machine.run(machine, tmp_path, "--level", "quick", "--only", "node.kernel")
    found = finished.findings()
    assert finished.check("node.kernel")["status"] == ("fail" if fault else "pass"), finished.told()
    assert ELSEWHERE[fault].is_told_by(found) if fault else found == [], finished.told()
    assert not fault or ELSEWHERE[fault].says in found[0]["message"], finished.told()
