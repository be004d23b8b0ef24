"""What nvidia-smi says of the GPUs of this machine, to hold our facts against."""

import re
import subprocess
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

Reading = tuple[str, str, Callable[[str], Any]]
"""Where our facts have it, where the XML has it, and what makes our value of its text."""


def number(text: str) -> int:
    """ "81559 MiB" is 81559."""
    return int(float(text.split()[0]))


def mib(text: str) -> int:
    return number(text) << 20


def milliwatts(text: str) -> int:
    return round(float(text.split()[0]) * 1000)


def enabled(text: str) -> bool:
    return text == "Enabled"


def yes(text: str) -> int:
    return int(text == "Yes")


def bus(text: str) -> str:
    """ "00000000:1B:00.0" as sysfs writes it."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


HANDLE: tuple[Reading, ...] = (
    ("uuid", "uuid", str),
    ("bus", "pci/pci_bus_id", bus),
    ("name", "product_name", str),
    ("serial", "serial", str),
    ("minor", "minor_number", int),
)
IDENTITY: tuple[Reading, ...] = (
    ("vbios", "vbios_version", str),
    ("board", "board_part_number|gpu_part_number", str),
    ("inforom", "inforom_version/img_version", str),
    ("memory_total", "fb_memory_usage/total", mib),
    ("memory_reserved", "fb_memory_usage/reserved", mib),
    ("compute_mode", "compute_mode", {"Default": 0, "Prohibited": 2, "Exclusive_Process": 3}.__getitem__),
    ("mig.current", "mig_mode/current_mig", enabled),
    ("mig.pending", "mig_mode/pending_mig", enabled),
)
HEALTH: tuple[Reading, ...] = (
    ("ecc", "ecc_mode/current_ecc", enabled),
    ("ecc_pending", "ecc_mode/pending_ecc", enabled),
    ("remapped.corrected", "remapped_rows/remapped_row_corr", int),
    ("remapped.uncorrected", "remapped_rows/remapped_row_unc", int),
    ("remapped.pending", "remapped_rows/remapped_row_pending", yes),
    ("remapped.failed", "remapped_rows/remapped_row_failure", yes),
    ("retired.double_bit", "retired_pages/double_bit_retirement/retired_count", int),
    ("temperature_limits.shutdown", "temperature/gpu_temp_max_threshold", number),
    ("temperature_limits.slowdown", "temperature/gpu_temp_slow_threshold", number),
    ("persistence", "persistence_mode", enabled),
    ("power_limit_mw", "gpu_power_readings/current_power_limit|power_readings/enforced_power_limit", milliwatts),
    ("power_default_mw", "gpu_power_readings/default_power_limit|power_readings/default_power_limit", milliwatts),
    ("clocks.sm_max", "max_clocks/sm_clock", number),
    ("clocks.memory_max", "max_clocks/mem_clock", number),
    ("bar1", "bar1_memory_usage/total", mib),
)
PCIE: tuple[Reading, ...] = (
    ("width", "pci/pci_gpu_link_info/link_widths/current_link_width", lambda text: int(text.rstrip("x"))),
    ("width_max", "pci/pci_gpu_link_info/link_widths/max_link_width", lambda text: int(text.rstrip("x"))),
    ("generation_max", "pci/pci_gpu_link_info/pcie_gen/max_link_gen", int),
    ("generation_gpu_max", "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen", int),
    ("replays", "pci/replay_counter", int),
)


def gpus() -> list[ElementTree.Element]:
    """A `gpu` element each, in NVML's order."""
    return ElementTree.fromstring(_said("-q", "-x")).findall("gpu")


def topology() -> str:
    return _said("topo", "-m")


def _said(*arguments: str) -> str:
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def cells(picture: str) -> dict[str, dict[str, str]]:
    """{"GPU0": {"GPU1": "NV18", ...}, ...} of a matrix: the rows and columns of GPUs and NICs."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in picture.splitlines()]
    head = next(line for line in lines if re.search(r"\bGPU0\b", line))
    columns = re.findall(r"\b(?:GPU|NIC)\d+\b", head)
    rows = (line.split() for line in lines if re.match(r"\s*(?:GPU|NIC)\d+\s", line) and line is not head)
    return {row[0]: dict(zip(columns, row[1:], strict=False)) for row in rows}


def unlike(ours: Any, theirs: ElementTree.Element, readings: tuple[Reading, ...]) -> list[str]:
    """ "vbios is x, nvidia-smi says y" for every reading that differs. What nvidia-smi does not give must be None."""
    found = []
    for path, places, made in readings:
        texts = [text for place in places.split("|") if (text := theirs.findtext(place)) is not None]
        known = [text for text in texts if not re.fullmatch(r"\[?N/A\]?|None|\[?Not Supported\]?|\[?Unknown.*", text)]
        expected = made(known[0]) if known else None
        value = ours
        for name in path.split("."):
            value = value.get(name) if value is not None else None
        close = isinstance(value, int) and isinstance(expected, int) and abs(value - expected) < 1 << 20
        same = close if made is mib else value == expected
        if not same and not (expected is None and not texts):
            found.append(f"{path} is {value}, nvidia-smi says {expected} ({'|'.join(texts)})")
    return found
