"""Buffers that forward changes are put back."""

import torch
from torch import nn

from preflight.train_smoke.trainer.buffers import Buffers


class Counting(nn.Module):
    calls: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = torch.cat([self.seen, x.sum()[None]])
        return x * self.calls


def test_a_forward_pass_finds_the_buffers_as_they_were() -> None:
    plain = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    buffers, before = Buffers(plain), {name: buffer.clone() for name, buffer in plain.named_buffers()}
    outputs = []
    for _ in range(3):
        outputs.append(plain(torch.arange(6.0).view(2, 3)))
        assert not all(torch.equal(buffer, before[name]) for name, buffer in plain.named_buffers())
        buffers.put_back()
    assert all(torch.equal(outputs[0], output) for output in outputs)
    assert all(torch.equal(buffer, before[name]) for name, buffer in plain.named_buffers())
