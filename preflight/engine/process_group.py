"""The one place that creates the process group and decides its device and timeouts."""

import contextlib
import gc
import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from preflight.core.action import Action
from preflight.core.answer import Failure, Returned
from preflight.core.exceptions import in_one_line
from preflight.core.finding import RUN, Reported
from preflight.engine.event_loop import EventLoop
from preflight.errors import UsageError

if TYPE_CHECKING:
    import torch

DRIVER_S = 60.0
"""Time for the driver to start: without persistence mode it takes seconds per GPU."""

GROUP_TIMEOUT = 0.7
"""The share of a check's deadline after which a collective gives up: its exception arrives before the deadline."""


def group_timeout(deadline_s: float) -> timedelta:
    return timedelta(seconds=max(1.0, deadline_s * GROUP_TIMEOUT))


@contextlib.contextmanager
def _named_by_ranks() -> Iterator[None]:
    """torch names such a group by its ranks and by the number of groups in this process. That number can differ between
    ranks: one may already have made another part. Members would then wait for each other under different names."""
    from torch.distributed import distributed_c10d

    def hash_of(ranks: Sequence[int]) -> str:
        return hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()

    torchs = distributed_c10d._hash_ranks_to_str
    distributed_c10d._hash_ranks_to_str = hash_of
    try:
        yield
    finally:
        distributed_c10d._hash_ranks_to_str = torchs


class GroupMaker:
    """Creates the world group of a worker, once, for the members of one generation."""

    def __init__(self, host: str, port: int, prefix: str, backend: str) -> None:
        self._host, self._port, self._prefix, self._backend = host, port, prefix, backend
        self._group: Any = None
        self._parts: dict[tuple[int, ...], Any] = {}

    @property
    def endpoint(self) -> tuple[str, int] | None:
        return (self._host, self._port) if self._host and self._port else None

    @property
    def exists(self) -> bool:
        return self._group is not None

    def make(
        self, members: tuple[int, ...], rank: int, device: "torch.device", deadline_s: float
    ) -> "torch.distributed.ProcessGroup":
        """Creates the group: meets the other members over the store. Raises torch's DistError."""
        import torch
        from torch import distributed as dist

        timeout = group_timeout(deadline_s)
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            self._backend,
            store=self._client(self._prefix, timeout),
            rank=members.index(rank),
            world_size=len(members),
            timeout=timeout,
            device_id=device if on_gpu else None,
        )
        self._group = dist.group.WORLD
        return cast("torch.distributed.ProcessGroup", self._group)

    def part(self, group_ranks: tuple[int, ...], deadline_s: float) -> "torch.distributed.ProcessGroup":
        """The group of some members, given by their ranks in the world group. If the world group is bound to a GPU,
        torch creates it by ncclCommSplit, in which each part is a color; else its members meet over the store."""
        from torch import distributed as dist

        if group_ranks not in self._parts:
            timeout = group_timeout(deadline_s)
            with _named_by_ranks():
                group = dist.new_group([*group_ranks], timeout=timeout, use_local_synchronization=True)
            self._parts[group_ranks] = group
        return self.again(deadline_s, self._parts[group_ranks])

    def store(self, step: str, deadline_s: float) -> "torch._C._distributed_c10d.Store":
        """A separate client for one measurement, which blocks no other client. Raises Skip and DistError."""
        from preflight.check import Skip

        if self.endpoint is None:
            raise Skip("there is no store: this run has no launcher")
        return self._client(f"{self._prefix}/{step}", group_timeout(deadline_s))

    def _client(self, prefix: str, timeout: timedelta) -> "torch._C._distributed_c10d.Store":
        from torch import distributed as dist

        from preflight.engine.store_client import connect

        client = connect(self._host, self._port, timeout.total_seconds())
        return dist.PrefixStore(prefix, client)  # type: ignore[attr-defined]  # not in __all__

    def again(self, deadline_s: float, part: Any = None) -> "torch.distributed.ProcessGroup":
        """The existing group (or `part`), with the timeout of the check that asks."""
        from torch.distributed import distributed_c10d

        group = self._group if part is None else part
        distributed_c10d._set_pg_timeout(group_timeout(deadline_s), group)
        return cast("torch.distributed.ProcessGroup", group)

    def close(self) -> None:
        """Destroys the group before the worker ends by itself."""
        if self._group is not None:
            from torch import distributed as dist

            with contextlib.suppress(Exception):
                dist.destroy_process_group()


class TorchBroken(Exception):  # noqa: N818 -- says what is broken
    """torch cannot be imported. Its text says why."""


def import_torch() -> None:
    """Called before any fork, so that a worker starts in milliseconds. The import must leave no thread running. Raises
    TorchBroken."""
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    gc.disable()  # it would scan a hundred thousand new objects again and again, and find nothing
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch.distributed  # noqa: F401
    except Exception as error:
        raise TorchBroken(f"import torch raised {in_one_line(error)}") from error
    finally:
        gc.freeze()
        gc.enable()
        if threads is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = threads


def choose_backend(loop: EventLoop, wish: str, *, needs_torch: bool) -> tuple[str, Reported | None]:
    """(nccl if torch can use a GPU, else gloo; a finding if the job may use a different one). Asks in a child, since
    the driver may hang. Raises UsageError if nccl is requested and there is no GPU."""
    has_gpus = os.path.exists("/dev/nvidiactl") and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1")
    if wish == "gloo":
        return wish, None
    if not needs_torch:
        return ("nccl" if has_gpus else "gloo"), None
    import torch

    answer: Returned | Failure = Returned({"gpus": 0})
    if torch.version.cuda is not None:
        answer = loop.ask(lambda: {"gpus": torch.cuda.device_count()}, DRIVER_S)
    if isinstance(answer, Failure):
        text = f"torch.cuda.device_count() {answer.text}, so the plan runs on gloo; expected an answer"
        fix = "The GPU driver does not answer: check nvidia-smi and dmesg; reset or drain the node."
        return "gloo", _backend("fail", text, fix, Action.REBOOT)
    if answer.value["gpus"] and torch.distributed.is_nccl_available():
        return "nccl", None
    if wish == "nccl":
        raise UsageError(f"--backend nccl: torch {torch.__version__} sees no GPU on rank 0's node")
    if not has_gpus:
        return "gloo", None
    text = f"there are GPUs, but torch {torch.__version__} cannot use them: the plan runs on gloo, and tests no GPU"
    fix = "Install a CUDA build of torch that fits the driver (nvidia-smi names its version)."
    return "gloo", _backend("warn", text, fix, Action.FIX_CONFIG)


def _backend(severity: str, text: str, fix: str, action: Action) -> Reported:
    return Reported(severity=severity, code=f"{RUN}.backend", message=text, fix=fix, action=action)
