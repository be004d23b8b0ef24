"""The causes of a failed start that a rank's log tells of itself: the texts, by NCCL's wording.

Those of NCCL 2.14 to 2.30: WARN in src/bootstrap.cc, net.cc, plugin/net.cc, transport/net_socket.cc, include/checks.h
and misc/{ibvwrap,shmutils,cudawrap}.cc; os/ and transport/net_ib/ of 2.30. CUDA's error numbers are its driver API's
(cudaError_enum); its words come with them.
"""

import re
from dataclasses import dataclass

from preflight.check import Code

NO_INTERFACE = Code(
    "NCCL finds no network interface.",
    fix="There: ip -brief address; then set NCCL_SOCKET_IFNAME to what joins the nodes (a list of prefixes, =name for "
    "one), or unset it.",
)
FABRIC_MANAGER = Code(
    "CUDA waits for the fabric manager of the NVSwitches.",
    fix="There: systemctl status nvidia-fabricmanager; its version must be the driver's; systemctl restart it, and see "
    "/var/log/fabricmanager.log.",
)
DRIVER = Code(
    "The GPU driver does not fit CUDA's libraries.",
    fix="There: nvidia-smi; cat /proc/driver/nvidia/version; update the driver, load it anew after an update (reboot), "
    "or take the container's compat libraries out of LD_LIBRARY_PATH.",
)
GPU_FAILED = Code(
    "CUDA fails on the rank's GPU.",
    fix="There: nvidia-smi; dmesg | grep -i xid; see gpu.health of the node; drain it if the GPU is lost.",
)
SHARED_MEMORY = Code(
    "NCCL gets no shared memory.",
    fix="There: df -h /dev/shm; rm its stale nccl-* files; enlarge it: mount -o remount,size=16G /dev/shm, docker "
    "--shm-size=16g or --ipc=host, Kubernetes: an emptyDir with medium Memory at /dev/shm.",
)
MEMLOCK = Code(
    "RDMA may not lock memory.",
    fix="There: ulimit -l (should be unlimited): LimitMEMLOCK=infinity for the launcher's service (slurmd, "
    "containerd), docker --ulimit memlock=-1.",
)
RDMA = Code(
    "An RDMA call of NCCL's failed.",
    fix="There: ibstat; show_gids; on RoCE see NCCL_IB_GID_INDEX and that both nodes have an address in its network; "
    "net.rdma tells of links and GIDs.",
)
IMEX = Code(
    "NVLinks join the nodes (MNNVL), but IMEX does not work.",
    fix="There: nvidia-imex-ctl -N; ls /dev/nvidia-caps-imex-channels; systemctl status nvidia-imex. "
    "NCCL_MNNVL_ENABLE=0 goes round it, over the slower network.",
)
OPEN_FILES = Code(
    "NCCL may open no more files.",
    fix="There: ulimit -n (65536 or more for large jobs): LimitNOFILE for the launcher's service, docker --ulimit "
    "nofile=1048576.",
)
PLUGIN = Code(
    "NCCL does not get the network plugin or transport it was told to use.",
    fix="There: env | grep -E 'NCCL_NET|LD_LIBRARY_PATH'; ldd libnccl-net*.so; unset NCCL_NET and NCCL_NET_PLUGIN to "
    "let NCCL choose.",
)


@dataclass(frozen=True)
class Kind:
    """A cause that a rank tells of itself."""

    code: Code
    pattern: re.Pattern[str]
    text: str
    """With what the pattern's groups hold."""
    variable: str = ""
    """That may be the reason: named where NCCL says it has read it."""
    sure: bool = False
    """NCCL says so only where the variable is set, and does not say that it has read it."""
    or_victim: bool = False
    """A rank whose peer died may say so, too: it counts where nobody has died or tells of another cause."""


def _kind(
    code: Code, pattern: str, text: str, variable: str = "", *, sure: bool = False, or_victim: bool = False
) -> Kind:
    return Kind(code, re.compile(pattern), text, variable, sure, or_victim)


_FAILS = (
    "out of memory", "initialization error", "all CUDA-capable devices are busy",
    r"CUDA-capable device\(s\) is/are busy", "no CUDA-capable device",
    "invalid device ordinal", "uncorrectable ECC", "uncorrectable NVLink",
)  # fmt: skip
"""Of the GPU or its use; others ("invalid argument", "operation not supported") NCCL may meet and go on."""

