"""What a forward pass changes: counters, running means, the vectors of spectral norms; a teacher's parameters."""

from collections.abc import Collection

import torch
from torch import Tensor, nn


class Buffers:
    """A copy of a model's buffers. They are restored before each part of a batch; else a training that sees the batch
    in more parts than another would train a different function. `written`: parameters to which the same applies."""

    def __init__(self, plain: nn.Module, written: Collection[str] = ()) -> None:
        self._written = [
            (parameter, parameter.detach().clone())
            for name, parameter in plain.named_parameters()
            if name in written and not parameter.requires_grad
        ]
        self._kept = [
            (module, name, buffer.detach().clone())
            for module in plain.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        for parameter, kept in self._written:
            parameter.copy_(kept)
        for module, name, kept in self._kept:
            now = module._buffers.get(name)
            if isinstance(now, Tensor) and (now.shape, now.dtype, now.device) == (kept.shape, kept.dtype, kept.device):
                now.copy_(kept)
            else:  # forward has put a different tensor there
                module._buffers[name] = kept.clone()
