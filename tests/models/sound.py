"""Models that are right."""

import warnings

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, object, object]


def classes(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)


def mlp() -> Made:
    """Seven rows: they divide by no world size but 1."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    return model, (torch.randn(7, 8), torch.randint(0, 4, (7,))), classes


class Translator(nn.Module):
    """Tied embeddings, biases of keys whose gradient is rounding only, dropout, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.tensor(4.0))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.tokens(ids) * self.scale, src_key_padding_mask=mask))
        return logits


def _next(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(batch["ids"], batch["mask"])
    return functional.cross_entropy(logits.transpose(1, 2), batch["labels"])


def transformer() -> Made:
    ids = torch.randint(0, 32, (6, 9))
    batch = {"ids": ids[:, :-1], "labels": ids[:, 1:], "mask": torch.zeros(6, 8, dtype=torch.bool)}
    return Translator(), batch, _next


def convolutions() -> Made:
    """One tensor as a batch; the first layer is frozen; in float64."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 1)
    ).double()
    model[0].requires_grad_(False)
    return model, torch.randn(5, 1, 8, 8, dtype=torch.float64), lambda net, images: net(images).square().mean()


def one_row() -> Made:
    """Most ranks have nothing to do."""
    model = nn.Linear(3, 2)
    return model, (torch.randn(1, 3), torch.zeros(1, dtype=torch.int64)), classes


def bfloat16() -> Made:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()
    return model, (torch.randn(8, 8).bfloat16(), torch.randint(0, 4, (8,))), classes


def _squared(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    loss: torch.Tensor = (model(inputs) - targets).square().mean()
    return loss


class InRange(nn.Sequential):
    """Takes numbers from 0 to 1 only."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert bool((inputs >= 0).all()) and bool((inputs <= 1).all()), "images are expected from 0 to 1"
        made: torch.Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]  # nn.Sequential's
        return made


def probabilities() -> Made:
    """BCELoss refuses targets beyond 0 and 1, and so does the model."""
    model = InRange(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    inputs = torch.rand(8, 8)
    inputs[0, :2] = torch.tensor([0.0, 1.0])
    bce = nn.BCELoss()
    return model, (inputs, torch.tensor([[0.0], [1.0]] * 4)), lambda net, batch: bce(net(batch[0]), batch[1])


class OfBytes(nn.Linear):
    """Takes bytes divided by 256 only: not one of its inputs can be moved by a rounding."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert bool((inputs * 256 == (inputs * 256).round()).all()), "a byte is expected"
        return super().forward(inputs)


def bytes_() -> Made:
    return OfBytes(8, 4), (torch.randint(1, 256, (6, 8)) / 256, torch.randint(0, 4, (6,))), classes


def float_mask() -> Made:
    """A mask of floats is compared with 1."""
    model = nn.Linear(8, 4)
    mask = (torch.arange(6) % 2).float()[:, None].expand(6, 8).clone()
    return model, (torch.randn(6, 8), mask), lambda net, batch: net(batch[0] * (batch[1] == 1)).square().mean()


def weight_norm() -> Made:
    """Its `weight` is computed from two parameters: no deepcopy takes it. In DINO's head, and in audio models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and in use
        head = nn.utils.weight_norm(nn.Linear(16, 4, bias=False))
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), head), (torch.randn(6, 8), torch.randn(6, 4)), _squared


class Stochastic(nn.Linear):
    """Dropout that is no module of torch's, as in BERT's attention."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(inputs), 0.5)


def draws() -> Made:
    return Stochastic(8, 4), (torch.randn(8, 8), torch.randint(0, 4, (8,))), classes


def changes_its_batch() -> Made:
    """In place, as images are brought into a range; and it asks for gradients of its inputs."""

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs.mul_(0.5).add_(0.1).requires_grad_()), targets)

    return nn.Linear(8, 4), (torch.randn(6, 8), torch.randint(0, 4, (6,))), loss


class Complex(nn.Module):
    """Its parameters are complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 3)
        self.outer = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64) / 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs.to(torch.complex64) @ self.inner @ self.outer).abs()


def complex_() -> Made:
    return Complex(), (torch.randn(6, 8), torch.randint(0, 4, (6,))), classes
