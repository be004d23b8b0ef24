"""A LightningDataModule that is right, and one whose Trainer injects no sampler."""

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from pytorch_lightning import LightningDataModule, Trainer

from tests.loaders.wrapped import Numbers, loader


class Module(LightningDataModule):  # type: ignore[misc]  # mypy does not see the package
    def prepare_data(self) -> None:
        Path(os.environ["TEST_FOLDER"], "prepared").touch(exist_ok=False)

    def setup(self, stage: str) -> None:
        assert self.trainer.world_size == dist.get_world_size()
        self.numbers, self.stage = Numbers(), stage

    def train_dataloader(self) -> Any:
        return loader(self.numbers, shuffle=True)

    def val_dataloader(self) -> list[Any]:
        return [loader(self.numbers), loader(self.numbers, batch_size=7)]

    def test_dataloader(self) -> Any:
        assert self.stage == "test"
        return loader(self.numbers)


class Shares(Module):
    """Its Trainer injects no sampler."""

    def __init__(self) -> None:
        super().__init__()
        self.prepare_data_per_node = False
        self.trainer = Trainer(
            accelerator="cpu", strategy="ddp", devices=dist.get_world_size(), use_distributed_sampler=False,
            logger=False,
        )  # fmt: skip

    def prepare_data(self) -> None:
        pass
