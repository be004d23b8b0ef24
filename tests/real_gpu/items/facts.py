"""A: what the machine says of itself."""

import os
import shutil
import sys
from pathlib import Path

from tests.real_gpu.items import Work, item

COMMANDS = {
    "nvidia-smi.xml": ["nvidia-smi", "-q", "-x"],
    "topology.txt": ["nvidia-smi", "topo", "-m"],
    "nvlink.txt": ["nvidia-smi", "nvlink", "-s"],
    "kernel": ["dmesg"],
    "lspci": ["lspci", "-vvv"],
    "packages": [sys.executable, "-m", "pip", "list"],
    "mounts": ["cat", "/proc/self/mountinfo", "/proc/cmdline", "/proc/version"],
}
TREES = ("/proc/driver/nvidia",)
LARGEST = 64 << 10


@item("A1", "the card's own descriptions are saved", 20)
def described(work: Work) -> str:
    codes = {name: work.run(words, limit_s=5, name=name).code for name, words in _available().items()}
    files = sum(_copy_tree(Path(tree), work.folder / "files") for tree in (*TREES, *_pci_devices()))
    return work.expect(codes.get("nvidia-smi.xml") == 0, f"{len(codes)} commands, exit codes {codes}; {files} files")


def _available() -> dict[str, list[str]]:
    return {name: words for name, words in COMMANDS.items() if shutil.which(words[0])}


def _pci_devices() -> list[str]:
    """The NVIDIA devices of the PCI bus, and the bridges above them."""
    found: list[str] = []
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if (device / "vendor").exists() and (device / "vendor").read_text().strip() == "0x10de":
            path = device.resolve()
            found += [str(folder) for folder in (path, *path.parents) if (folder / "vendor").exists()]
    return found


def _copy_tree(tree: Path, to: Path) -> int:
    """Copies the small readable files that lie in a folder (of /proc: of the whole tree)."""
    count, deep = 0, str(tree).startswith("/proc")
    for folder, folders, names in os.walk(tree):
        if not deep:
            folders.clear()
        for name in names:
            path = Path(folder, name)
            try:
                with path.open("rb") as file:
                    content = file.read(LARGEST)
            except OSError as error:
                content = f"! {error.strerror}".encode()
            target = to / str(path).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            count += 1
    return count


@item("A2", "every getter of NVML answers, or refuses; none is silent", 40)
def all_of_nvml(work: Work) -> str:
    words = [*work.on_card(), sys.executable, "-m", "tests.real_gpu.nvml_record", str(work.folder / "nvml_idle.json")]
    family = [*work.on_card(), sys.executable, "-m", "tests.checks.gpu.read_all"]
    work.run(family, limit_s=15, name="family_gpu.json", env=work.card_environ())
    ended = work.run(words, limit_s=35, env=work.card_environ())
    return work.expect(ended.code == 0 and ", 0 silent" in ended.output, ended.last_line)
