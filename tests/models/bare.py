"""Models by themselves, as a class, an instance or what a function returns; their batch and loss are made up."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Sequential):
    """Its first layer tells what it takes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4), nn.LayerNorm(4))


class Gpt(nn.Module):
    """As nanoGPT's: tied, and forward returns (logits, loss) where it is given targets."""

    def __init__(self, vocabulary: int = 48, places: int = 12, width: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(2))
        self.attention = layer
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.attention(self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device)))
        for block in self.blocks:
            x = x + block(x)
        logits = self.lm_head(x)
        if targets is None:
            return logits[:, [-1]], None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def gpt() -> nn.Module:
    return Gpt()


class Example(nn.Module):
    """Two inputs, of which an attribute gives an example."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Bilinear(8, 3, 2)
        self.example_input_array = (torch.zeros(1, 4), torch.rand(3, 3))

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"made": self.right(self.left(left), right), "step": torch.tensor(1)}


instance = Example()


class Images(nn.Sequential):
    """As torchvision's ViT, it says how large its images are, and has a parameter before its first layer."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 5))
        self.image_size = 8
        self.token = nn.Parameter(torch.zeros(5))

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = super().forward(images) + self.token  # type: ignore[no-untyped-call]  # nn.Sequential's
        return made


class Wide(nn.Module):
    """Must be told how wide it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)


class TwoInputs(nn.Bilinear):
    """Nothing tells what it takes."""

    def __init__(self) -> None:
        super().__init__(3, 3, 2)


class WrongGuess(nn.Sequential):
    """Its first layer is not what it begins with."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 4))

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = super().forward(images.view(-1, 2, 8, 1).expand(-1, -1, -1, 3)[:, 0])  # type: ignore[no-untyped-call]
        return made


class Summary(nn.Linear):
    """Returns one number, with no rows."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).mean()


class OddExample(nn.Linear):
    """Its example is no tensor."""

    example_input_array = "a cat"

    def __init__(self) -> None:
        super().__init__(4, 2)


number = 3
