"""The forms in which a checkpoint is written, and how each is loaded under any strategy, by torch's own functions.

Whatever the form, torch.load reads with weights_only=True, and so does torch.distributed.checkpoint here.
"""

import io
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

from preflight.sdk.tensor_bits import raw
from preflight.train_smoke.checkpoint.files import RecordingStream, WrittenFiles
from preflight.train_smoke.checkpoint.training import Step, TrainingRun
from preflight.train_smoke.trainer.wrapped import plain_name

FULL = "full.pt"
PREFIXES = ("_orig_mod.", "module.")
"""Prefixes that torch.compile and DDP add to the names of all parameters, the outer first."""
Content = dict[str, Any]
"""The content of a checkpoint: "model", "optimizer", "schedule", "step" and "random", each in torch's own form."""


@dataclass(frozen=True)
class Form:
    save: Callable[[TrainingRun, Path], list[Step]]
    """Called on all ranks together, with an empty folder. Returns the steps that were taken meanwhile."""
    read: Callable[[TrainingRun, Path], Content]
    """Returns what this rank has of it. Called on the ranks of the run's group together."""
    apply: Callable[[TrainingRun, Content], None]
    """Sets model and optimizer to what was read. Called on the same ranks together."""


# Files of torch.save


def loaded(file: Any) -> Content:
    """Loads a file. Raises what torch.load raises: OSError, RuntimeError for a torn file, UnpicklingError for one that
    holds more than tensors and plain values."""
    content: Content = torch.load(file, map_location="cpu", weights_only=True)
    return content


def write(content: Content, path: Path, written: WrittenFiles) -> None:
    """Writes the whole file or nothing: under a temporary name, synced to disk, then renamed. `written` gets its
    digest."""
    beside = path.with_suffix(".tmp")
    with open(beside, "wb") as file:
        stream: Any = RecordingStream(file)
        torch.save(content, stream)
        file.flush()
        os.fsync(file.fileno())
    if digest := stream.written():
        written[path.name] = digest
    os.replace(beside, path)


# Full state: whole tensors, in one file that rank 0 writes


def _save_full(run: TrainingRun, folder: Path) -> list[Step]:
    random = _gathered(run)
    model, optimizer = _full_state(run)
    if not run.setting.group.rank():
        content = {"model": model, "optimizer": optimizer, **run.counters(), "random": torch.stack(random)}
        write(content, folder / FULL, run.written)
    return []


def _gathered(run: TrainingRun) -> list[Tensor]:
    """The random state of each rank."""
    own = torch.get_rng_state().to(run.setting.device)
    states = [torch.empty_like(own) for _ in range(run.setting.ranks)]
    torch.distributed.all_gather(states, own, group=run.setting.group)
    return [state.cpu() for state in states]


def _full_state(run: TrainingRun) -> tuple[Content, Content]:
    if isinstance(run.wrapped.module, Fsdp):
        with _fsdp_state(run, StateDictType.FULL_STATE_DICT):
            return run.wrapped.module.state_dict(), Fsdp.optim_state_dict(run.wrapped.module, run.optimizer)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, optimizer = get_state_dict(run.wrapped.module, run.optimizer, options=options)
    return model, dict(optimizer)


def _read_full(run: TrainingRun, folder: Path) -> Content:
    """Rank 0 reads the file and sends it to the others, which need not see it."""
    group, device = run.setting.group, run.setting.device
    held, failed = b"", None
    if not group.rank():
        try:
            held = (folder / FULL).read_bytes()
        except OSError as error:
            failed = error
    size = torch.tensor([-1 if failed else len(held)], device=device)
    torch.distributed.broadcast(size, group=group, group_src=0)
    if failed:
        raise failed
    if size.item() < 0:
        raise FileNotFoundError(f"rank 0 could not read {FULL}")
    sent = torch.frombuffer(bytearray(held), dtype=torch.uint8) if held else torch.empty(int(size), dtype=torch.uint8)
    sent = sent.to(device)
    torch.distributed.broadcast(sent, group=group, group_src=0)
    return loaded(io.BytesIO(held or raw(sent)))


