"""A model whose parameters are cut, with a piece of each on every rank, and how the full values are read.

Both FSDPs keep consecutive pieces of the flattened parameter, in the order of the ranks; they differ in where they cut.
So one method serves both: pieces are padded to the longest, gathered, and concatenated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from preflight.train_smoke.trainer.wrapped import ShardRange, StrategySetting, Values, Wrapped, as_real, named

TOGETHER = 2**20
"""The most elements of a rank that are gathered at once, unless one parameter has more: 4 MiB, where the start of a
gather no longer matters."""


class Sharded(Wrapped):
    """Cut among the ranks of a group."""

    before_piece: Callable[[bool], object] | None = None
    """Called before each micro-batch with whether it is the last one of its step, in strategies that must be told."""

    def __init__(
        self,
        module: nn.Module,
        plain: nn.Module,
        setting: StrategySetting,
        shapes: Mapping[str, torch.Size],
        group: torch.distributed.ProcessGroup | None,
        pieces: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`shapes`: of the parameters before they were cut. `group`: None if nothing is cut. `pieces`: what this rank
        has of each, by the names of all; by default what `plain` has now. Called on all ranks together."""
        super().__init__(module, plain)
        self._shapes, self._group, self._device = shapes, group, setting.device
        self._cut = dict(pieces or named(plain))
        self._counts = self._gathered_numbers([_flat(piece).numel() for piece in self._cut.values()])

    def piece(self, *, last: bool) -> AbstractContextManager[object]:
        if self.before_piece is not None:
            self.before_piece(last)
        return super().piece(last=last)

    def gradients(self) -> Values:
        made = {name: parameter.grad for name, parameter in self._cut.items()}
        return self._whole(made, self._anywhere(made))

    def weights(self) -> Values:
        return self._whole(self._cut, list(self._cut))

    def states(self, optimizer: torch.optim.Optimizer) -> Values:
        kinds = ("exp_avg", "exp_avg_sq") if isinstance(optimizer, torch.optim.AdamW) else ("momentum_buffer",)
        for kind in kinds:  # not read from the state: a rank without a piece has none
            kept = {name: optimizer.state.get(parameter, {}).get(kind) for name, parameter in self._cut.items()}
            for name, whole in self._whole(kept, self._anywhere(kept)):
                yield f"{name} {kind}", whole

    def pieces(self) -> Values:
        return ((name, _flat(piece)) for name, piece in self._cut.items())

    def places(self) -> dict[str, ShardRange]:
        if self._group is None:
            return {}
        rank = self._group.rank()
        return {name: ShardRange(sum(counts[:rank]), counts[rank]) for name, counts in self._counts.items()}

    def kept(self) -> dict[str, tuple[int, int]]:
        return {name: (sum(counts), self._shapes[name].numel()) for name, counts in self._counts.items()}

    def _anywhere(self, pieces: Mapping[str, Tensor | None]) -> list[str]:
        """The names of which at least one rank has a piece with elements."""
        here = [0 if piece is None else _flat(piece).numel() for piece in pieces.values()]
        return [name for name, counts in self._gathered_numbers(here).items() if any(counts)]

    def _whole(self, pieces: Mapping[str, Tensor | None], names: Sequence[str]) -> Values:
        for chosen in self._at_once(names):
            rows = self._gathered(torch.cat([self._padded(name, pieces[name]) for name in chosen]))
            start = 0
            for name in chosen:
                counts = self._counts[name]
                parts = [row[start : start + count] for row, count in zip(rows, counts, strict=True)]
                yield name, torch.cat(parts).view(self._shapes[name])
                start += max(counts)

    def _at_once(self, names: Sequence[str]) -> Iterator[list[str]]:
        chosen: list[str] = []
        size = 0
        for name in names:
            if chosen and size + max(self._counts[name]) > TOGETHER:
                yield chosen
                chosen, size = [], 0
            chosen.append(name)
            size += max(self._counts[name])
        if chosen:
            yield chosen

    def _padded(self, name: str, piece: Tensor | None) -> Tensor:
        """The piece padded to the longest rank's. What only this rank lacks is 0, which shows as a difference."""
        padded = torch.zeros(max(self._counts[name]), device=self._device)
        if piece is not None:
            flat = _flat(piece)
            padded[: flat.numel()] = flat
        return padded

    def _gathered_numbers(self, here: Sequence[int]) -> dict[str, list[int]]:
        """One number per parameter from each rank of the group."""
        rows = self._gathered(torch.tensor(here, dtype=torch.int64, device=self._device))
        columns: Any = rows.t().tolist()
        return dict(zip(self._cut, columns, strict=True))

    def _gathered(self, here: Tensor) -> Tensor:
        """Gathers (elements,) of each rank into (ranks, elements)."""
        if self._group is None:
            return here[None]
        rows = here.new_empty(self._group.size(), here.numel())
        torch.distributed.all_gather(list(rows.unbind()), here, group=self._group)
        return rows


def _flat(piece: Tensor) -> Tensor:
    local: Tensor = piece.to_local() if hasattr(piece, "to_local") else piece
    return as_real(local.detach()).flatten()
