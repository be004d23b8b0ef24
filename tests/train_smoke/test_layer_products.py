"""A rank's own part of a layer's product, held against the training alone: on DTensors of one process."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer import layer_products
from preflight.train_smoke.trainer.layer_products import LayersAlone, Sums
from preflight.train_smoke.trainer.wrapped import ShardBox

RANKS, ROWS, INPUTS, OUTPUTS = 2, (3, 5), 6, 4
LIMIT = 1e-5


def alone(layer: nn.Linear, x: Tensor) -> Sums:
    kept = LayersAlone(nn.ModuleDict({"layer": layer}))
    layer(x)
    kept.stepped()
    (step,) = kept.steps
    return step["layer"]


def layer() -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(1)
    return nn.Linear(INPUTS, OUTPUTS), torch.randn(*ROWS, INPUTS)


def off(
    monkeypatch: pytest.MonkeyPatch, expected: Sums, module: nn.Linear, box: tuple[tuple[int, int], ...], local: Tensor
) -> float:
    """How far off a rank's part is that has this box of the matrix."""
    monkeypatch.setattr(layer_products, "box_of", lambda _: ShardBox(box))
    output: Any = SimpleNamespace(to_local=lambda: local, device_mesh=SimpleNamespace(size=lambda: RANKS))
    return layer_products._off(expected, module, output)


def column(module: nn.Linear, x: Tensor, start: int, stop: int) -> Tensor:
    return x @ module.weight[start:stop].t() + module.bias[start:stop]


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (3, 4)], ids=["larger", "smaller"])
def test_columns_of_a_product(monkeypatch: pytest.MonkeyPatch, start: int, stop: int) -> None:
    module, x = layer()
    expected, box = alone(module, x), ((start, stop), (0, INPUTS))
    local = column(module, x, start, stop)
    assert off(monkeypatch, expected, module, box, local) < LIMIT
    for wrong in (local * 1.001, local.flip(0), local + 0.01, column(module, x, 1 - start // 3, 1 - start // 3 + 1)):
        if wrong.shape == local.shape:
            assert off(monkeypatch, expected, module, box, wrong) > 10 * LIMIT


@pytest.mark.parametrize("share", [0.5, 0.0, 1.0], ids=["divided", "none", "whole"])
@pytest.mark.parametrize("first", [0, 3])
def test_a_term_of_a_product_with_any_share_of_the_bias(
    monkeypatch: pytest.MonkeyPatch, first: int, share: float
) -> None:
    module, x = layer()
    expected, box = alone(module, x), ((0, OUTPUTS), (first, first + 3))
    local = x[..., first : first + 3] @ module.weight[:, first : first + 3].t() + share * module.bias
    assert off(monkeypatch, expected, module, box, local) < LIMIT
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda t: t * 1.001,
        lambda t: t.flip(1),
        lambda t: t.roll(1, -1),
    )
    for change in changes:
        assert off(monkeypatch, expected, module, box, change(local)) > 10 * LIMIT


def test_a_product_that_is_not_a_number_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = layer()
    local = column(module, x, 0, 3) * float("nan")
    assert not off(monkeypatch, alone(module, x), module, ((0, 3), (0, INPUTS)), local) <= LIMIT


def test_a_layer_without_bias() -> None:
    torch.manual_seed(1)
    assert alone(nn.Linear(INPUTS, OUTPUTS, bias=False), torch.randn(*ROWS, INPUTS)).bias == 0.0
