"""Pipeline parallel: the schedules of torch.distributed.pipelining on the small transformer.

Its six layers (embeddings, two halves of each block, output) are distributed over ranks, which all see the whole batch,
in micro-batches.
"""

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.nn import functional
from torch.nn.utils import clip_grads_with_norm_

from preflight.train_smoke.trainer import mesh
from preflight.train_smoke.trainer.collectives import Need
from preflight.train_smoke.trainer.model import Block, Transformer
from preflight.train_smoke.trainer.names import FEW_STEPS, NEEDS_NUMPY
from preflight.train_smoke.trainer.sharded import Sharded
from preflight.train_smoke.trainer.task import DISTINCT, ROWS, Recipe, TrainingTask
from preflight.train_smoke.trainer.wrapped import Doing, StrategySetting, Variant, Wrapped, all_rows, shapes_of

RANKS, RING = 2, 3
"""Ranks of a pipeline. Only of three ranks does it show which neighbor is the next and which the previous one."""
LAYERS = 6
MICRO_BATCHES = 4
"""The most micro-batches; their number must divide the rows. No schedule takes fewer than it has stages."""
V_SHAPED_SINCE = "2.10"
"""In torch 2.9 two stages of one rank send to it themselves (ScheduleZBVZeroBubble), at which gloo hangs, and full
backwards are not scaled (ScheduleDualPipeV)."""


def micro_batches_of(rows: int) -> int:
    return next(count for count in range(MICRO_BATCHES, 0, -1) if rows % count == 0)


class FirstLayer(nn.Module):
    """Maps token numbers to the blocks' input."""

    def __init__(self, plain: Transformer) -> None:
        super().__init__()
        self.tokens, self.positions = plain.tokens, plain.positions

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return made


class Attending(nn.Module):
    """The first half of a block."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.attention_norm, self.attention = block.attention_norm, block.attention

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.attention(self.attention_norm(x))
        return made


class Widening(nn.Module):
    """The second half."""

    gain: Tensor

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.mlp_norm, self.up, self.down = block.mlp_norm, block.up, block.down
        self.register_buffer("gain", block.gain)

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.gelu(self.up(self.mlp_norm(x)))
        made: Tensor = x + self.gain.to(x.dtype) * self.down(wide)
        return made


class LastLayer(nn.Module):
    """Maps the blocks' output to logits."""

    def __init__(self, plain: Transformer) -> None:
        super().__init__()
        self.norm, self.head = plain.norm, plain.head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits


def layers(plain: Transformer) -> list[nn.Module]:
    halves: list[nn.Module] = []
    for block in plain.blocks:
        assert isinstance(block, Block)
        halves += [Attending(block), Widening(block)]
    return [FirstLayer(plain), *halves, LastLayer(plain)]


class Staged(Sharded):
    """Each rank has some of the layers, whole."""

    def __init__(
        self, plain: nn.Module, setting: StrategySetting, schedule: "Pipeline", group: torch.distributed.ProcessGroup,
        here: Sequence[nn.Module],
    ) -> None:  # fmt: skip
        mine = {id(parameter) for layer in here for parameter in layer.parameters()}
        none = torch.empty(0, device=setting.device)
        pieces = {name: own if id(own) in mine else none for name, own in plain.named_parameters()}
        super().__init__(plain, plain, setting, shapes_of(plain), group if group.size() > 1 else None, pieces)
        self._schedule, self._here, self._passes = schedule, nn.ModuleList(here), 0
        self.links = 0
        """The number of links from local stages to stages on another rank."""

    def parameters(self) -> list[nn.Parameter]:
        return [*self._here.parameters()]

    def clip(self, norm: float) -> Tensor:
        """Clips by the norm over all stages: torch knows only the local ones."""
        parameters = self.parameters()
        squares = [parameter.grad.square().sum() for parameter in parameters if parameter.grad is not None]
        total = torch.stack(squares).sum()
        if self._group is not None:
            torch.distributed.all_reduce(total, group=self._group)
        clip_grads_with_norm_(parameters, norm, total.sqrt())
        return total.sqrt()

    def pass_(self, task: TrainingTask, recipe: Recipe, data: Any, weight: float, doing: Doing) -> float:
        doing("pipeline")
        self._passes += 1
        with recipe.forward(task.device):
            mean = torch.tensor(self._schedule.step(data, weight), device=task.device)
        if self._group is not None:  # the last layers' rank knows it
            torch.distributed.all_reduce(mean, group=self._group)
        return mean.item()

    def finish(self) -> None:
        passes, self._passes = self._passes, 0
        count = self._schedule.micro_batches
        self.sizes = {"microbatches": count}
        if passes > 1:
            self.sizes |= {"accumulation steps": passes, "microbatches of all accumulation steps": passes * count}
        if self.links and self._group is not None:
            least = self.links * count * passes
            why = f"one for each of {count * passes} microbatches at each end of a stage that meets another rank's"
            self.needs = [Need((kind,), self._group, "stages", least, why) for kind in ("send", "receive")]


