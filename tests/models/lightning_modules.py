"""LightningModules as users have them, without a Trainer."""

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):  # type: ignore[misc]  # it is untyped here
    """With a loader of its own; it logs, and is asked for its epoch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.net(inputs)
        return made

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        inputs, labels = batch
        loss = functional.cross_entropy(self(inputs), labels)
        self.log("loss", loss, prog_bar=True, sync_dist=True)
        self.log_dict({"epoch": self.current_epoch, "batch": batch_idx})
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=32, shuffle=True)


class Autoencoder(LightningModule):  # type: ignore[misc]
    """Its step takes what forward takes, and its layers come late."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = torch.zeros(1, 8)
        self.net: nn.Module | None = None

    def configure_model(self) -> None:
        if self.net is None:
            self.net = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.net is not None
        made: Tensor = self.net(inputs)
        return made

    def training_step(self, batch: Tensor) -> Tensor:
        return functional.mse_loss(self(batch), batch)


class OnlyInputs(Classifier):
    """Its example has no labels, and its step wants some."""

    def __init__(self) -> None:
        super().__init__()
        self.example_input_array = torch.zeros(1, 8)

    train_dataloader = LightningModule.train_dataloader


class Direct(Classifier):
    """Its step calls its layers, not itself."""

    def training_step(self, batch: list[Tensor], _: int) -> Any:
        return functional.cross_entropy(self.net(batch[0]), batch[1])


class Manual(Classifier):
    """Steps by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class NoBatch(Classifier):
    """Nothing tells what its step takes."""

    train_dataloader = LightningModule.train_dataloader


class AsksTrainer(Classifier):
    """Its step needs a Trainer."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"] / self.trainer.num_devices


class NoLoader(Classifier):
    """Its loader is none."""

    def train_dataloader(self) -> Any:
        return 3


def given() -> Any:
    return NoBatch(), (torch.randn(8, 8), torch.randint(0, 3, (8,)))


def summed() -> Any:
    class Summed(NoBatch):
        def training_step(self, batch: list[Tensor], _: int) -> Any:
            return functional.cross_entropy(self(batch[0]), batch[1], reduction="sum")

    return Summed(), given()[1]
