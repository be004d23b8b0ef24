"""Jobs that fail, each as a user's script would: `python jobs.py NAME` starts two ranks, forked from a process that has
imported torch once; under torchrun it is the rank. With SPAWNED=1 mp.spawn starts them, and nobody sets RANK."""

import ctypes
import datetime
import os
import signal
import sys
import time
import warnings
from typing import Any

warnings.simplefilter("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import multiprocessing  # noqa: E402

SHORT = datetime.timedelta(seconds=3)


def healthy(rank: int) -> None:
    total = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(total)
    print(f"rank {rank}: {total[0].item():.0f}")


def exits(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    dist.all_reduce(torch.ones(4))


def raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("sample 17 has no label")
    dist.all_reduce(torch.ones(4))


def other_collective(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4))


def other_shape(rank: int) -> None:
    dist.all_reduce(torch.ones(4 if rank == 0 else 4096))


def killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def crashes(rank: int) -> None:
    if rank == 1:
        ctypes.string_at(0)
    dist.all_reduce(torch.ones(4))


def leaves(rank: int) -> None:
    """Rank 1's share of the data is smaller."""
    for _ in range(2 - rank):
        dist.all_reduce(torch.ones(4))


class Stuck(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 2:
            time.sleep(1000)  # a read that never returns
        return torch.ones(4)


def stuck_loader(rank: int) -> None:
    loader = torch.utils.data.DataLoader(
        Stuck() if rank == 1 else torch.utils.data.TensorDataset(torch.ones(4, 4)), num_workers=int(rank == 1)
    )
    for _ in loader:
        dist.all_reduce(torch.ones(4))


class Large(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4 << 20)


def shared_memory(rank: int) -> None:
    for _ in torch.utils.data.DataLoader(Large(), num_workers=int(rank == 1)):
        dist.all_reduce(torch.ones(4))


def full_disk(rank: int) -> None:
    """SAVE_TO is a folder on a file system of 1 MiB."""
    if rank == 0:
        torch.save({"model": torch.ones(1 << 20)}, f"{os.environ['SAVE_TO']}/step_100.pt")
    dist.all_reduce(torch.ones(4))


def truncated(rank: int) -> None:
    """As a copy that was ended, or another rank's save that goes on, leaves it."""
    if rank == 1:
        path = f"{os.environ['SAVE_TO']}/step_100.pt"
        torch.save({"model": torch.ones(1 << 16)}, path)
        os.truncate(path, 1 << 17)
        torch.load(path)
    dist.all_reduce(torch.ones(4))


def gpu_busy(rank: int) -> None:
    """What torch 2.13 raises at the first tensor on a GPU in exclusive mode: there is none here."""
    if rank == 1:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be")
    dist.all_reduce(torch.ones(4))


class Partly(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.used(batch)
        return made


def unused(rank: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(Partly())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def main() -> None:
    train(int(os.environ["RANK"]), sys.argv[1], {})


def train(rank: int, name: str, where: dict[str, Any]) -> None:
    dist.init_process_group("gloo", timeout=SHORT if name != "stuck_loader" else None, **where)
    globals()[name](rank)
    dist.destroy_process_group()


def spawned(rank: int, name: str, port: int) -> None:
    train(rank, name, {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": 2})


def start(rank: int) -> int:
    """A rank as `preflight debug` finds it, though its interpreter did not begin as one."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    hook = sys.modules.get("preflight_debug_rank")
    installed = hook.install() if hook else None
    try:
        main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    if installed:  # a forked process runs no atexit
        installed.on_exit()
    return 0


def free_port() -> int:
    from preflight.engine import local_launch  # a rank of the user's imports none of it

    return local_launch.free_port()


def launch() -> None:
    free = free_port()
    defaults = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free), "WORLD_SIZE": "2"}
    os.environ |= {key: os.environ.get(key, value) for key, value in defaults.items()}
    pids = []
    for rank in map(int, os.environ.get("ONLY_RANKS", "0,1").split(",")):
        pids.append(os.fork())
        if not pids[-1]:
            code = start(rank)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    if "SPAWNED" in os.environ:
        multiprocessing.spawn(spawned, (sys.argv[1], free_port()), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
    else:
        main() if "RANK" in os.environ else launch()
