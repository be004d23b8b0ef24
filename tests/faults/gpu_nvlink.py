"""What gpu.nvlink finds."""

from tests.faults.gpu_row import GpuFault, on_machines
from tests.faults.row import Fault, elsewhere

_N = "gpu.nvlink"


def _each(keys: dict[str, object], gpus: int = 8) -> dict[str, object]:
    """The same for every GPU."""
    return {f"gpu.{gpu}.{key}": value for gpu in range(gpus) for key, value in keys.items()}


def _down(*links: int) -> dict[str, object]:
    return {f"link.{link}.state": 0 for link in links}


_INACTIVE, _FABRIC, _HEALTH = f"fail {_N}.inactive", f"fail {_N}.fabric", f"{_N}.fabric_health"

ALL: tuple[GpuFault, ...] = (
    *on_machines(("h100_nvswitch",), "state_unread", "The state of a GPU's NVLinks cannot be read: a skip.", "an error",
                 {"gpu.3.link.0.state": "!4"}, culprit={}),
    *on_machines(("h100_nvswitch", "a100_nvswitch", "b200_nvswitch"), "nvlink_down", "An NVLink is down.",
                 "link 7 of GPU 3 is inactive", {"gpu.3.link.7.state": 0}, _INACTIVE, culprit={"gpu": 3, "link": 7},
                 says="is down: 1"),
    *on_machines(("container",), "nvlink_down", "An NVLink is down in a container with 2 of 8 GPUs.",
                 "link 17 of GPU 1 is inactive", {"gpu.1.link.17.state": 0}, _INACTIVE,
                 culprit={"gpu": 1, "link": 17}, says="to the NVSwitch at 0000:0a:00.0 is down: 17 are up"),
    *on_machines(("v100_cube_mesh",), "nvlink_pair", "The NVLink between two GPUs is down.",
                 "link 0 of GPUs 0 and 1", {"gpu.0.link.0.state": 0, "gpu.1.link.0.state": 0}, _INACTIVE,
                 culprit={"gpu": 0, "link": 0, "peer_gpu": 1}, says="NVLink 0 between GPU 0 and GPU 1 is down"),
    *on_machines(("v100_cube_mesh",), "nvlink_two_pairs", "NVLinks between two pairs of GPUs are down.",
                 "those of GPUs 0 and 1, and one of the two of GPUs 5 and 6",
                 {"gpu.0.link.0.state": 0, "gpu.1.link.0.state": 0, "gpu.5.link.3.state": 0, "gpu.6.link.2.state": 0},
                 _INACTIVE, variant=True, culprit={"gpu": 5, "link": 3, "peer_gpu": 6},
                 says="NVLink 0 between GPU 0 and GPU 1"),
    *on_machines(("h100_nvl",), "nvlink_bridge", "A bridge of two PCIe cards lacks a link.", "link 4 of GPUs 2 and 3",
                 {"gpu.2.link.4.state": 0, "gpu.3.link.4.state": 0}, f"warn {_N}.inactive",
                 culprit={"gpu": 2, "link": 4, "peer_gpu": 3}, says="11 of GPU 2 are up, expected 12 as this card has"),
    *on_machines(("h100_nvswitch",), "nvswitch_dead", "An NVSwitch is dead.", "links 5 to 8 of all GPUs are inactive",
                 _each(_down(5, 6, 7, 8)), f"fail {_N}.switch", culprit={"device": "0000:08:00.0"},
                 says="8 of 8 GPUs lost NVLinks to the NVSwitch at 0000:08:00.0: 14 are up"),
    *on_machines(("a100_nvswitch",), "nvswitch_failing", "GPUs lose links to one NVSwitch, and one to another.",
                 "links 2 and 3 of GPUs 0 to 5, link 9 of GPU 7",
                 {**_each(_down(2, 3), 6), "gpu.7.link.9.state": 0}, f"fail {_N}.switch", _INACTIVE,
                 culprit={"gpu": 7, "link": 9}, says="6 of 8 GPUs lost NVLinks to the NVSwitch at"),
    *on_machines(("h100_nvswitch",), "nvlink_off", "NVLink is turned off.", "no GPU has links any more",
                 _each({"links": None}), _INACTIVE, culprit={}, says="each of 8 GPUs has no NVLinks up"),
    *on_machines(("h100_nvswitch", "v100_cube_mesh"), "nvlink_slow", "An NVLink runs at half its speed.",
                 "13 of 26 GB/s", {"gpu.2.field.164.3": 13281, "gpu.2.field.87": 12890}, f"warn {_N}.slow",
                 culprit={"gpu": 2, "link": 3}, says="NVLink 3 runs at 1"),
    *on_machines(("a100_nvswitch",), "nvlink_errors", "Many packets of an NVLink are repeated.", "50,000 CRC errors",
                 {"gpu.4.link.2.error.crc_flit": 50000}, f"warn {_N}.errors", culprit={"gpu": 4, "link": 2},
                 says="50,000 crc_flit on NVLink 2"),
    *on_machines(("h100_nvswitch",), "nvlink_recoveries", "An NVLink has trained anew, and no other link has.",
                 "3 recoveries", {"gpu.6.link.4.error.recovery": 3}, f"warn {_N}.errors", culprit={"gpu": 6, "link": 4},
                 says="3 recovery on NVLink 4; expected about as few as on the node's other links"),
    *on_machines(("v100_cube_mesh",), "nvlink_recovery", "An NVLink between two GPUs has trained anew.",
                 "a recovery at both ends", {"gpu.0.link.0.error.recovery": 1, "gpu.1.link.0.error.recovery": 1},
                 f"warn {_N}.errors", variant=True, culprit={"gpu": 1, "link": 0}, says="1 recovery on NVLink 0"),
    *on_machines(("b200_nvswitch",), "nvlink_errors", "An NVLink 5 does not receive right, and one is down.",
                 "70,000 receive errors; link 3 of GPU 0",
                 {"gpu.4.field.208.2": "ull 70000", "gpu.0.link.3.state": 0}, f"warn {_N}.errors", _INACTIVE,
                 culprit={"gpu": 4, "link": 2}, says="70,000 rcv_errors on NVLink 2"),
    *on_machines(("h100_nvswitch", "b200_nvswitch"), "fabric_manager", "The fabric manager is not running.",
                 "the fabric's state stays in progress", _each({"fabric.state": 2}), _FABRIC, culprit={},
                 says="none of 8 GPUs has joined the NVSwitch fabric: its state is in progress"),
    *on_machines(("h100_nvswitch",), "fabric_status", "A GPU could not join the fabric.", "status 999",
                 {"gpu.3.fabric.status": 999}, _FABRIC, culprit={"gpu": 3}, says="its status is NVML error 999"),
    *on_machines(("b200_nvswitch",), "fabric_bandwidth", "The fabric of a GPU has reduced bandwidth.",
                 "a bit of the health mask", {"gpu.6.fabric.health": 0x1A9, "gpu.6.fabric.summary": 3},
                 f"warn {_HEALTH}", culprit={"gpu": 6}, says="reduced bandwidth"),
    *on_machines(("b200_nvswitch",), "fabric_routes", "The fabric's routes are broken.", "on all GPUs",
                 _each({"fabric.health": 0x19A, "fabric.summary": 2}), f"fail {_HEALTH}", culprit={},
                 says="all 8 GPUs report of the NVSwitch fabric: unhealthy routes"),
    *on_machines(("b200_nvswitch",), "clique", "A GPU is in another partition of the fabric.", "clique 2",
                 {"gpu.1.fabric.clique": 2}, f"fail {_N}.clique", culprit={"gpu": 1},
                 says="clique 2, expected clique 0 as on 7 of 8 GPUs"),
    *on_machines(("b200_nvswitch",), "imex", "The GPUs are in an NVLink domain, and the node has no IMEX channel.",
                 "all GPUs have a domain's UUID", _each({"fabric.cluster": "00112233445566778899aabbccddeeff"}),
                 f"info {_N}.imex", culprit={}, says="there is no channel in /dev/nvidia-caps-imex-channels"),
    *on_machines(("h100_nvl",), "no_bridge", "PCIe cards that may have bridges have none.", "no NVLink is up",
                 _each({"links": None}, 4), f"info {_N}.no_bridge", culprit={},
                 says="no NVLink is up between 4 x NVIDIA H100 NVL, expected 12"),
    *on_machines(("h100_nvswitch",), "lost_in_nvlink", "A GPU is lost when its links are read.", "the state says so",
                 {"gpu.2.link.0.state": "!15"}, f"fail {_N}.no_answer", variant=True, culprit={"gpu": 2},
                 says="nvmlDeviceGetNvLinkState: GPU is lost"),
)  # fmt: skip
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/gpu/test_on_nccl.py
    elsewhere("nvlink_domains", "Of three nodes one is in another NVLink domain.", "the UUIDs of their fabrics",
              f"info {_N}.domains", culprit={}, exit_code=0,
              says="the job is in 2 NVLink domains: 2 nodes in 11111111..., 1 node in 22222222...; expected one"),
    elsewhere("imex_of_two_nodes", "A node of an NVLink domain has no IMEX channel.", "none in /dev", f"fail {_N}.imex",
              culprit={"node": "node-1"}, says="there is no channel in /dev/nvidia-caps-imex-channels"),
)  # fmt: skip
