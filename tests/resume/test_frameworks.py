"""The same through what people train with: closures, FSDP2 with torch.distributed.checkpoint, Accelerate, Lightning,
streams. What is not installed is skipped."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as of_dcp
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

from tests.resume.recording import findings, told

ROWS = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
WRAPPERS = Path(sys.prefix, "wrappers")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = (net(batch) - batch.sum(1, keepdim=True)).square().mean()
    return found


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def needs(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (WRAPPERS / package).is_dir():
        pytest.skip(f"{package} is not in {WRAPPERS}: make .venv/.dev puts it there")
    monkeypatch.syspath_prepend(str(WRAPPERS))


class Closure:
    """LBFGS has its gradient after the step has begun, and lists in its state."""

    def __init__(self, *, loads: bool) -> None:
        self.loads = loads

    def __call__(self, folder: Path) -> None:
        net, path, start = model(), folder / "last.pt", 0
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
        if path.exists():
            saved = torch.load(path)
            net.load_state_dict(saved["model"])
            start = saved["step"]
            if self.loads:
                optimizer.load_state_dict(saved["optimizer"])
        for step in range(start, 30):
            batch = ROWS[step % 16 * 4 :][:4]

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(net, batch)
                torch.autograd.backward(loss)
                return loss

            optimizer.step(closure)  # type: ignore[no-untyped-call]
            if step == 2:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, path)


def test_an_optimizer_with_a_closure(tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    assert [finding.message for finding in findings(Closure(loads=True), tmp_path / "right")] == []
    assert told(findings(Closure(loads=False), tmp_path)) == ["fail moments_lost"]


class Sharded:
    """FSDP2 with DCP. Without its moments as in KempnerForge PR 115: the optimizer's part is dropped silently."""

    def __init__(self, *, loads: bool) -> None:
        self.loads = loads

    def __call__(self, folder: Path) -> None:
        net = model()
        fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        start = 0
        if (folder / "last").exists():
            weights, moments = of_dcp.get_state_dict(net, optimizer)
            saved: dict[str, Any] = {"model": weights, **({"optimizer": moments} if self.loads else {})}
            state_dict_loader.load(saved, checkpoint_id=str(folder / "last"))
            of_dcp.set_model_state_dict(net, saved["model"])
            if self.loads:
                of_dcp.set_optimizer_state_dict(net, optimizer, saved["optimizer"])
            start = 3
        for step in range(start, 30):
            torch.autograd.backward(loss_of(net, ROWS[step % 16 * 4 :][:4]))
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                weights, moments = of_dcp.get_state_dict(net, optimizer)
                state_dict_saver.save({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "last"))


def test_a_step_that_dcp_makes_up_does_not_count(tmp_path: Path, group: None) -> None:
    (tmp_path / "right").mkdir()
    assert [finding.message for finding in findings(Sharded(loads=True), tmp_path / "right")] == []
    found = findings(Sharded(loads=False), tmp_path)
    assert told(found) == ["fail moments_differ"] and "are zero" in found[0].message


class Stream(IterableDataset[torch.Tensor]):
    """Reads its rows in order. `skips`: those that were read before the stop."""

    def __init__(self, skips: int = 0) -> None:
        self.skips = skips

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from ROWS[self.skips :]


class Accelerated:
    def __init__(self, *, skips: bool) -> None:
        self.skips = skips

    def __call__(self, folder: Path) -> None:
        from accelerate import Accelerator

        accelerator, path = Accelerator(cpu=True), folder / "last"
        done = 3 if path.exists() else 0
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        loader = DataLoader(Stream(done * 4 if self.skips else 0), batch_size=4)
        net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
        if done:
            accelerator.load_state(str(path))
        for step, batch in enumerate(loader, done):
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step == 2:
                accelerator.save_state(str(path))


def test_accelerate_and_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("accelerate", monkeypatch)
    (tmp_path / "right").mkdir()
    assert [finding.message for finding in findings(Accelerated(skips=True), tmp_path / "right")] == []
    assert told(findings(Accelerated(skips=False), tmp_path)) == ["fail data_repeats"]


class Lightning:
    """`weights_only`: the checkpoint is loaded into the module, not into the trainer."""

    def __init__(self, *, weights_only: bool) -> None:
        self.weights_only = weights_only

    def __call__(self, folder: Path) -> None:
        import pytorch_lightning as pl
        from pytorch_lightning.callbacks import ModelCheckpoint

        class Module(pl.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = model()

            def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
                return loss_of(self.net, batch)

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

        module, saves = Module(), ModelCheckpoint(folder, save_last=True, every_n_train_steps=3, save_top_k=0)
        last = folder / "last.ckpt"
        if self.weights_only and last.exists():
            module.load_state_dict(torch.load(last, weights_only=False)["state_dict"])
        trainer = pl.Trainer(
            max_steps=14, accelerator="cpu", devices=1, callbacks=[saves], logger=False, default_root_dir=folder,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        resumes = last if last.exists() and not self.weights_only else None
        trainer.fit(module, DataLoader(ROWS[:12], batch_size=4), ckpt_path=resumes and str(resumes))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("pytorch_lightning", monkeypatch)
    (tmp_path / "right").mkdir()
    assert [finding.message for finding in findings(Lightning(weights_only=False), tmp_path / "right")] == []
    assert told(findings(Lightning(weights_only=True), tmp_path)) == ["fail moments_lost"]
