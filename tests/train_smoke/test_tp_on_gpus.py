"""What only a GPU's optimizer does, with torch told that a CPU is such a device."""

from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import optimizer

from preflight.train_smoke.trainer.dtensors import whole
from preflight.train_smoke.trainer.task import Groups, Rates, Recipe


class Mixed(nn.Module):
    """A matrix that ranks share, beside a vector that each has: as tensor parallelism leaves a model."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (1,))
        self.matrix = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        self.vector = nn.Parameter(torch.ones(4))
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mixed]:
    monkeypatch.setattr(optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield Mixed()
    dist.destroy_process_group()


@pytest.mark.parametrize("adamw", [False, True])
def test_a_step(mixed: Mixed, adamw: bool) -> None:
    Recipe(adamw=adamw).optimizer(Groups(list(mixed.parameters()), []), Rates()).step()
    assert whole(mixed.matrix).max() < 1 and mixed.vector.max() < 1
