# ruff: noqa: E501 -- lines as torch and NCCL write them
"""What fault_jobs.py prints where there is no GPU, and how it ends: as torch 2.11, NCCL 2.28.9 and CUDA 13 say it."""

import os
import sys
import time

TRACE = 'Traceback (most recent call last):\n  File "{file}", line 60, in {job}\n    torch.cuda.synchronize()\n'
NOTE = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
CUPY = "cupy_backends.cuda.api"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of 79.18 GiB of "
    "which 78.65 GiB is free. Including non-PyTorch memory, this process has 530.00 MiB memory in use. Of the allocated "
    "memory 4.00 MiB is allocated by PyTorch, and 16.00 MiB is reserved by PyTorch but unallocated."
)
NCCL = "node-a:{pid}:{pid} [0] {place} NCCL WARN {text}\n"
DIST = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {text}, NCCL "
    "version 2.28.9"
)
WATCHDOG = "[rank{rank}]:[E1127 10:00:00.000000000 ProcessGroupNCCL.cpp:{line}] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] {text}\n"
TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, "
    "Timeout(ms)=12000) ran for 12087 milliseconds before timing out."
)
GONE = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
    "socketProgress: Connection closed by remote peer localhost<40000>"
)
ENDS: dict[str, tuple[str, int]] = {
    "out_of_bounds": ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered" + NOTE, 1),
    "bad_index": (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1602: indexSelectSmallIndex: block: [0,0,0], thread: [0,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.\n"
        "torch.AcceleratorError: CUDA error: device-side assert triggered" + NOTE, 1),
    "misaligned": ("torch.AcceleratorError: CUDA error: misaligned address" + NOTE, 1),
    "stack_overflow": ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered" + NOTE, 1),
    "too_many_resources": (
        f"{CUPY}.driver.CUDADriverError: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch", 1),
    "out_of_memory": (OOM, 1),
    "other_arch": (
        f"{CUPY}.driver.CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the "
        "device", 1),
    "forked_loader": (
        "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
        "'spawn' start method", 1),
    "no_such_gpu": ("torch.AcceleratorError: CUDA error: invalid device ordinal\nGPU device may be out of range, do you have "
                    "enough GPUs?" + NOTE, 1),
    "left_out 0": (WATCHDOG.format(rank=0, line=690, text=TIMED_OUT) + WATCHDOG.format(
        rank=0, line=744, text="Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted/incomplete data."), -6),
    "holds_the_gil 1": (WATCHDOG.format(
        rank=1, line=1800, text="Heartbeat monitor timed out! Process will be terminated after dumping debug info. "
        "workMetaList_.size()=1"), -6),
    "nccl_out_of_memory 0": (
        NCCL.format(pid=41, place="include/alloc.h:228", text="Cuda failure 2 'out of memory'")
        + "[rank0]: " + DIST.format(text="unhandled cuda error (run with NCCL_DEBUG=INFO for details)"), 1),
    "starts 0": (
        NCCL.format(pid=41, place="misc/shmutils.cc:87", text="Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes, "
                    "error: No space left on device (28)")
        + "[rank0]: " + DIST.format(text="unhandled system error"), 1),
    "shares_gpu 0": (
        NCCL.format(pid=41, place="init.cc:1060", text="Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 50")
        + "[rank0]: " + DIST.format(text="invalid usage"), 1),
    "killed 0": ("[rank0]: " + DIST.format(text=GONE), 1),
    "killed 1": ("rank 1 kills itself", -9),
}  # fmt: skip
REAL = ("endless", "holds_memory", "computes", "turns_nan", "slows_down")
"""These run on a CPU."""


def end_as(job: str, rank: int) -> None:
    """Prints what the job would, and ends the process; returns for a job that a CPU can run."""
    if job in REAL:
        return
    text, code = ENDS.get(job) or ENDS.get(f"{job} {rank}") or ("", 0)
    time.sleep(0.3 if text else 2.0)  # others are still at work when the culprit fails
    if text.startswith(("torch.", CUPY)):
        text = TRACE.format(file=sys.argv[0], job=job) + text
    print(text, file=sys.stderr, flush=True)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
