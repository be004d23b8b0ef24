"""What goes wrong with checkpoints, for sitecustomize.py: in torch's saving and loading, or with the files between."""

import errno
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _rank() -> int:
    from torch import distributed as dist

    return dist.get_rank()


# Where a deed takes hold


def _in_loading(change: Callable[[Any, Any, Callable[..., Any], dict[str, Any]], None]) -> None:
    """Instead of set_state_dict: given the module, the optimizer, what does it rightly, and its options."""
    from torch.distributed.checkpoint import state_dict

    right = state_dict.set_state_dict

    def wrong(module: Any, optimizer: Any, **options: Any) -> None:
        change(module, optimizer, right, options)

    vars(state_dict)["set_state_dict"] = wrong


def _after_loading(change: Callable[[Any, Any], None]) -> None:
    """Given the module and the optimizer."""

    def do(module: Any, optimizer: Any, right: Callable[..., Any], options: dict[str, Any]) -> None:
        right(module, optimizer, **options)
        change(module, optimizer)

    _in_loading(do)


def _when_written(change: Callable[[Path], None]) -> None:
    """On the folder of a checkpoint, once all ranks have written it, on each of them."""
    from preflight.train_smoke.checkpoint import files

    right = files.Manifest.of

    def wrong(folder: Path, setting: Any, written: Any) -> Any:
        made = right(folder, setting, written)
        change(folder)
        return made

    vars(files)["Manifest"].of = wrong


def _in_torch_save(change: Callable[[Any], None]) -> None:
    """Before a file is written by torch.save: given what it is written to."""
    import torch

    right = torch.save

    def wrong(content: Any, file: Any, *more: Any, **options: Any) -> None:
        change(file)
        right(content, file, *more, **options)

    vars(torch)["save"] = wrong


# What can be done there


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _is_smaller(module: Any) -> bool:
    """Whether fewer ranks have it than there are."""
    from torch import distributed as dist

    meshes = {parameter.device_mesh.size() for parameter in module.parameters() if hasattr(parameter, "device_mesh")}
    return bool(meshes) and max(meshes) < dist.get_world_size()


