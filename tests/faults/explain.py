"""Jobs that fail, as `preflight debug` explains them (tests/test_debug.py). The exit code is the job's own."""

from typing import Any

from tests.faults.row import Fault, elsewhere


def _job(
    name: str, story: str, made: str, slug: str, exit_code: int, *, more: bool = False, **culprit: Any
) -> Fault:  # fmt: skip
    return elsewhere(
        f"job_{name}", story, made, f"fail explain.{slug}", world=2, exit_code=exit_code, culprit=culprit,
        deadline_s=90, more=more,
    )  # fmt: skip


ALL: tuple[Fault, ...] = ()
ELSEWHERE = (
    _job("exits", "A rank leaves early, and the other waits in an all-reduce.", "`os._exit(3)` on rank 1",
         "app_crash", 3, rank=1),
    _job("raises", "A rank raises, and the other only loses its peer.", "an exception on rank 1", "app_crash", 1,
         rank=1),
    _job("other_collective", "A rank calls another collective than the other.", "a broadcast on rank 1",
         "collective_mismatch", 1),
    _job("other_shape", "A rank reduces a tensor of another size.", "a larger tensor on rank 1", "collective_mismatch",
         6),
    _job("killed", "A rank is killed.", "SIGKILL to rank 1", "host_oom_kill", 9, rank=1),
    _job("crashes", "A rank crashes in native code.", "`ctypes.string_at(0)` on rank 1", "app_crash", 11, rank=1),
    _job("leaves", "A rank ends with exit code 0 while the other waits for it.", "rank 1 calls one all-reduce fewer",
         "collective_mismatch", 1, rank=1),
    _job("shared_memory", "/dev/shm is too small for DataLoader workers.", "a tmpfs of 1 MiB", "shm_exhausted", 1),
    _job("full_disk", "The disk is full when rank 0 saves.", "`torch.save` of 4 MiB, a tmpfs of 1 MiB", "disk_full", 1,
         rank=0),
    _job("truncated", "A rank loads a checkpoint that was not written to its end.", "`os.truncate`, then `torch.load`",
         "checkpoint", 1, rank=1),
    _job("interface", "GLOO_SOCKET_IFNAME names no interface.", "`GLOO_SOCKET_IFNAME=nosuch0`", "gloo_interface", 1),
    _job("name", "MASTER_ADDR does not resolve.", "`MASTER_ADDR=no-such-host.invalid`", "hostname_resolution", 1),
    _job("refused", "Nobody listens at the master's port.", "rank 1 alone", "rdzv_master_unreachable", 1),
    _job("stuck_loader", "A data loader never returns.", "`time.sleep(1000)` in a dataset, `--hang-after 3`",
         "slow_rank_timeout", 124, rank=1),
    _job("spawned", "A rank of mp.spawn raises: nobody has set RANK.", "`mp.spawn`, an exception on rank 1",
         "app_crash", 1, more=True, rank=1),
    _job("spawned_stuck", "A data loader of a rank of mp.spawn never returns.", "`mp.spawn`, `--hang-after 3`",
         "slow_rank_timeout", 124, more=True, rank=1),
    _job("port", "The master's port is taken.", "a socket that listens there", "port_in_use", 1),
    _job("program", "The launcher's program does not exist.", "`torchrun --no-python nosuch_trainer`", "launch_failed",
         1, file="nosuch_trainer"),
    _job("gpu_busy", "A GPU in exclusive mode is held by another process.",
         "torch's exception for it, raised on rank 1: no GPU here", "gpu_busy", 1, rank=1),
    _job("unused", "DDP with a parameter that no loss uses.", "torchrun, gloo", "ddp_unused_params", 1),
)  # fmt: skip