_SAID = r"(?:Cuda failure|CUDA(?: driver)? error|Error \d{3}|CUDA):?(?: \d+)? '?"

KINDS = (
    _kind(NO_INTERFACE, r"(?:Bootstrap|NET/Socket) ?: (?:no (?:socket |NCCL_SOCKET_IFNAME )?interface|No usable)",
          "NCCL found no network interface, expected one that joins the nodes", "NCCL_SOCKET_IFNAME"),
    _kind(NO_INTERFACE, r"no device found (?:matching|after excluding) .*NCCL_OOB_NET_IFNAME",
          "NCCL found no network device, expected one that joins the nodes", "NCCL_OOB_NET_IFNAME"),
    _kind(FABRIC_MANAGER, r"[Ff]ailure 802\b|system not yet initialized|Error 802\b",
          "CUDA error 802 (system not yet initialized), expected a fabric manager that runs"),
    _kind(FABRIC_MANAGER, r"Failed to bind NVLink SHARP",
          "the NVSwitches refuse memory for NVLS, expected a fabric manager that runs and fits the driver"),
    _kind(IMEX, r"MNNVL \(cliqueSize (\d+)\) is available but not (?:working|supported)",
          "NVLinks join {0} ranks, but their memory cannot be shared, expected IMEX to work"),
    _kind(GPU_FAILED, r"P2P is disabled between NVLINK connected GPUs (\d+) and (\d+)",
          "NVLinks join GPUs {0} and {1} of the node, but P2P is off between them, expected it on"),
    _kind(OPEN_FILES, r"Too many open files", "NCCL met its limit of open files, expected room for all ranks"),
    _kind(DRIVER, r"driver version is insufficient|unsupported display driver|forward compatibility was attempted"
          r"|[Dd]river/library version mismatch|driver on your system is too old|[Ff]ailure (?:35|803|804)\b"
          r"|compiled with an unsupported toolchain|not supported in the installed CUDA driver",
          "CUDA refuses the driver, expected one that fits its libraries"),
    _kind(SHARED_MEMORY, r"failed to extend (\S+) to (\d+) bytes",
          "shared memory {0} does not grow to {1} bytes, expected room for NCCL's buffers"),
    _kind(SHARED_MEMORY, r"failed to create shared memory file (\S+), error ([^(\n]{1,80}?) \(",
          "NCCL could not create {0} ({1}), expected room for its buffers"),
    _kind(SHARED_MEMORY, r"posix_fallocate failed", "shared memory does not grow, expected room for NCCL's buffers"),
    _kind(SHARED_MEMORY, r"^SIGBUS$", "the worker died of SIGBUS, as where shared memory is full; expected room"),
    _kind(SHARED_MEMORY, r"Error while creating shared memory segment (\S+)",
          "NCCL could not create {0}, expected room for its buffers"),
    _kind(SHARED_MEMORY, r"Error while attaching to shared memory segment (\S+)",
          "NCCL does not see {0} of another rank, expected one shared memory for the node's ranks", or_victim=True),
    _kind(MEMLOCK, r"Call to (ibv_\w+) failed with (?:error )?(?:12 )?Cannot allocate memory",
          "{0} got no memory to lock, expected an unlimited memlock"),
    _kind(RDMA, r"Call to (ibv_\w+) failed with (?:error )?(?:\d+ )?([^\n,]{1,80}?)(?: errno|,|$)",
          "{0} failed ({1}), expected RDMA to work"),
    _kind(RDMA, r"completion .{0,80}(?:error |status=)(?:IBV_WC_LOC_PROT_ERR\()?4\b",
          "an HCA may not reach memory (status 4, local protection), expected it to: see ACS, the IOMMU and GPUDirect"),
    _kind(PLUGIN, r"Error: network (\S+) not found", "NCCL has no network {0}, expected the one it was told to use",
          "NCCL_NET", sure=True),
    _kind(PLUGIN, r"Failed to initialize any NET plugin", "NCCL could start no transport, expected one that works",
          "NCCL_NET"),
    _kind(GPU_FAILED, rf"{_SAID}((?:{'|'.join(_FAILS)})[^'\n]{{0,60}})", "CUDA fails: {0}, expected a GPU that works"),
    _kind(GPU_FAILED, _SAID + r"((?:an illegal memory access|unspecified launch failure|unknown error)[^'\n]{0,60})",
          "CUDA fails: {0}, expected a GPU that works", or_victim=True),
)  # fmt: skip
"""The first that a text fits is its cause."""
