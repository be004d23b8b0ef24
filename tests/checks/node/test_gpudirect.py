"""Trees of /proc and /sys as they look on GPU machines."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from preflight.checks.node.kernel import gpudirect
from preflight.sdk import pci_isolation

GPU, SWITCH = "0000:9b:00.0", "0000:c1:00.0"


def config(*, port: int = 6, control: int = 0x1D, size: int = 4096) -> bytes:
    """Of a PCIe port with ACS behind another extended capability."""
    space = bytearray(4096)
    space[0x34] = 0x40
    space[0x40:0x44] = bytes([0x01, 0x48, 0, 0])
    space[0x48:0x4C] = bytes([pci_isolation.PCIE, 0, (port << 4) | 2, 0])
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (pci_isolation.ACS | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space[:size])


def without_acs() -> bytes:
    space = bytearray(config())
    space[0x100:0x104] = (0x0001 | 1 << 16).to_bytes(4, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "control"),
    [(config(), 0x1D), (config(control=0), 0), (config(port=4), 0), (config(size=256), 0), (config(size=64), None),
     (b"", None), (bytes(4096), 0), (b"\xff" * 4096, 0), (without_acs(), 0)],
)  # fmt: skip
def test_the_acs_register_is_found(space: bytes, control: int | None) -> None:
    assert pci_isolation.acs_control(space) == control


BRIDGE, CARD = "0000:00:01.0", "0000:17:00.0"


def tree(root: Path, *, driver: str = "Open Kernel Module", hypervisor: str = "", process: str = "bash") -> Path:
    """A /proc and a /sys: a GPU and a network card below a port of a PCIe switch, and an NVSwitch."""
    files = {
        "proc/cpuinfo": f"flags\t\t: fpu {hypervisor}\n", "proc/sys/kernel/osrelease": "5.4.0-1\n",
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX {driver} for x86_64  550.54\n",
        "proc/2/comm": "kthreadd\n", "proc/77/comm": f"{process}\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    }  # fmt: skip
    classes = {GPU: ("0x10de", "0x030200"), SWITCH: ("0x10de", "0x068000"), CARD: ("0x15b3", "0x020000")}
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for device, (vendor, kind) in classes.items():
        place = f"sys/devices/pci0000:00/{BRIDGE}/{device}"
        files |= {f"{place}/vendor": f"{vendor}\n", f"{place}/class": f"{kind}\n"}
        files[f"{place}/iommu_group/type"] = "identity\n" if device == SWITCH else "DMA-FQ\n"
        (bus / device).symlink_to(root / place)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "sys/devices/pci0000:00" / BRIDGE / "config").write_bytes(config())
    (bus / BRIDGE).symlink_to(root / "sys/devices/pci0000:00" / BRIDGE)
    (root / "sys/class/infiniband/mlx5_0/device").symlink_to(root / f"sys/devices/pci0000:00/{BRIDGE}/{CARD}")
    return root


def test_a_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="x86_64"))
    read = gpudirect.setup(str(tree(tmp_path)))
    assert read == {
        "gpus": [GPU], "nics": [CARD], "bare_metal": True, "kernel": "5.4.0-1", "driver": "open", "peermem": False,
        "redirecting": [BRIDGE], "translated": [GPU, CARD], "nvswitches": 1, "fabric_manager": False,
    }  # fmt: skip


def test_another_machine_is_read(tmp_path: Path) -> None:
    """A virtual one, whose host's processes are not seen, without NVLink, and where nobody may read all of PCIe."""
    root = tree(tmp_path, driver="Kernel Module", hypervisor="hypervisor", process="nv-fabricmanage")
    assert gpudirect.setup(str(root))["fabric_manager"] is True
    (root / "proc/2/comm").unlink()
    (root / "sys/module/nvidia_peermem").mkdir(parents=True)
    (root / "proc/driver/nvidia/params").write_text("NvLinkDisable: 1\n")
    (root / "sys/devices/pci0000:00" / BRIDGE / "config").write_bytes(config(size=64))
    (root / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    read = gpudirect.setup(str(root))
    assert (read["bare_metal"], read["driver"], read["peermem"]) == (False, "proprietary", True)
    assert (read["nvswitches"], read["fabric_manager"], read["redirecting"], read["nics"]) == (0, None, None, [])
    (root / "sys/devices/pci0000:00" / BRIDGE / "config").unlink()
    assert gpudirect.setup(str(root))["redirecting"] is None
