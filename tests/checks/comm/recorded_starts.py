"""What NCCL and torch say where a start fails: few lines of one rank, as logs of real jobs have them, or in the words
of NCCL's source. Hosts, addresses and numbers are made up."""

from typing import NamedTuple

_KINDS = {
    1: ("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed."),
    2: ("unhandled system error", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed "
        "or device error. "),
    3: ("internal error", "ncclInternalError: Internal check failed."),
    5: ("invalid usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    6: ("remote process exited or there was a network error", "ncclRemoteError: A call failed possibly due to a "
        "network error or a remote process exiting prematurely."),
}  # fmt: skip
"""By NCCL's result: torch's words, and what it explains (getNcclErrorDetailStr in NCCLUtils.cpp)."""
_AT = "gpu:41:77 [0]"
STAMP = "[2026-01-31 12:00:00] "
"""Before each WARN since 2.26."""


class Start(NamedTuple):
    log: str
    """Of NCCL, with NCCL_DEBUG=INFO."""
    error: str
    """Of torch's exception."""
    source: str


def info(text: str) -> str:
    return f"{_AT} NCCL INFO {text}\n"


def warn(place: str, text: str, *, stamp: str = "") -> str:
    return f"\n{stamp}{_AT} {place} NCCL WARN {text}\n"


def error(result: int, version: str, last: str = "") -> str:
    """torch's, for a result of NCCL's."""
    kind, meaning = _KINDS[result]
    text = (
        f"NCCL error in: ProcessGroupNCCL.cpp:94, {kind} (run with NCCL_DEBUG=INFO for details), NCCL version {version}"
    )
    return f"{text}\n{meaning}\nLast error:\n{last}\n"


def _failed(version: str, place: str, text: str, result: int, source: str, before: str = "") -> Start:
    """A start in which this warning came, and NCCL gave up."""
    major, minor, _ = map(int, version.split("."))
    warned = warn(place, text, stamp=STAMP if (major, minor) >= (2, 26) else "")
    begin = f"NCCL version {version}+cuda12.4\n{before}"
    return Start(f"{begin}{warned}{info(f'init.cc:1500 -> {result}')}", error(result, version, text), source)


LOST = _failed("2.27.5", "misc/socket.cc:81", "socketProgress: Connection closed by remote peer gpu-1<41234>", 6,
               "NCCL 2.27.5, src/misc/socket.cc")  # fmt: skip
"""A rank whose peer gave up."""
STARTS = {
    "shared_memory": _failed(
        "2.27.5", "misc/shmutils.cc:88",
        "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)", 2,
        "a recorded log: pytorch/ci-infra pull request 490",
    ),
    "no_interface": _failed(
        "2.27.5", "bootstrap.cc:115", "Bootstrap : no socket interface found", 5,
        "the words of NCCL 2.27.5, src/bootstrap.cc", info("NCCL_SOCKET_IFNAME set by environment to eth9"),
    ),
    "fabric_manager": Start(
        "", "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
        "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
        "the words of CUDA's error 802, as in wilicc/gpu-burn issue 92, and of torch's c10/cuda/CUDAFunctions.cpp",
    ),
    "driver": _failed(
        "2.18.5", "init.cc:1580", "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'", 1,
        "a recorded log: NVIDIA/nccl-tests issue 12, with the prefix of NCCL 2.18.5",
    ),
    "gpu_failed": Start(
        "", "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at "
        "some other API call, so the stacktrace below might be incorrect.",
        "a recorded log: kohya-ss/sd-scripts issue 1434",
    ),
    "memlock": _failed(
        "2.18.5", "misc/ibvwrap.cc:278", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", 2,
        "a recorded log: NVIDIA/nccl-tests issue 206", info("Using network IB"),
    ),
    "rdma": _failed(
        "2.28.9", "misc/ibvwrap.cc:307",
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, "
        "local GID index 3, local GID ::ffff:10.0.0.7, remote GID ::ffff:10.0.0.1", 2,
        "a recorded log: NVIDIA/nccl issue 2013", info("Using network IB"),
    ),
    "imex": _failed(
        "2.27.5", "mnnvl.cc:74",
        "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration "
        "(nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.", 2,
        "the words of NCCL 2.27.5, src/mnnvl.cc",
    ),
    "open_files": _failed(
        "2.29.2", "os/linux.cc:119", "ncclOsSocketTryAccept: Accept failed: Too many open files", 2,
        "a recorded log: goodfire-ai/spd pull request 957",
    ),
    "plugin": _failed(
        "2.26.2", "plugin/net.cc:232", "Error: network AWS Libfabric not found.", 5,
        "the words of NCCL 2.26.2, src/plugin/net.cc",
    ),
}  # fmt: skip
"""By the slug of comm.init's code."""


def twins(rank: int, peer: int) -> Start:
    """Both ranks of a pair on one GPU say so."""
    return _failed("2.18.5", "init.cc:795", f"Duplicate GPU detected : rank {rank} and rank {peer} both on CUDA device "
                   "31000", 5, "a recorded log: huggingface/accelerate issue 2246")  # fmt: skip


def mismatch(rank: int, version: str, peer: int, peer_version: str) -> Start:
    """`rank` tells of the first rank whose version is another."""
    text = (f"Mismatched NCCL version detected : rank {peer} version {_number(peer_version)} rank {rank} version "
            f"{_number(version)}")  # fmt: skip
    return _failed(version, "init.cc:729", text, 5, "the words of NCCL 2.27.5, src/init.cc")


def _number(version: str) -> int:
    major, minor, patch = map(int, version.split("."))
    return major * 10000 + minor * 100 + patch