class Pipeline:
    """One of torch's schedules, over the local stages."""

    def __init__(self, kind: type[Any], stages: Sequence[Any], *, sums: bool) -> None:
        """`sums`: the losses of micro-batches are added up as they are, and torch divides nothing."""
        self._kind, self._stages, self._sums = kind, stages, sums
        self._weight, self._made = 1.0, dict[int, Any]()
        self.micro_batches = 0
        """The number in the last pass."""

    def step(self, tokens: Tensor, weight: float) -> float:
        """Forward and backward of all rows. Returns their mean loss if the last stage is here, else 0."""
        self._weight = weight if self._sums else 1.0
        assert self._sums or weight == 1.0, "torch divides by the micro-batches: wrong for a part of a batch"
        self.micro_batches = micro_batches = micro_batches_of(len(tokens))
        losses: list[Tensor] = []
        first, last = (any(getattr(stage, name) for stage in self._stages) for name in ("is_first", "is_last"))
        given = {"target": tokens[:, 1:], "losses": losses} if last else {}
        self._of(micro_batches).step(*([tokens[:, :-1]] if first else []), **given)
        means = [loss.item() / self._share(micro_batches) for loss in losses]
        return sum(means) / len(means) if means else 0.0

    def _of(self, micro_batches: int) -> Any:
        if micro_batches not in self._made:
            stages = self._stages if issubclass(self._kind, PipelineScheduleMulti) else self._stages[0]
            loss = functools.partial(self._loss, micro_batches)
            self._made[micro_batches] = self._kind(
                stages, n_microbatches=micro_batches, loss_fn=loss, scale_grads=not self._sums
            )
        return self._made[micro_batches]

    def _loss(self, micro_batches: int, logits: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(logits.transpose(1, 2), target) * self._share(micro_batches)

    def _share(self, micro_batches: int) -> float:
        return self._weight / micro_batches if self._sums else 1.0


def _wrapped(
    plain: nn.Module, setting: StrategySetting, *, schedule: str, sums: bool = False, v_shaped: bool = False
) -> Wrapped:
    assert isinstance(plain, Transformer)
    kind = getattr(schedules, schedule)
    several = issubclass(kind, PipelineScheduleMulti)
    ranks = mesh.across(setting, ranks_of(setting.ranks, ring=several and not v_shaped))
    if len(ranks) == 1:  # left over: torch's schedules of several stages need another rank
        kind, several, v_shaped = schedules.ScheduleGPipe, False, False
    group = mesh.part(setting, ranks)
    stages = 2 * len(ranks) if several else len(ranks)
    place = group.rank()
    mine = [place, stages - 1 - place] if v_shaped else [*range(place, stages, len(ranks))]
    all_layers = layers(plain)
    chosen = {stage: [all_layers[number] for number in dealt(stages)[stage]] for stage in mine}
    device = setting.device
    made = [
        as_gloo_opens(PipelineStage(nn.Sequential(*its), stage, stages, device, group=group))
        for stage, its in chosen.items()
    ]
    here = [layer for its in chosen.values() for layer in its]
    wrapped = Staged(plain, setting, Pipeline(kind, made, sums=sums), group, here)
    wrapped.mesh = (("replicas", setting.ranks // len(ranks)), ("pp", len(ranks)))
    wrapped.links = sum(0 <= other < stages and other not in mine for stage in mine for other in (stage - 1, stage + 1))
    return wrapped


def ranks_of(ranks: int, *, ring: bool) -> int:
    """How many ranks a pipeline has, in a world of so many: three for a ring, or if that leaves none over; two if there
    are no micro-batches for three."""
    has_three = ranks >= RING and micro_batches_of(ROWS * min(ranks, DISTINCT)) >= RING
    return RING if has_three and (ring or ranks % RING == 0) else min(ranks, RANKS)


def as_gloo_opens(stage: Any) -> Any:
    """The stage itself, which opens its links by messages that gloo takes. torch 2.9 sends an int64 where it receives a
    float32, and gloo ends both ranks; between two stages of one rank torch 2.10 sends to itself, and gloo hangs."""
    operations: Any = getattr(stage, "_get_init_p2p_neighbors_ops", list)

    def opening() -> list[Any]:
        made = [operation for operation in operations() if operation.peer != torch.distributed.get_rank()]
        for operation in made:
            operation.tensor = operation.tensor.float()
        return made

    stage._get_init_p2p_neighbors_ops = opening
    return stage


def dealt(stages: int) -> list[list[int]]:
    """Of each stage, which layers it has."""
    numbers: list[list[int]] = [part.tolist() for part in torch.arange(LAYERS).tensor_split(stages)]
    return numbers


def _unfit(setting: StrategySetting, *, schedule: str, v_shaped: bool) -> str:
    if importlib.util.find_spec("numpy") is None:
        return f"torch's pipelines {NEEDS_NUMPY}"
    if not hasattr(schedules, schedule):
        return f"torch {torch.__version__} has no {schedule}"
    if v_shaped and torch.__version__ < V_SHAPED_SINCE:
        return f"{schedule} needs torch {V_SHAPED_SINCE}, this is {torch.__version__}"
    kind = getattr(schedules, schedule)
    several = issubclass(kind, PipelineScheduleMulti)
    return f"{schedule} needs two ranks" if several and setting.ranks == 1 else ""


def _variant(
    schedule: str, recipe: Recipe | None = None, *, in_pieces: bool = False, sums: bool = False, v_shaped: bool = False
) -> Variant:
    wrap = functools.partial(_wrapped, schedule=schedule, sums=sums, v_shaped=v_shaped)
    unfit = functools.partial(_unfit, schedule=schedule, v_shaped=v_shaped)
    return Variant(
        wrap, recipe or Recipe(), share=all_rows, steps=FEW_STEPS, unfit=unfit, in_pieces=in_pieces, waits_within=True
    )


VARIANTS: Mapping[str, Variant] = {
    "gpipe": _variant("ScheduleGPipe"),
    "1f1b": _variant("Schedule1F1B", Recipe("autocast", autocast=True)),
    "accumulate": _variant("Schedule1F1B", in_pieces=True, sums=True),
    "clip": _variant("Schedule1F1B", Recipe("clip", clip=0.5)),
    "interleaved_1f1b": _variant("ScheduleInterleaved1F1B", Recipe("adamw", adamw=True)),
    "looped_bfs": _variant("ScheduleLoopedBFS", sums=True),
    "zero_bubble": _variant("ScheduleInterleavedZeroBubble"),
    "zbv": _variant("ScheduleZBVZeroBubble", v_shaped=True),
    "dualpipe_v": _variant("ScheduleDualPipeV", v_shaped=True),
}
"""By the names of trainer/names.py."""
