"""What gpu.topology finds."""

from collections.abc import Iterable

from tests.faults.gpu_row import GpuFault, on_machines
from tests.faults.row import Fault, elsewhere

_T = "warn gpu.topology"


def p2p(first: int, second: int, **statuses: int) -> dict[str, object]:
    """Changes of a machine: what NVML says of two GPUs, both ways."""
    ways = ((first, second), (second, first))
    return {f"gpu.{a}.p2p.{b}.{name}": status for a, b in ways for name, status in statuses.items()}


def apart(gpu: int, others: Iterable[int], level: int) -> dict[str, object]:
    """Both ways."""
    changes = ({f"gpu.{gpu}.topology.{other}": level, f"gpu.{other}.topology.{gpu}": level} for other in others)
    return {key: value for change in changes for key, value in change.items()}


_INTEL, _AMD = ({"/proc/cpuinfo": f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu sse\n"}
                for vendor in ("GenuineIntel", "AuthenticAMD"))  # fmt: skip
_CHIPSET = {"read": 1, "write": 1}
_NONE = {"read": 3, "write": 3, "nvlink": 3}
_ALONE = {key: value for other in (0, 1, 2, 4, 5, 6, 7) for key, value in p2p(3, other, **_NONE).items()}

ALL: tuple[GpuFault, ...] = (
    *on_machines(("h100_nvl",), "p2p_hangs", "A GPU hangs when P2P with it is asked for.", "it never answers",
                 {"gpu.2.hang": "nvmlDeviceGetP2PStatus"}, "fail gpu.topology.no_answer", culprit={"gpu": 2},
                 says="nvmlDeviceGetP2PStatus with GPU"),
    *on_machines(("h100_nvswitch", "old_driver"), "p2p_none", "Two GPUs do not reach each other.",
                 "the driver says that the topology forbids it", p2p(2, 5, **_NONE), f"{_T}.no_p2p",
                 culprit={"gpu": 2, "peer_gpu": 5},
                 says="GPU 2 and GPU 5: the topology does not support it; expected it: NVLinks connect them"),
    *on_machines(("v100_cube_mesh",), "p2p_none", "Two GPUs of a cube mesh do not reach each other.",
                 "the driver says that the chipset forbids it", p2p(0, 4, read=1, write=1, nvlink=1), f"{_T}.no_p2p",
                 culprit={"gpu": 0, "peer_gpu": 4}, says="the chipset does not support it"),
    *on_machines(("b200_nvswitch",), "p2p_none_of_one", "A GPU reaches no other.", "as above, for 7 pairs",
                 _ALONE, f"{_T}.no_p2p", culprit={"gpu": 3}, says="no P2P between GPU 3 and GPUs 0-2,4-7: "),
    *on_machines(("h100_nvl",), "p2p_off", "P2P is turned off.", "the driver says that its registry forbids it",
                 {key: value for first in range(4) for second in range(first)
                  for key, value in p2p(first, second, read=4, write=4, nvlink=4).items()},
                 f"{_T}.no_p2p", variant=True, culprit={"gpu": 2, "peer_gpu": 3},
                 says="the driver's registry turns it off"),
    *on_machines(("pcie_two_sockets",), "p2p_pcie", "Two cards do not reach each other over PCIe.",
                 "the driver says that the chipset forbids it", p2p(0, 2, read=1, write=1), f"{_T}.no_p2p",
                 culprit={"gpu": 0, "peer_gpu": 2}, says="expected it as between 3 of 4 pairs that are SYS apart"),
    *on_machines(("pcie_two_sockets",), "p2p_tie", "One of two pairs of cards has no P2P.", "as above, for 0 and 1",
                 p2p(0, 1, read=1, write=1), f"{_T}.no_p2p", culprit={},
                 says="NODE apart: works between GPU2 and GPU3 of"),
    *on_machines(("mig",), "p2p_chipset", "The chipset forbids P2P between two GPUs, the only ones of an AMD host.",
                 "the driver says so; neither is in MIG mode",
                 {"gpu.0.mig.mode": 0, "gpu.0.mig.pending": 0, **p2p(0, 1, **_CHIPSET)}, f"{_T}.no_p2p",
                 culprit={"gpu": 0, "peer_gpu": 1}, files=_AMD,
                 says="the chipset does not support it; expected it: NCCL uses it between GPUs that are SYS apart"),
    *on_machines(("a100_nvswitch",), "p2p_chipset_switch", "The chipset forbids P2P between all GPUs, which have no "
                 "NVLinks.", "the driver says so", {
                     **{f"gpu.{gpu}.links": None for gpu in range(8)},
                     **{key: value for first in range(8) for second in range(first)
                        for key, value in p2p(first, second, **_CHIPSET).items()},
                 }, f"{_T}.no_p2p", "fail gpu.nvlink.inactive", culprit={"gpu": 0, "peer_gpu": 1}, files=_INTEL,
                 says="the chipset does not support it; expected it: NCCL uses it between GPUs that are PXB apart"),
    *on_machines(("h100_nvswitch", "pcie_two_sockets"), "affinity", "The driver has a GPU near the CPUs of the other "
                 "socket.", "its CPUs", {"gpu.1.affinity.cpus": "56-59"}, f"{_T}.affinity", culprit={"gpu": 1},
                 says="the driver reports CPUs 56-59 as near GPU 1, expected some of "),
    *on_machines(("a100_nvswitch", "pcie_two_sockets"), "p2p_one_way", "P2P works one way.",
                 "the driver forbids GPU 3 to write to GPU 1", {"gpu.3.p2p.1.write": 1}, f"{_T}.one_way",
                 culprit={"gpu": 1, "peer_gpu": 3}, says="works only from GPU1 to GPU3, not back"),
    *on_machines(("h100_nvswitch", "v100_cube_mesh"), "p2p_past_nvlink", "P2P does not use NVLink.",
                 "the driver says that NVLink has none", p2p(0, 3, nvlink=5), f"{_T}.nvlink_unused",
                 culprit={"gpu": 0, "peer_gpu": 3}, says="is not over NVLink"),
    *on_machines(("h100_nvswitch", "b200_nvswitch"), "nic_gone", "A GPU's network card is gone.", "sysfs has one fewer",
                 {}, f"{_T}.far_nic", culprit={"gpu": 5}, says="expected PIX as on 7 of 8 GPUs of the node",
                 files={"/sys/class/infiniband/mlx5_5": None}),
    *on_machines(("h100_nvswitch",), "p2p_none_and_nic_gone", "Two GPUs do not reach each other, and a third has lost "
                 "its network card.", "both at once", p2p(0, 1, **_NONE), f"{_T}.no_p2p", f"{_T}.far_nic",
                 culprit={"gpu": 0, "peer_gpu": 1}, says="no P2P between GPU 0 and GPU 1",
                 files={"/sys/class/infiniband/mlx5_6": None}),
    *on_machines(("a100_nvswitch",), "lost_at_its_place", "A GPU is lost when its CPUs are asked for; two others do "
                 "not reach each other.", "the call says so", {"gpu.6.affinity.cpus": "!15", **p2p(1, 2, **_NONE)},
                 "fail gpu.topology.no_answer", f"{_T}.no_p2p", variant=True, culprit={"gpu": 6},
                 says="GPU 6 at 0000:"),
)  # fmt: skip

_TRANSLATED = {f"/sys/bus/pci/devices/0000:{bus}:00.0/iommu_group/type": "DMA-FQ\n" for bus in ("01", "21", "41", "61")}
_PATCHED = {f"/sys/bus/pci/devices/0000:{bus}:00.0/iommu_group/type": "DMA-FQ\n" for bus in ("03", "04")}

_SWITCH = {"00:01.1": 4, "01:00.0": 5, "02:00.0": 6, "02:01.0": 6}
"""Kinds of PCIe ports: a root port, and a switch's port up and its ports down."""


def _config(port: int, control: int) -> str:
    """The configuration space of a PCIe port, with ACS as its first extended capability; no byte is above 127."""
    space = bytearray(4096)
    space[0x34], space[0x40], space[0x42] = 0x40, 0x10, port << 4 | 2
    space[0x100], space[0x102], space[0x106] = 0x0D, 0x01, control
    return space.decode("ascii")


_REDIRECTS = {f"/sys/bus/pci/devices/0000:{port}/config": _config(kind, 0x1D) for port, kind in _SWITCH.items()}

DISPLAY: tuple[GpuFault, ...] = (
    *on_machines(("rtx_pro_6000",), "p2p_translated", "Four cards with a display reach each other through an IOMMU.",
                 "sysfs says so", {}, f"{_T}.iommu", culprit={}, files=_TRANSLATED,
                 says="grants P2P between GPU0 and GPU1 and 5 other pairs, and an IOMMU translates for them"),
    *on_machines(("rtx4090_patched",), "p2p_translated", "Modified kernel modules grant P2P through an IOMMU.",
                 "sysfs says so", {}, f"{_T}.iommu", culprit={}, files=_PATCHED, says="P2P between GPU0 and GPU1, and"),
    *on_machines(("rtx4090_patched",), "p2p_redirected", "A PCIe switch sends P2P between two cards to the CPU.",
                 "ACS in the configuration of its ports", {}, f"{_T}.acs", culprit={"device": "0000:02:00.0"},
                 files=_REDIRECTS,
                 says="ACS redirects it at 2 PCIe switch ports above them (0000:02:00.0 and 0000:02:01.0)"),
    *on_machines(("rtx4090_patched",), "small_bar1", "Modified kernel modules grant P2P through a BAR1 that shows a "
                 "part of the memory.", "256 MiB of 32 GiB", {f"gpu.{gpu}.bar1.total": 2**28 for gpu in (0, 1)},
                 f"{_T}.small_bar", culprit={},
                 says="BAR1 is 256 MiB at 0000:03:00.0 and 0000:04:00.0, expected 32 GiB, which the card offers"),
)  # fmt: skip
ALL += DISPLAY

ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/gpu/test_gpu_faults.py
    elsewhere("driver_modified", "Modified kernel modules let GeForce cards reach each other.", "the driver says so",
              "info gpu.topology.patched", culprit={}, exit_code=0, world=1,
              says="P2P over PCIe between GPU0 and GPU1 (NVIDIA GeForce RTX 4090), as modified kernel modules do"),
    # tests/checks/gpu/test_topology.py
    elsewhere("gpu_in_another_slot", "A GPU of one of three nodes is far from the others of its socket.",
              "the driver says so", f"{_T}.layout", culprit={"node": "node-1", "gpu": 3}, exit_code=0,
              says="the PCIe path between GPU 3 and GPUs 0-2 is SYS, expected NODE as on 2 of 3 nodes"),
    elsewhere("nics_gone", "One of three nodes has no network card for RDMA.", "sysfs has none", f"{_T}.far_nic",
              culprit={"node": "node-2"}, exit_code=0,
              says="no RDMA device for all 8 GPUs, expected PIX as on 2 of 3 nodes"),
    elsewhere("bound_far_from_gpu", "A rank is bound to CPUs of the other socket.", "`taskset`",
              f"{_T}.far_cpus", culprit={"node": "node-0", "rank": 0, "gpu": 0}, exit_code=0,
              says="bound to CPUs 1, expected some of 0, which are near its GPU 0"),
)  # fmt: skip
