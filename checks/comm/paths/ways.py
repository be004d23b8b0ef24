"""The ways between GPUs and nodes that NCCL may take, and how each is left out.

NCCL reads its variables once per process. Their meanings: NCCL's user guide, "Environment Variables".
"""

from collections.abc import Mapping
from typing import NamedTuple

AS_IT_IS = "as the job runs it"
WITHOUT_NVLS, WITHOUT_P2P = "without NVLS and NVLink between nodes", "without P2P"
_NO_NVLS = {"NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0"}
_NO_P2P = {**_NO_NVLS, "NCCL_P2P_DISABLE": "1"}
NETWORK = "over the network only"
VARIANTS: Mapping[str, Mapping[str, str]] = {
    AS_IT_IS: {},
    WITHOUT_NVLS: _NO_NVLS,
    WITHOUT_P2P: _NO_P2P,
    NETWORK: {**_NO_P2P, "NCCL_SHM_DISABLE": "1"},
}
"""To be timed: each disables more than the one before."""


FIXES: Mapping[str, str] = {
    WITHOUT_NVLS: "There: systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 "
    "Fabric; with NVLink between nodes also nvidia-imex-ctl -N. Until then: NCCL_NVLS_ENABLE=0.",
    WITHOUT_P2P: "There: nvidia-smi nvlink -s and -e; nvidia-smi topo -p2p r; ACS and the IOMMU (node.kernel). Until "
    "then: NCCL_P2P_DISABLE=1.",
    NETWORK: "There: df /dev/shm; numactl --hardware; top, for what else uses the memory. Until then: "
    "NCCL_SHM_DISABLE=1 and NCCL_P2P_DISABLE=1.",
}
"""Where one of them is faster."""


class Detour(NamedTuple):
    """One way that NCCL may take."""

    without: str
    """For messages."""
    settings: Mapping[str, str]
    """What leaves it out."""
    fix: str
    within_node: bool = False
    """Whether it leads from one GPU of a node to another one, so that one pair of them may be at fault."""


P2P = Detour(
    WITHOUT_P2P, {"NCCL_P2P_DISABLE": "1"},
    "GPUs cannot reach each other's memory. On that node: dmesg | grep -i -e iommu -e DMAR; node.kernel says whether "
    "the IOMMU or ACS is on (kernel parameter iommu=pt, BIOS: ACS off); nvidia-smi topo -p2p r. "
    "Until then: export NCCL_P2P_DISABLE=1 on all nodes.",
    within_node=True,
)  # fmt: skip
SHARED_MEMORY = Detour(
    "without shared memory", {"NCCL_SHM_DISABLE": "1"},
    "On that node: df -h /dev/shm (in a container: --shm-size or --ipc=host); numactl --hardware. Until then: export "
    "NCCL_SHM_DISABLE=1 on all nodes.",
    within_node=True,
)  # fmt: skip
CUMEM = Detour(
    "without cuMem", {"NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"},
    "CUDA's virtual memory cannot be shared between the processes: in a container look at its seccomp profile and NUMA "
    "rights (--cap-add SYS_NICE). Until then: export NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 on all nodes.",
    within_node=True,
)  # fmt: skip
NVLS = Detour(
    WITHOUT_NVLS, _NO_NVLS,
    "There: systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric; with NVLink between nodes also "
    "nvidia-imex-ctl -N. Until then: export NCCL_NVLS_ENABLE=0 NCCL_MNNVL_ENABLE=0 on all nodes.",
)  # fmt: skip
RDMA = Detour(
    "without InfiniBand and RoCE", {"NCCL_IB_DISABLE": "1"},
    "See net.rdma; ibstat, ibv_devinfo, show_gids on the nodes; NCCL_IB_HCA and NCCL_IB_GID_INDEX. Until then: export "
    "NCCL_IB_DISABLE=1 on all nodes (slow: sockets).",
)  # fmt: skip
PLUGIN = Detour(
    "without plugins", {"NCCL_NET_PLUGIN": "none", "NCCL_TUNER_PLUGIN": "none", "NCCL_PROFILER_PLUGIN": "none"},
    "NCCL's log (NCCL_DEBUG=INFO) names the plugins that are loaded; their versions must fit NCCL's. "
    "Until then: export NCCL_NET_PLUGIN=none NCCL_TUNER_PLUGIN=none on all nodes.",
)  # fmt: skip
INTERFACE = Detour(
    "with the interface that NCCL chooses by itself", {"NCCL_SOCKET_IFNAME": ""},
    "Unset NCCL_SOCKET_IFNAME (see also nccl.conf), or set it to the interface that joins the nodes (ip -br addr).",
)  # fmt: skip
LOOPBACK = Detour(
    "over loopback", {"NCCL_SOCKET_IFNAME": "lo"},
    "The host cannot reach itself by its own address: see net.interfaces; iptables -vnL; ip -br addr. Until then, on "
    "one node: export NCCL_SOCKET_IFNAME=lo.",
)  # fmt: skip
SOCKETS_ONLY: Mapping[str, str] = {
    name: value for way in (P2P, SHARED_MEMORY, CUMEM, NVLS, RDMA, PLUGIN) for name, value in way.settings.items()
}
"""What the simplest way needs: the interface, the GPUs and the driver."""


def singly(nodes: int) -> list[Detour]:
    """The ways to leave out one by one, the most frequent fault first."""
    between = [RDMA, PLUGIN] if nodes > 1 else [PLUGIN]
    return [P2P, SHARED_MEMORY, CUMEM, NVLS, *between]


def of_sockets(nodes: int) -> list[Detour]:
    """What may be wrong where not even sockets work."""
    return [INTERFACE] if nodes > 1 else [LOOPBACK]