def _half_moment(_: int) -> None:
    """After loading on fewer ranks the second half of each rank's piece of one moment is 0."""

    def change(module: Any, optimizer: Any) -> None:
        weight = dict(module.named_parameters())["blocks.0.up.weight"]
        if _is_smaller(module):
            piece = _local(optimizer.state[weight]["exp_avg"]).view(-1)
            piece[piece.numel() // 2 :] = 0

    _after_loading(change)


def _not_reloaded(_: int) -> None:
    """On fewer ranks the optimizer begins anew."""
    _after_loading(lambda module, optimizer: optimizer.state.clear() if _is_smaller(module) else None)


def _moments_dropped(_: int) -> None:
    def change(_module: Any, optimizer: Any) -> None:
        for own in optimizer.state.values():
            for kind in ("exp_avg", "exp_avg_sq"):
                own[kind].zero_()

    _after_loading(change)


def _steps_lost(_: int) -> None:
    def change(_module: Any, optimizer: Any) -> None:
        for own in optimizer.state.values():
            own["step"].zero_()

    _after_loading(change)


def _weight_off(rank: int) -> None:
    """One element of the piece that a rank keeps is another one."""
    import torch

    def change(module: Any, _optimizer: Any) -> None:
        if _rank() == rank:
            with torch.no_grad():
                _local(dict(module.named_parameters())["blocks.1.up.weight"]).view(-1)[7] += 1

    _after_loading(change)


def _drifts(_: int) -> None:
    """What stands outside the checkpoint: the forward of a loaded model is 0.1% off."""
    _after_loading(lambda module, _: module.register_forward_hook(lambda _model, _in, logits: logits * 1.001) and None)


def _refuses(rank: int) -> None:
    def change(module: Any, optimizer: Any, right: Callable[..., Any], options: dict[str, Any]) -> None:
        if _rank() == rank:
            raise RuntimeError("size mismatch for narrow.weight")
        right(module, optimizer, **options)

    _in_loading(change)


def _untied(_: int) -> None:
    """The second name of a tied parameter is saved with other values."""
    from torch.distributed.checkpoint import state_dict

    right = state_dict.get_state_dict

    def wrong(*arguments: Any, **options: Any) -> Any:
        model: Any
        model, optimizer = right(*arguments, **options)
        if "head.weight" in model:
            model["head.weight"] = model["head.weight"] * 1.01
        return model, optimizer

    vars(state_dict)["get_state_dict"] = wrong


def _random_stays(rank: int) -> None:
    import torch

    right = torch.set_rng_state

    def wrong(state: Any) -> None:
        is_own = sys._getframe(1).f_code.co_filename.endswith("random.py")  # fork_rng of torch's own
        if is_own or _rank() != rank:
            right(state)

    vars(torch)["set_rng_state"] = wrong


def _schedule_anew(_: int) -> None:
    from torch.optim.lr_scheduler import LRScheduler

    LRScheduler.load_state_dict = lambda *_: None  # type: ignore[method-assign]


def _shard_missing(rank: int) -> None:
    def change(folder: Path) -> None:
        if _rank() == rank:
            (folder / f"__{rank}_0.distcp").unlink()

    _when_written(change)


def _in_first_file(change: Callable[[Path], None]) -> None:
    """On full.pt, by rank 0, which reads it."""
    _when_written(lambda folder: change(folder / "full.pt") if not _rank() else None)


def _cut(_: int) -> None:
    _in_first_file(lambda path: os.truncate(path, path.stat().st_size // 2))


def _of_another_run(_: int) -> None:
    """As many bytes, of another training."""
    import torch

    def change(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        content["model"]["scale"] += 1
        with open(path, "wb") as file:
            torch.save(content, file)

    _in_first_file(change)


class _Surprise:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


def _pickled(_: int) -> None:
    """What runs code when it is unpickled."""

    def change(path: Path) -> None:
        path.write_bytes(pickle.dumps(_Surprise()))

    _in_first_file(change)


def _killed(rank: int) -> None:
    _in_torch_save(lambda _: os.kill(os.getpid(), signal.SIGKILL) if _rank() == rank else None)


def _filled(_: int) -> None:
    """Somebody else fills the file system while a checkpoint is written."""

    def change(file: Any) -> None:
        path = Path(file.name).with_name("filler")
        try:
            with open(path, "wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(2**20))
        except OSError as error:
            assert error.errno == errno.ENOSPC

    _in_torch_save(change)


def _no_rename(_: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    vars(os)["rename"] = refuse


def _slow_fsync(rank: int) -> None:
    right = os.fsync

    def slow(descriptor: int) -> None:
        if _rank() == rank:
            time.sleep(1.0)  # a disk that is slow
        right(descriptor)

    vars(os)["fsync"] = slow


def _stays(_: int) -> None:
    """Nothing can be removed."""
    import shutil

    vars(shutil)["rmtree"] = lambda *_, **__: None


def _slow_removal(_: int) -> None:
    import shutil

    right = shutil.rmtree

    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(0.5)  # a server with much to do
        right(*arguments, **options)

    vars(shutil)["rmtree"] = slow


DEEDS: dict[str, Callable[[int], None]] = {
    "half_moment": _half_moment,
    "not_reloaded": _not_reloaded,
    "moments_dropped": _moments_dropped,
    "steps_lost": _steps_lost,
    "weight_off": _weight_off,
    "drifts": _drifts,
    "refuses": _refuses,
    "untied": _untied,
    "random_stays": _random_stays,
    "schedule_anew": _schedule_anew,
    "shard_missing": _shard_missing,
    "cut": _cut,
    "of_another_run": _of_another_run,
    "pickled": _pickled,
    "killed": _killed,
    "filled": _filled,
    "no_rename": _no_rename,
    "slow_fsync": _slow_fsync,
    "stays": _stays,
    "slow_removal": _slow_removal,
}