def _apply_full(run: TrainingRun, content: Content) -> None:
    if not isinstance(run.wrapped.module, Fsdp):
        _set_state(run, content, full_state_dict=True)
        return
    with _fsdp_state(run, StateDictType.FULL_STATE_DICT, one_rank=False):
        run.wrapped.module.load_state_dict(content["model"])
        optimizer = Fsdp.optim_state_dict_to_load(run.wrapped.module, run.optimizer, content["optimizer"])
    run.optimizer.load_state_dict(optimizer)


def _set_state(run: TrainingRun, content: Content, **options: Any) -> None:
    set_state_dict(
        run.wrapped.module, run.optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"],
        options=StateDictOptions(**options),
    )  # fmt: skip


@contextmanager
def _fsdp_state(run: TrainingRun, kind: StateDictType, *, one_rank: bool = True) -> Iterator[None]:
    """Sets the kind of state that FSDP1's state_dict returns and loads. `one_rank`: only rank 0 gets it. It is moved to
    the CPU only from a GPU: from a CPU torch 2.13 frees it before it is copied, and crashes."""
    settings: tuple[Any, ...] = ()
    if kind is StateDictType.FULL_STATE_DICT:
        moved = {"offload_to_cpu": run.setting.device.type != "cpu", "rank0_only": one_rank}
        settings = FullStateDictConfig(**moved), FullOptimStateDictConfig(**moved)
    elif kind is StateDictType.SHARDED_STATE_DICT:
        settings = ShardedStateDictConfig(), ShardedOptimStateDictConfig()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that FSDP1 is deprecated
        with Fsdp.state_dict_type(run.wrapped.module, kind, *settings):
            yield


# With the prefixes of wrappers in the names


def _save_prefixed(run: TrainingRun, folder: Path) -> list[Step]:
    """Saves torch.compile over DDP: "_orig_mod.module.tokens.weight"."""
    random = _gathered(run)
    if not run.setting.group.rank():
        model = _compiled(run).state_dict()
        content = {"model": model, "optimizer": run.optimizer.state_dict(), **run.counters()}
        write({**content, "random": torch.stack(random)}, folder / FULL, run.written)
    return []


def _read_prefixed(run: TrainingRun, folder: Path) -> Content:
    content = _read_full(run, folder)
    plain = {without_prefixes(name): value for name, value in content["model"].items()}
    return {**content, "model": plain, "prefixed": content["model"]}


def _apply_prefixed(run: TrainingRun, content: Content) -> None:
    """Loads with the saved names if the module has them, too; else without prefixes."""
    if run.wrapped.module is run.wrapped.plain:
        run.wrapped.module.load_state_dict(content["model"])
    else:
        _compiled(run).load_state_dict(content["prefixed"])
    run.optimizer.load_state_dict(content["optimizer"])


def _compiled(run: TrainingRun) -> Any:
    """The module under torch.compile: nothing is compiled before its first forward; "eager" imports no compiler."""
    return torch.compile(run.wrapped.module, backend="eager")


