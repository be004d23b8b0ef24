"""A training that can be stopped and resumed, and its state at a moment."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

from preflight.train_smoke.checkpoint import model
from preflight.train_smoke.checkpoint.files import WrittenFiles
from preflight.train_smoke.checkpoint.model import STEPS, Batch
from preflight.train_smoke.trainer.compare import Number, as_json
from preflight.train_smoke.trainer.gradient_watch import Signs, together
from preflight.train_smoke.trainer.task import ADAMW_RATE
from preflight.train_smoke.trainer.train import on_cpu
from preflight.train_smoke.trainer.wrapped import StrategySetting, Wrapped, plain_name

FALLS = 0.7
"""The factor on the learning rate at each step: a schedule that starts over trains differently at once."""
Step = dict[str, Number]
"""Loss over the global batch, and norm and signed sum ("print") of the gradient, of one step: the same on all ranks."""


@dataclass
class Moment:
    """Everything that a checkpoint has to restore, whole on every rank."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """By kind ("weights", "buffers", "moments") and name ("narrow.weight exp_avg")."""
    numbers: dict[str, float] = field(default_factory=dict)
    """By name: "step", "rate", "schedule", and "optimizer step of ..." for each parameter."""
    random: Tensor = field(default_factory=lambda: torch.empty(0))


class TrainingRun:
    """One model under a strategy, with its optimizer, schedule and step count; random numbers are torch's own."""

    def __init__(
        self, wrapped: Wrapped, setting: StrategySetting, batch: Batch, share: tuple[int, int], signs: Signs
    ) -> None:
        self.ranks = batch.ranks
        """The job's number of ranks; the run may have fewer."""
        self.wrapped, self.setting, self._batch, self._share, self._signs = wrapped, setting, batch, share, signs
        self.optimizer = torch.optim.AdamW(wrapped.parameters(), lr=ADAMW_RATE)
        self.schedule = StepLR(self.optimizer, 1, FALLS)
        self.step = 0
        self.written: WrittenFiles = {}
        """The files that this rank has written into its checkpoint."""

    def train(self, steps: int = STEPS) -> list[Step]:
        """Called on all ranks of its group together."""
        return [self._train_once() for _ in range(steps)]

    def _train_once(self) -> Step:
        share, shares = self._share
        rows = torch.tensor(self._batch.rows_of(share, shares), device=self.setting.device)
        data = self._batch.tokens[rows], self._batch.draw()[rows]
        weight = self._batch.weight(share, shares)
        self.optimizer.zero_grad()
        loss = model.loss(self.wrapped.module, data)
        (loss * weight * shares).backward()  # type: ignore[no-untyped-call]
        self.wrapped.finish()
        norm, print_ = together([self._signs.norm_and_print(name, grad) for name, grad in self.wrapped.gradients()])
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        mean = loss.detach() * weight * shares / self.setting.ranks
        if self.setting.ranks > 1:
            torch.distributed.all_reduce(mean, group=self.setting.group)
        return {"loss": as_json(float(mean)), "norm": as_json(norm), "print": as_json(print_)}

    def moment(self) -> Moment:
        """The state now. Called on all ranks of its group together."""
        kept = Moment()
        kept.tensors["weights"] = {name: on_cpu(value) for name, value in self.wrapped.weights()}
        kept.tensors["buffers"] = {plain_name(name): on_cpu(value) for name, value in self._buffers()}
        kept.tensors["moments"] = {name: on_cpu(value) for name, value in self.wrapped.states(self.optimizer)}
        rate = float(self.optimizer.param_groups[0]["lr"])
        kept.numbers = {"step": self.step, "rate": rate, "schedule": self.schedule.last_epoch}
        kept.numbers |= {f"optimizer step of {name}": step for name, step in self._steps()}
        kept.random = torch.get_rng_state()
        return kept

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.wrapped.plain.named_buffers())

    def _steps(self) -> Iterator[tuple[str, float]]:
        """Yields the optimizer's step of each parameter of which this rank has some elements."""
        for name, parameter in self.wrapped.named():
            local: Any = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            step = self.optimizer.state.get(parameter, {}).get("step")
            if parameter.requires_grad and local.numel():
                yield plain_name(name), -1.0 if step is None else float(step)

    # What a checkpoint holds besides weights and optimizer

    def counters(self) -> dict[str, Any]:
        return {"schedule": self.schedule.state_dict(), "step": self.step}

    def set_counters(self, kept: Mapping[str, Any]) -> None:
        self.schedule.load_state_dict(dict(kept["schedule"]))
        self.step = int(kept["step"])
