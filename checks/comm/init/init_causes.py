"""Codes for a failed start. Rows with `live` in preflight/failure_book/signatures name them."""

from preflight.check import Action, Code
from preflight.nccl.version import SAME_VERSION_FIX

VERSIONS = Code(
    "NCCL refused to start with ranks that have a different NCCL version.",
    fix=SAME_VERSION_FIX,
)
DUPLICATE_GPU = Code(
    "Two ranks use one GPU.",
    fix="Start as many ranks on a node as it has GPUs, and let each use cuda:LOCAL_RANK; check CUDA_VISIBLE_DEVICES of "
    "both (env.launch, gpu.inventory).",
    see=("env.launch", "gpu.inventory"),
)
NO_INTERFACE = Code(
    "NCCL finds no network interface.",
    fix="There: ip -brief address; then set NCCL_SOCKET_IFNAME to what connects the nodes (a list of prefixes, =name "
    "for one), or unset it.",
)
FABRIC_MANAGER = Code(
    "CUDA waits for the fabric manager of the NVSwitches.",
    fix="There: systemctl status nvidia-fabricmanager; its version must be the driver's; systemctl restart it, and see "
    "/var/log/fabricmanager.log.",
    see=("gpu.nvlink", "node.kernel"),
)
DRIVER = Code(
    "The GPU driver does not match CUDA's libraries.",
    fix="There: nvidia-smi; cat /proc/driver/nvidia/version; update the driver, reload it after an update (reboot), "
    "or remove the container's compat libraries from LD_LIBRARY_PATH.",
    see=("env.software", "gpu.inventory", "node.kernel"),
)
GPU_FAILED = Code(
    "CUDA fails on the rank's GPU.",
    fix="There: nvidia-smi; dmesg | grep -i xid; see gpu.health of the node; drain it if the GPU is lost.",
    action=Action.RESET_GPU,
    see=("gpu.health", "gpu.inventory", "node.kernel"),
)
SHARED_MEMORY = Code(
    "NCCL cannot get shared memory.",
    fix="There: df -h /dev/shm; rm its stale nccl-* files; enlarge it: mount -o remount,size=16G /dev/shm, docker "
    "--shm-size=16g or --ipc=host, Kubernetes: an emptyDir with medium Memory at /dev/shm.",
    see=("node.limits", "node.leftovers"),
)
MEMLOCK = Code(
    "RDMA is not allowed to lock memory.",
    fix="There: ulimit -l (should be unlimited): LimitMEMLOCK=infinity for the launcher's service (slurmd, "
    "containerd), docker --ulimit memlock=-1.",
    see=("node.limits",),
)
RDMA = Code(
    "An RDMA call of NCCL failed.",
    fix="There: ibstat; show_gids; on RoCE see NCCL_IB_GID_INDEX and that both nodes have an address in its network; "
    "net.rdma reports on links and GIDs.",
    see=("net.rdma", "net.efa", "net.rdma_errors"),
)
IMEX = Code(
    "NVLinks connect the nodes (MNNVL), but IMEX does not work.",
    fix="There: nvidia-imex-ctl -N; ls /dev/nvidia-caps-imex-channels; systemctl status nvidia-imex. "
    "NCCL_MNNVL_ENABLE=0 works around it, over the slower network.",
    see=("gpu.nvlink",),
)
OPEN_FILES = Code(
    "NCCL cannot open any more files.",
    fix="There: ulimit -n (65536 or more for large jobs): LimitNOFILE for the launcher's service, docker --ulimit "
    "nofile=1048576.",
    see=("node.limits",),
)
PLUGIN = Code(
    "NCCL cannot use the network plugin or transport it was told to use.",
    fix="There: env | grep -E 'NCCL_NET|LD_LIBRARY_PATH'; ldd libnccl-net*.so; unset NCCL_NET and NCCL_NET_PLUGIN to "
    "let NCCL choose.",
)
