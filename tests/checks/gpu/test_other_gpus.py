"""Machines with GPUs of other makers: what no check looks at is a skip, and no pass."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import running
from tests.checks.net.made_hcas import needs_mounts

AMD, INTEL, MATROX = "0x1002", "0x8086", "0x102b"
VGA, ACCELERATOR = "0x030000", "0x120000"
VERSION = "__version__ = '2.9.0'\ncuda: Optional[str] = None\nhip: Optional[str] = {hip}\nxpu: Optional[str] = {xpu}\n"
ROCM, XPU = VERSION.format(hip="'6.4.43482'", xpu=None), VERSION.format(hip=None, xpu="'20250200'")
CPU = VERSION.format(hip=None, xpu=None)
pytestmark = needs_mounts


def statuses(folder: Path, devices: list[tuple[str, str]], version: str) -> dict[str, tuple[str, str]]:
    """(status, reason) of the checks of a run of level quick on a machine with these PCI devices and this torch."""
    for number, (vendor, class_) in enumerate(devices):
        device = folder / "pci" / f"0000:{number:02x}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{class_}\n")
    (folder / "site" / "torch").mkdir(parents=True)
    (folder / "site" / "torch" / "__init__.py").touch()
    (folder / "site" / "torch" / "version.py").write_text(version)
    env = running.environment()
    env["PYTHONPATH"] = os.pathsep.join((str(folder / "site"), env["PYTHONPATH"]))
    run = [sys.executable, "-m", "preflight", "--level", "quick", "--only", "gpu", "--json", "-"]
    script = 'mount --bind "$1" /sys/bus/pci/devices && shift && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", str(folder / "pci"), *run]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    checks: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
    return {check["check"]: (check["status"], check.get("skipped") or "") for check in checks}


@pytest.mark.parametrize(
    ("devices", "version", "why"),
    [
        ([(MATROX, VGA), *[(AMD, ACCELERATOR)] * 4], ROCM, "4 AMD GPUs, not looked at"),
        ([(AMD, VGA)], ROCM, "1 AMD GPU, not looked at"),
        ([(INTEL, VGA)], XPU, "1 Intel GPU, not looked at"),
    ],
)
def test_gpus_of_others_are_skips(devices: list[tuple[str, str]], version: str, why: str, tmp_path: Path) -> None:
    found = statuses(tmp_path, devices, version)
    assert {"gpu.inventory", "gpu.health"} <= found.keys()
    assert {status for status, _ in found.values()} == {"skip"} and all(why in text for _, text in found.values()), (
        found
    )


@pytest.mark.parametrize("devices", [[(AMD, VGA)], [(INTEL, VGA)], [(MATROX, VGA)]])
def test_a_processors_own_graphics_are_none(devices: list[tuple[str, str]], tmp_path: Path) -> None:
    assert statuses(tmp_path, devices, CPU) == {"gpu.inventory": ("pass", "")}
