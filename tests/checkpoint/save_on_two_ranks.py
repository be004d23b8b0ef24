"""`python -m tests.checkpoint.save_on_two_ranks FOLDER`: what DCP writes on two ranks, in several versions."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests import forked

FOLDER = Path(sys.argv[1])


def state(width: int, last: float = 1.0) -> dict[str, Any]:
    """A weight in a chunk per rank, plain tensors, and numbers."""
    mesh = init_device_mesh("cpu", (2,))
    weight = torch.arange(5 * width, dtype=torch.float32).view(5, width)
    weight[-1, -1] = last
    half = torch.ones(3, dtype=torch.bfloat16)
    model = {"weight": distribute_tensor(weight, mesh, [Shard(0)]), "bias": torch.ones(5), "half": half}
    return {"model": model, "step": 7, "settings": {"rate": 0.1}}


def rank(number: int) -> None:
    store = FileStore(str(FOLDER / "store"), 2)
    dist.init_process_group("gloo", rank=number, world_size=2, store=store)
    for name, saved in (("sound", state(4)), ("wider", state(6)), ("nan", state(4, float("nan")))):
        save(saved, checkpoint_id=FOLDER / name)
    dist.destroy_process_group()
    os._exit(0)


forked.run(2, rank)
