"""Starts ranks that share the one GPU: as nodes of their own, or (with a newer NCCL) as one node."""

import importlib.util
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from preflight.engine.local_launch import free_port
from tests.real_gpu.items import ENVIRON, PATIENCE, Ended, UnexpectedError, Work, wait_or_kill

NEW = Path("/tmp/nccl232/libnccl.so.2")
ONE_NODE = NEW.with_name("one_node_works")
TOGETHER = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "4",
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_SOCKET_IFNAME": "lo",
}
APART = {"CUDA_VISIBLE_DEVICES": "0", "NCCL_SOCKET_IFNAME": "lo"}
ONE_VARIANT = tuple(
    word
    for name, variant in {
        "ddp": "plain", "fsdp2": "plain", "fsdp": "full_shard", "tp": "matrices", "pp": "gpipe", "hybrid": "hsdp",
        "compile": "fsdp2",
    }.items()
    for word in ("--set", f"train.{name}.variants={variant}")
)  # fmt: skip
SMALL_SWEEPS = tuple(
    word
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    for word in ("--set", f"comm.{name}.max_mib=64")
)


def under_new(work: Work) -> list[str]:
    """Words that give a command the newer NCCL in place of torch's own. Raises UnexpectedError where there is none."""
    if work.dry:
        return []
    if not NEW.exists():
        raise UnexpectedError("not tried: C0 has not unpacked the newer NCCL")
    script = f'mount --bind {NEW} {shlex.quote(str(own_nccl()))} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def own_nccl() -> Path:
    """The library of the NCCL that torch's wheel asks for."""
    package = importlib.util.find_spec("nvidia.nccl")
    assert package and package.submodule_search_locations
    return Path(package.submodule_search_locations[0], "lib", "libnccl.so.2")


def needs_one_node(work: Work) -> list[str]:
    """`under_new`, where C1 has seen it run several ranks on the GPU."""
    words = under_new(work)
    if not work.dry and not ONE_NODE.exists():
        raise UnexpectedError("not tried: C1 saw no collective of several ranks on one GPU")
    return words


def places(world: int, more: Mapping[str, str], own_nodes: bool = False) -> list[dict[str, str]]:
    """The variables of each rank."""
    port = str(free_port())
    ranks = [
        {
            "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more,
        }
        for rank in range(world)
    ]  # fmt: skip
    if own_nodes:
        for rank, place in enumerate(ranks):
            place |= {
                "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NCCL_HOSTID": f"host-{rank}", "NODE_RANK": str(rank),
                "SLURMD_NODENAME": f"node-{rank}",
            }  # fmt: skip
    return ranks


def job(name: str, *words: str) -> list[str]:
    """A function of tests/real_gpu/jobs/collectives.py."""
    return [sys.executable, "-m", "tests.real_gpu.jobs.collectives", name, *words]


def preflight(*words: str) -> list[str]:
    return [sys.executable, "-m", "preflight", *words]


def start(
    work: Work, ranks: Sequence[Mapping[str, str]], words: Sequence[str], *, limit_s: float, name: str = "rank",
    before: Callable[[int], Sequence[str]] = lambda _: (), beside: Callable[[list[int]], None] | None = None,
) -> list[Ended]:  # fmt: skip
    """One process for each rank, until all have ended or the limit is over (124). `before`: words in front of a rank's
    command. `beside`: called with their process ids once they have started, and while they run."""
    began, running, logs = time.monotonic(), [], []
    for rank, place in enumerate(ranks):
        path = work.folder / f"{name}{rank}.txt"
        logs.append(path)
        with path.open("wb") as log:
            running.append(
                subprocess.Popen(
                    [*before(rank), *words], env={**os.environ, **ENVIRON, **place}, cwd=work.folder, stdout=log,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                )
            )  # fmt: skip
    if beside:
        beside([process.pid for process in running])
    codes = [wait_or_kill(process, began + limit_s * PATIENCE) for process in running]
    seconds = time.monotonic() - began
    return [Ended(code, log.read_text(errors="replace"), seconds) for code, log in zip(codes, logs, strict=True)]


def wait_for(log: Path, text: str, within_s: float) -> bool:
    """Whether this text has come into the log in time."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if log.exists() and text in log.read_text(errors="replace"):
            return True
        time.sleep(0.05)
    return False
