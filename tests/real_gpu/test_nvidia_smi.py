"""The reader itself, which runs everywhere."""

from xml.etree import ElementTree

import pytest

from tests.real_gpu import nvidia_smi

SAID = """<gpu><product_name>NVIDIA X</product_name><uuid>GPU-1</uuid><serial>N/A</serial><minor_number>0</minor_number>
<pci><pci_bus_id>00000000:1B:00.0</pci_bus_id></pci></gpu>"""
OURS = {"uuid": "GPU-1", "bus": "0000:1b:00.0", "name": "NVIDIA X", "serial": None, "minor": 0}
MATRIX = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\t0-47
GPU1\tNV18\t X \tSYS\t48-95
NIC0\tPIX\tSYS\t X
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, []),
        ({"minor": 1}, ["minor is 1, nvidia-smi says 0 (0)"]),
        ({"serial": "7"}, ["serial is 7, nvidia-smi says None (N/A)"]),
    ],
)  # fmt: skip
def test_every_field_is_compared(change: dict[str, object], says: list[str]) -> None:
    assert nvidia_smi.unlike({**OURS, **change}, ElementTree.fromstring(SAID), nvidia_smi.HANDLE) == says


def test_the_cells_of_a_matrix_are_read() -> None:
    assert nvidia_smi.cells(MATRIX) == {
        "GPU0": {"GPU0": "X", "GPU1": "NV18", "NIC0": "PIX"},
        "GPU1": {"GPU0": "NV18", "GPU1": "X", "NIC0": "SYS"},
        "NIC0": {"GPU0": "PIX", "GPU1": "SYS", "NIC0": "X"},
    }
