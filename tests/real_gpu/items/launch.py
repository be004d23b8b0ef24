"""How several ranks start on one GPU: over NCCL's sockets, each with an NCCL_HOSTID of its own."""

import sys

from preflight.engine.local_launch import free_port
from tests.real_gpu.items import ROOT

JOBS = ROOT / "tests" / "real_gpu" / "jobs"
HERE = {"PYTHONPATH": str(ROOT)}
"""For what starts in another folder."""
ON_ONE_GPU = {
    "CUDA_VISIBLE_DEVICES": "0", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", **HERE,
    "NCCL_DEBUG": "WARN", "RES_OPTIONS": "timeout:1 attempts:1",
}  # fmt: skip
_START = """
pids=""
for rank in $(seq 0 $((WORLD_SIZE - 1))); do
    RANK=$rank NODE_RANK=$rank SLURMD_NODENAME=node-$rank NCCL_HOSTID=host-$rank "$@" & pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
exit "$code"
"""
PLAIN_LAUNCH = ("sh", "-c", _START, "sh")
"""Before a command: starts WORLD_SIZE ranks of it, and waits for all, also where some fail: their own last words are to
be read."""


def plain_ranks(world: int) -> dict[str, str]:
    """The environment for PLAIN_LAUNCH."""
    return {
        **ON_ONE_GPU, "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "NCCL_RAS_ADDR": f"localhost:{free_port()}",
    }  # fmt: skip


def command(job: str, ranks: int = 1, script: str = "fault_jobs.py") -> list[str]:
    """The job alone, or under torchrun."""
    words = [str(JOBS / script), job]
    if ranks == 1:
        return [sys.executable, *words]
    launch = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", *launch, *words]
