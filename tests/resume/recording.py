"""Runs a training under the recorder in this process: as the command does in the user's, but in milliseconds."""

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from preflight.core.finding import Reported
from preflight.debug import environment
from preflight.resume import control, judge, steps
from preflight.resume.steps import StepTrace
from preflight.resume.training import TrainingEnd

Train = Callable[[Path], None]
"""A user's script: trains to its end, saves into the folder, resumes from what it finds there."""


def _injected() -> ModuleType:
    path = Path(environment.HOOK) / "preflight_resume_rank.py"
    spec = importlib.util.spec_from_file_location("preflight_resume_rank", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, environment.HOOK)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(environment.HOOK)
    return module


RANK = _injected()


class Stop(BaseException):
    """Instead of a signal."""


@contextmanager
def recorded(folder: Path, stop_at: int | None) -> Iterator[None]:
    folder.mkdir()
    asked = {"folder": str(folder), "seed": 0, "stop_at": stop_at, "after_save": False, "more": 0}
    recorder: Any = RANK.StepRecorder({**asked, "waits_for_term": False})
    recorder.hold = _stop
    optimizer = sys.modules["torch.optim.optimizer"]
    hooks = [getattr(optimizer, f"_global_optimizer_{when}_hooks") for when in ("pre", "post")]
    kept = torch.nn.Module.__call__, torch.autograd.backward, torch.save
    recorder.watch(torch)
    try:
        yield
    finally:
        for table in hooks:
            table.popitem()
        torch.nn.Module.__call__, torch.autograd.backward, torch.save = kept  # type: ignore[method-assign]


def _stop() -> None:
    raise Stop


def trace(train: Train, folder: Path, name: str, checkpoints: Path, stop_at: int | None) -> StepTrace:
    """As in a process of its own: the default generators begin anew."""
    checkpoints.mkdir(exist_ok=True)
    torch.default_generator.manual_seed(67280421310721)
    random.seed(0)
    with recorded(folder / name, stop_at):
        try:
            train(checkpoints)
        except Stop:
            pass
    found = steps.read(str(folder / name))
    assert not found.not_recorded, found.not_recorded
    return found


def findings(train: Train, folder: Path, stop_at: int = 4, more: int = 4, again: Train | None = None) -> list[Reported]:
    """What `preflight resume` finds in it. `again`: the resumed training, where it is another one."""
    reference = trace(train, folder, "never-stopped", folder / "checkpoints", stop_at + more + 1)
    stopped = trace(train, folder, "stopped", folder / "checkpoints-stopped", stop_at)
    limits = control.control(reference, stopped, stop_at)
    if limits.why_not:
        return [judge.not_repeatable(limits)]
    resumed = trace(again or train, folder, "resumed", folder / "checkpoints-stopped", more)
    ended = TrainingEnd(resumed, 1.0, True, None, False, 0.0, ())
    return judge.resumed(reference, stop_at, stopped.first_save, ended, limits).findings


def told(found: list[Reported]) -> list[str]:
    return [f"{finding.severity} {finding.code.rpartition('.')[2]}" for finding in found]
