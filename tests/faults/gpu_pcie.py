"""What gpu.pcie finds."""

from tests.faults.gpu_row import GpuFault, on_machines
from tests.faults.row import Fault

_WIDTH, _GENERATION, _UPLINK = "warn gpu.pcie.width", "warn gpu.pcie.generation", "warn gpu.pcie.uplink"
_REPLAYS, _ERRORS = "warn gpu.pcie.replays", "warn gpu.pcie.errors"
_UP = "/sys/bus/pci/devices/0000:16:00.0"
"""The port up of the switch above the first GPU of h100_nvswitch."""
FATAL = 180

ALL: tuple[GpuFault, ...] = (
    *on_machines(("h100_nvswitch", "consumer", "v100_cube_mesh"), "pcie_width", "A GPU's link has half its lanes.",
                 "x8 of x16", {"gpu.1.pcie.width": 8}, _WIDTH, culprit={"gpu": 1},
                 says="the PCIe link runs at 8 lanes, expected 16 lanes: both ends support that"),
    *on_machines(("pcie_two_sockets",), "pcie_slot", "A GPU is in a slot with fewer lanes than its siblings'.",
                 "x8 of x8", {"gpu.3.pcie.width": 8, "gpu.3.pcie.max.width": 8}, _WIDTH, culprit={"gpu": 3},
                 says="the PCIe link runs at 8 lanes, expected 16 lanes as on 3 of 4 GPUs of the node",
                 files={"/sys/bus/pci/devices/0000:d0:01.0/max_link_width": "8\n"}),
    *on_machines(("a100_nvswitch", "h100_nvswitch"), "pcie_generation", "A GPU's link is slow at full clocks.",
                 "generation 3 in P0", {"gpu.6.pcie.generation": 3}, _GENERATION, culprit={"gpu": 6},
                 says="the PCIe link runs at generation 3, expected generation"),
    *on_machines(("h100_nvswitch",), "pcie_uplink", "The switch above a GPU has half its lanes to the host.",
                 "x8 of x16 in sysfs", {}, _UPLINK, culprit={"device": "0000:16:00.0"},
                 says="the link of the PCIe switch above GPU 0 runs at 8 lanes, expected 16 lanes",
                 files={f"{_UP}/current_link_width": "8\n"}),
    *on_machines(("b200_nvswitch", "consumer"), "pcie_replays", "A GPU's link repeats many packets.",
                 "10^9 replays", {"gpu.0.pcie.replay": 10**9}, _REPLAYS, culprit={"gpu": 0},
                 says="1,000,000,000 PCIe replays since the driver was loaded, expected at most"),
    *on_machines(("h100_nvswitch",), "pcie_fatal", "A GPU's link had fatal errors.", "two of them",
                 {f"gpu.4.field.{FATAL}": 2}, _ERRORS, culprit={"gpu": 4},
                 says="2 fatal PCIe errors since the driver was loaded, expected none"),
    *on_machines(("a100_nvswitch",), "pcie_two_faults", "One GPU's link is narrow, another's is slow.",
                 "x4, and generation 1 in P0", {"gpu.2.pcie.width": 4, "gpu.5.pcie.generation": 1}, _WIDTH,
                 _GENERATION, variant=True, culprit={"gpu": 5}, says="runs at 4 lanes"),
    *on_machines(("a100_nvswitch",), "lost_in_pcie", "A GPU is lost when its link is read.", "the width says so",
                 {"gpu.2.pcie.width": "!15"}, "fail gpu.pcie.no_answer", variant=True, culprit={"gpu": 2},
                 says="GPU is lost"),
)  # fmt: skip
ELSEWHERE: tuple[Fault, ...] = ()
