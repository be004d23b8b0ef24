"""Trains, writes a checkpoint and continues; then loads it into a new training, under the same or another strategy, and
continues there: everything that was written must be back, and the results must be the same."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch.distributed.checkpoint.api import CheckpointException

from preflight.core.exceptions import in_one_line, out_of_a_collective
from preflight.train_smoke.checkpoint import model
from preflight.train_smoke.checkpoint.compare import Difference, differences, untied
from preflight.train_smoke.checkpoint.files import DamagedFile, Manifest, WrittenFiles
from preflight.train_smoke.checkpoint.forms import FORMS, random_of
from preflight.train_smoke.checkpoint.model import STEPS, Batch
from preflight.train_smoke.checkpoint.strategies import STRATEGIES, ranks_of
from preflight.train_smoke.checkpoint.training import Moment, Step, TrainingRun
from preflight.train_smoke.trainer import reference
from preflight.train_smoke.trainer.compare import Spread
from preflight.train_smoke.trainer.gradient_watch import Signs
from preflight.train_smoke.trainer.model import SEED
from preflight.train_smoke.trainer.task import Recipe, deterministic_arithmetic
from preflight.train_smoke.trainer.wrapped import StrategySetting


class Resumed(TypedDict):
    """One checkpoint in a new training, as one rank sees it."""

    idle: bool
    """Whether this rank only waited."""
    error: str
    """What reading it raised here, or ""."""
    damaged: list[DamagedFile]
    """Files that differ from what was written."""
    differences: list[Difference]
    curve: list[Step]
    """Empty if it did not get that far."""


class Saved(TypedDict):
    """One checkpoint."""

    error: str
    """What writing it raised on this rank, or ""."""
    curve: list[Step]
    """The steps after it, in the training that did not stop."""
    into: dict[str, Resumed]


class Facts(TypedDict):
    spread: Spread | None
    saved: dict[str, Saved]
    """By the names of names.py."""


@dataclass(frozen=True)
class SavePlace:
    """Where checkpoints are written, and among whom."""

    folder: Path
    """A folder of this run only; each checkpoint gets a new one, which is removed after it."""
    makes: bool
    """Whether this rank creates and removes the folder for all ranks that see it."""
    setting: StrategySetting

    def all_well(self, well: bool, what: str) -> bool:
        """Whether all is well on all ranks, which call this together."""
        flag = torch.tensor([int(well)], device=self.setting.device)
        with self.setting.mark(what, ""):
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MIN, group=self.setting.group)
        return bool(flag.item())


def run(chosen: Mapping[str, Sequence[str]], place: SavePlace) -> Facts:
    """Called on all ranks together. `chosen`: the targets of each checkpoint by its name, equal on all ranks."""
    setting = place.setting
    task = model.task(setting.group.rank(), setting.ranks, setting.device)
    facts = Facts(spread=None, saved={})
    with torch.random.fork_rng(devices=[]), deterministic_arithmetic():
        setting.doing("training alone")
        facts["spread"] = reference.of(task, Recipe("adamw", adamw=True)).spread
        for name, targets in chosen.items():
            facts["saved"][name] = _Checkpoint(name, place).run(targets)
    return facts


class _Checkpoint:
    def __init__(self, name: str, place: SavePlace) -> None:
        self._strategy, _, form = name.partition("/")
        self._name, self._form, self._place = name, FORMS[form], place
        self._folder = place.folder / name.replace("/", "-")
        self._batch = Batch(place.setting.ranks, place.setting.device)

    def run(self, targets: Sequence[str]) -> Saved:
        saved = Saved(error="", curve=[], into={})
        saved["error"] = self._tried(self._make_folder)
        if not self._place.all_well(not saved["error"], f"{self._name}: a folder for it"):
            return saved
        torch.manual_seed(SEED)
        written: WrittenFiles = {}
        for moment, manifest in self._write(saved, written):
            for target in targets:
                saved["into"][target] = self._resumed(target, moment, manifest)
        self._remove_folder()
        return saved

    def _make_folder(self) -> None:
        if self._place.makes:
            self._folder.mkdir(mode=0o700, parents=True)

    def _remove_folder(self) -> None:
        self._place.all_well(True, f"{self._name}: all have read it")
        if self._place.makes:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, saved: Saved, written: WrittenFiles) -> Iterator[tuple[Moment, Manifest]]:
        """Yields the state that was written and its files, unless it failed. `written` gets the files of this rank."""
        self._doing("training")
        run = _new(self._strategy, self._place.setting, self._batch, SEED)
        with self._place.setting.mark(f"{self._name}: training", ""):
            run.train()
            moment = run.moment()
        self._doing("saving")
        steps = list[Step]()

        def save() -> None:
            steps.extend(self._form.save(run, self._folder))
            written.update(run.written)

        saved["error"] = self._tried(save)
        if not self._place.all_well(not saved["error"], f"{self._name}: saved by all"):
            return
        manifest = Manifest.of(self._folder, self._place.setting, written)  # before anything else may change a file
        with self._place.setting.mark(f"{self._name}: training on", ""):
            saved["curve"] = [*steps, *run.train(STEPS - len(steps))]
        yield moment, manifest

    def _tried(self, do: Callable[[], None]) -> str:
        """What `do` raised, in one line, or "". A collective's exceptions pass: they come from another rank's death."""
        try:
            with self._place.setting.mark(f"{self._name}: saving and loading", ""):
                do()
        except (Exception, CheckpointException) as error:  # the latter is not an Exception
            if out_of_a_collective(error):
                raise
            return in_one_line(_cause(error))
        return ""

    def _resumed(self, target: str, moment: Moment, manifest: Manifest) -> Resumed:
        found = Resumed(idle=False, error="", damaged=manifest.damaged(), differences=[], curve=[])
        setting = _setting_of(target, self._place.setting)
        found["idle"] = idle = setting is None
        is_safe = not manifest.is_unsafe(found["damaged"])
        if self._place.all_well(is_safe, f"{self._name}: looking at its files") and setting is not None:
            self._read(target, setting, moment, found)
        self._place.all_well(idle or not found["error"], f"{self._name}: into {target}")
        return found

    def _read(self, target: str, setting: StrategySetting, moment: Moment, found: Resumed) -> None:
        self._doing(f"into {target}: wrapping")
        torch.manual_seed(SEED + 1)
        run = _new(target, setting, self._batch, SEED + 1)
        place = replace(self._place, setting=setting)
        kept: dict[str, Any] = {}
        self._doing(f"into {target}: loading")
        found["error"] = self._tried(lambda: kept.update(self._form.read(run, self._folder)))
        if not place.all_well(not found["error"], f"{self._name}: into {target}: read by all"):
            return
        torn = [*untied(kept["model"], run.wrapped)]  # loading may change them
        found["error"] = self._tried(lambda: self._take(run, kept))
        if not place.all_well(not found["error"], f"{self._name}: into {target}: loaded by all"):
            return
        self._doing(f"into {target}: training on")
        with setting.mark(f"{self._name}: into {target}: training on", ""):
            now = run.moment()
            found["differences"] = [*torn, *differences(moment, now, run.wrapped.places())]
            found["curve"] = run.train()

    def _take(self, run: TrainingRun, kept: dict[str, Any]) -> None:
        self._form.apply(run, kept)
        run.set_counters(kept)
        torch.set_rng_state(random_of(kept, self._place.setting.group.rank()))

    def _doing(self, what: str) -> None:
        self._place.setting.doing(f"{self._name}: {what}")


def _new(strategy: str, setting: StrategySetting, batch: Batch, seed: int) -> TrainingRun:
    plain = model.new(setting.device, seed)
    signs, made = Signs(plain), STRATEGIES[strategy]
    share = made.share(setting) if made.share else (setting.group.rank(), setting.ranks)
    return TrainingRun(made.wrap(plain, setting), setting, batch, share, signs)


def _setting_of(target: str, setting: StrategySetting) -> StrategySetting | None:
    """The setting of the ranks that take part; None on the others. Called on all ranks together."""
    count = ranks_of(target, setting.ranks)
    if count == setting.ranks:
        return setting
    assert setting.part, "some ranks need their own group"
    rank = setting.group.rank()
    group = setting.part(tuple(range(count) if rank < count else range(count, setting.ranks)))
    return replace(setting, group=group, ranks=count) if rank < count else None


def _cause(error: BaseException) -> BaseException:
    """torch.distributed.checkpoint raises all ranks' exceptions in one: this rank's own, or the first."""
    failures: Any = getattr(error, "failures", None)
    if not failures:
        return error
    rank = torch.distributed.get_rank()
    wrapped = failures.get(rank) or next(iter(failures.values()))
    cause: BaseException = wrapped[0] if isinstance(wrapped, tuple) else wrapped
    return cause
