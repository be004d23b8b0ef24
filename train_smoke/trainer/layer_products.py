"""Whether a rank's own part of each layer's product is right, before ranks exchange anything: under tensor parallelism
a wrong one is in all ranks' numbers an instant later, and none of these tells whose it was.

A rank has some columns of a product, or a term of it, from its columns or rows of the matrix. Both follow from sums
over the rows of the batch that the training alone keeps of each layer, with random signs, so that little is kept: of
what comes out, and of what each input adds to it.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer import model
from preflight.train_smoke.trainer.compare import Number, as_json
from preflight.train_smoke.trainer.dtensors import box_of


class OwnProduct(TypedDict):
    """The first product of a training of which this rank's own part is not as in the training alone."""

    layer: str
    step: int
    place: int
    """Its number in the order of the training."""
    off: Number
    """How far it is off, relative to the whole product's norm over the rows."""


class Sums(NamedTuple):
    """Of one layer's product at one step, alone."""

    outputs: Tensor
    """(outputs,): of each output over the rows, with signs."""
    terms: Tensor
    """(inputs,): what each input adds to the sum of all outputs, with signs."""
    bias: float
    """The same of the bias."""
    scale: Tensor
    """(outputs,): the norm of each output over the rows."""


Layers = Mapping[str, Sums]
"""By the layer's name, in the order of forward."""


@functools.cache
def _signs(size: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(model.SEED + seed)
    return torch.randint(0, 2, (size,), generator=random).mul_(2).sub_(1).float()


def _rows(product: Tensor) -> Tensor:
    """(rows, features)."""
    return product.detach().flatten(0, -2).to("cpu", torch.float32)


class Unkept:
    """Keeps nothing."""

    def stepped(self) -> None:
        """Called after each step."""


class LayersAlone(Unkept):
    """Keeps the sums of the last forward of each step, which is that of the rank's own rows."""

    def __init__(self, plain: nn.Module) -> None:
        self.steps: list[Layers] = []
        self._last: dict[str, Sums] = {}
        for name, module in plain.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(functools.partial(self._see, name))

    @torch.no_grad()
    def _see(self, name: str, module: nn.Linear, inputs: Any, output: Tensor) -> None:
        rows, products = _rows(inputs[0]), _rows(output)
        down, across = _signs(len(rows), 0), _signs(products.shape[1], 1)
        of_inputs = across @ module.weight.to("cpu", torch.float32)
        bias = 0.0 if module.bias is None else float(across @ module.bias.to("cpu", torch.float32) * down.sum())
        self._last[name] = Sums(down @ products, (down @ rows) * of_inputs, bias, products.norm(dim=0))

    def stepped(self) -> None:
        self.steps.append(dict(self._last))


class LayersCut(Unkept):
    """Compares a rank's own parts with them. It must see the model before it is cut, so that its hooks come before
    those that exchange."""

    def __init__(self, plain: nn.Module, alone: list[Layers], limit: float) -> None:
        """`limit`: relative, of what roundings may cause."""
        self._alone, self._limit, self._step = alone, limit, 0
        self.first: OwnProduct | None = None
        for name, module in plain.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(functools.partial(self._see, name))

    def stepped(self) -> None:
        self._step += 1

    @torch.no_grad()
    def _see(self, name: str, module: nn.Linear, _inputs: Any, output: Any) -> None:
        if self.first is not None or not hasattr(output, "to_local"):
            return
        expected = self._alone[self._step]
        off = _off(expected[name], module, output)
        if not off <= self._limit:
            place = self._step * len(expected) + [*expected].index(name)
            self.first = OwnProduct(layer=name, step=self._step, place=place, off=as_json(off))


def _off(expected: Sums, module: nn.Linear, output: Any) -> float:
    (start, stop), (first, last) = box_of(module.weight).ranges
    products = _rows(output.to_local())
    down, norm = _signs(len(products), 0), float(expected.scale.norm())
    if (first, last) == (0, module.in_features):
        apart = down @ products - expected.outputs[start:stop]
        return float(apart.abs().max()) / float(expected.scale.max())
    measured = float(down @ products @ _signs(products.shape[1], 1))
    term = float(expected.terms[first:last].sum())
    shares = (1 / output.device_mesh.size(), 0.0, 1.0)  # of the bias: torch divides it, or gives it to the first rank
    return min(abs(measured - term - share * expected.bias) for share in shares) / norm