def without_prefixes(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


# Local state: each rank's own pieces, in its own file


def _save_local(run: TrainingRun, folder: Path) -> list[Step]:
    """Saves FSDP1's LOCAL_STATE_DICT without flat parameters, which weights_only refuses: the rest are their pieces."""
    with _fsdp_state(run, StateDictType.LOCAL_STATE_DICT):
        pieces = {name: own for name, own in run.wrapped.module.state_dict().items() if "_flat_param" not in name}
    content = {"model": pieces, "optimizer": run.optimizer.state_dict(), **run.counters()}
    write({**content, "random": torch.get_rng_state()}, _own_file(run, folder), run.written)
    return []


def _read_local(run: TrainingRun, folder: Path) -> Content:
    return loaded(_own_file(run, folder))


def _apply_local(run: TrainingRun, content: Content) -> None:
    with torch.no_grad():
        for name, own in (*run.wrapped.named(), *run.wrapped.plain.named_buffers()):
            own.copy_(content["model"][plain_name(name)])
    run.optimizer.load_state_dict(content["optimizer"])


def _own_file(run: TrainingRun, folder: Path) -> Path:
    return folder / f"rank-{run.setting.group.rank()}.pt"


# torch.distributed.checkpoint


class TensorsOnly(DefaultLoadPlanner):
    """torch's own planner would unpickle everything in a checkpoint that is not a tensor."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        plain = torch.load(value, weights_only=True)
        again = io.BytesIO()
        torch.save(plain, again)
        again.seek(0)
        super().load_bytes(read_item, again)


class _RecordedFiles(FileSystem):
    """torch's own, with the digests of what it writes."""

    def __init__(self, written: WrittenFiles) -> None:
        super().__init__()
        self._written = written

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as file:
            if "w" not in mode:
                yield file
                return
            stream = RecordingStream(file)
            yield stream
        if digest := stream.written():
            self._written[os.path.basename(path)] = digest

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        if (digest := self._written.pop(os.path.basename(path), None)) is not None:
            self._written[os.path.basename(new_path)] = digest


def _writer(run: TrainingRun, folder: Path) -> FileSystemWriter:
    """What torch.distributed.checkpoint makes of a folder, but that it records digests."""
    writer = FileSystemWriter(folder)
    writer.fs = _RecordedFiles(run.written)
    return writer


def _cut_state(run: TrainingRun, random: list[Tensor], *, flat: bool) -> Content:
    """The state as DTensors and the like, of which each rank has its part. `flat`: one name per number of the
    optimizer, which FSDP1 needs if a rank has an empty shard: torch 2.13 takes a nested state for a checkpoint of torch
    2.3 if that rank lacks names that others have. The schedule is text for the same reason."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = get_state_dict(run.wrapped.module, run.optimizer, options=options)
    counters = run.counters()
    counters["schedule"] = json.dumps(counters["schedule"])
    return {"model": model, "optimizer": optimizer, **counters, "random": torch.stack(random)}


def _save_dcp(run: TrainingRun, folder: Path, *, flat: bool = False) -> list[Step]:
    state = _cut_state(run, _gathered(run), flat=flat)
    state_dict_saver.save(state, storage_writer=_writer(run, folder), process_group=run.setting.group)
    return []


def _save_async(run: TrainingRun, folder: Path) -> list[Step]:
    """Training continues while the checkpoint is written and must not disturb it, neither by its changes nor by its
    collectives, for which the checkpoint has its own group."""
    assert run.setting.part, "it needs its own group"
    group = run.setting.part(tuple(range(run.setting.ranks)))
    state = _cut_state(run, _gathered(run), flat=False)
    done: Any = state_dict_saver.async_save(state, storage_writer=_writer(run, folder), process_group=group)
    steps = run.train(1)
    done.result()
    return steps


def _read_dcp(run: TrainingRun, folder: Path, *, flat: bool = False) -> Content:
    """Reads into the tensors of the new training: torch loads in place."""
    content = _cut_state(run, [torch.zeros_like(torch.get_rng_state())] * run.ranks, flat=flat)
    state_dict_loader.load(content, checkpoint_id=folder, process_group=run.setting.group, planner=TensorsOnly())
    return {**content, "schedule": json.loads(content["schedule"])}


def random_of(content: Mapping[str, Any], rank: int) -> Tensor:
    """A rank's random state in a checkpoint of any form."""
    kept: Tensor = content["random"]
    return kept[rank].clone() if kept.dim() > 1 else kept  # a view crashes torch.set_rng_state


FORMS: Mapping[str, Form] = {
    "full": Form(_save_full, _read_full, _apply_full),
    "prefixed": Form(_save_prefixed, _read_prefixed, _apply_prefixed),
    "local": Form(_save_local, _read_local, _apply_local),
    "dcp": Form(_save_dcp, _read_dcp, _set_state),
    "sharded": Form(
        partial(_save_dcp, flat=True),
        partial(_read_dcp, flat=True),
        partial(_set_state, flatten_optimizer_state_dict=True),
    ),
    "async": Form(_save_async, _read_dcp, _set_state),
}
"""By the names of names.py."""
