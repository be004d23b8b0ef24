"""What is wrong with a checkpoint, made for real: a function for each row of tests/faults/checkpoint_command.py. It
makes the checkpoint in an empty folder and returns what the command is given."""

import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from preflight.checkpoint import dcp, torch_file
from tests.checkpoint import models, saved
from tests.checkpoint.saved import net, write_safetensors

Damage = Callable[[Path, Path], Path]
"""(an empty folder, folders of DCP by two ranks) to the checkpoint's path."""
DAMAGES: dict[str, Damage] = {}
MODEL = {
    "ddp_names": "net", "compiled_model": "compiled", "lacks": "deeper", "has_more": "shallower",
    "other_width": "wider", "other_model": "other", "tied_once": "tied", "tied_twice": "tied",
    "tied_in_two_types": "tied",
}  # fmt: skip
"""What these rows are compared with."""


def damage(function: Damage) -> Damage:
    DAMAGES[function.__name__] = function
    return function


class Runs:
    """A file that a stranger has prepared: to load it is to run this."""

    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


def _save(folder: Path, what: object) -> Path:
    torch.save(what, folder / "model.pt")
    return folder / "model.pt"


def _copied(two_ranks: Path, folder: Path, name: str = "sound") -> Path:
    return Path(shutil.copytree(two_ranks / name, folder / "dcp"))


def _shorter(path: Path, by: int) -> None:
    os.truncate(path, path.stat().st_size - by)


@damage
def torn_zip(folder: Path, _: Path) -> Path:
    path = _save(folder, {"model": net().state_dict(), "step": 7})
    _shorter(path, path.stat().st_size // 2)
    return path


@damage
def empty_file(folder: Path, _: Path) -> Path:
    (folder / "model.pt").touch()
    return folder / "model.pt"


@damage
def zeros(folder: Path, _: Path) -> Path:
    (folder / "model.safetensors").write_bytes(bytes(4096))
    return folder


@damage
def cut_safetensors(folder: Path, _: Path) -> Path:
    write_safetensors(folder / "model.safetensors", net().state_dict())
    _shorter(folder / "model.safetensors", 10)
    return folder / "model.safetensors"


@damage
def cut_legacy(folder: Path, _: Path) -> Path:
    path = folder / "model.pt"
    torch.save({"weight": torch.ones(100)}, path, _use_new_zipfile_serialization=False)
    _shorter(path, 10)
    return path


@damage
def cut_rank(folder: Path, two_ranks: Path) -> Path:
    path = _copied(two_ranks, folder)
    _shorter(path / "__1_0.distcp", 10)
    return path


@damage
def lost_rank(folder: Path, two_ranks: Path) -> Path:
    path = _copied(two_ranks, folder)
    (path / "__1_0.distcp").unlink()
    return path


@damage
def unfinished(folder: Path, two_ranks: Path) -> Path:
    path = _copied(two_ranks, folder)
    (path / ".metadata").unlink()
    return path


@damage
def lost_shard(folder: Path, _: Path) -> Path:
    saved.shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    return folder


@damage
def lost_bin(folder: Path, _: Path) -> Path:
    saved.shards(folder, "bin")
    (folder / "pytorch_model-00001-of-00002.bin").unlink()
    return folder


@damage
def lost_number(folder: Path, _: Path) -> Path:
    saved.shards(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()
    return folder


@damage
def lost_tensor(folder: Path, _: Path) -> Path:
    parts = saved.shards(folder)
    parts["1.scale"] = parts["1.weight"]
    saved.write_index(folder, parts)
    return folder


@damage
def lost_storage(folder: Path, _: Path) -> Path:
    path = _save(folder, {"weight": torch.ones(4)})
    with zipfile.ZipFile(path) as whole:
        entries = [(entry, whole.read(entry)) for entry in whole.infolist() if not entry.filename.endswith("data/0")]
    with zipfile.ZipFile(path, "w") as less:
        for entry, data in entries:
            less.writestr(entry.filename, data)
    return path


@damage
def lfs_pointer(folder: Path, _: Path) -> Path:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5000000000\n"
    (folder / "model.safetensors").write_text(text)
    return folder


@damage
def broken_header(folder: Path, _: Path) -> Path:
    write_safetensors(folder / "model.safetensors", {"weight": torch.ones(4)})
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[20:24] = b"\0\0\0\0"
    (folder / "model.safetensors").write_bytes(data)
    return folder


@damage
def huge_header(folder: Path, _: Path) -> Path:
    (folder / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b'{"weight": {}}')
    return folder / "model.safetensors"


@damage
def mixed_saves(folder: Path, two_ranks: Path) -> Path:
    """Rank 1's file is of a save of another width; it is long enough."""
    path = _copied(two_ranks, folder)
    data = (two_ranks / "wider" / "__1_0.distcp").read_bytes()
    (path / "__1_0.distcp").write_bytes(data + bytes(4096))
    return path


@damage
def gap(folder: Path, two_ranks: Path) -> Path:
    """As if rank 1's part of the plan had been lost."""
    path = _copied(two_ranks, folder)
    saved_by = pickle.loads((path / ".metadata").read_bytes())
    weight = saved_by.state_dict_metadata["model.weight"]
    lost = weight.chunks.pop()
    for index in [index for index in saved_by.storage_data if index.offset == lost.offsets]:
        del saved_by.storage_data[index]
    (path / ".metadata").write_bytes(pickle.dumps(saved_by))
    return path


@damage
def overlap(folder: Path, two_ranks: Path) -> Path:
    """As if rank 1 had saved the rows of rank 0: as many elements, in the wrong place."""
    path = _copied(two_ranks, folder)
    saved_by = pickle.loads((path / ".metadata").read_bytes())
    _, second = sorted(saved_by.state_dict_metadata["model.weight"].chunks, key=lambda chunk: chunk.offsets)
    wrong = torch.Size([second.offsets[0] - 1, *second.offsets[1:]])
    places = saved_by.storage_data
    for index in [index for index in places if index.fqn == "model.weight" and index.offset == second.offsets]:
        places[replace(index, offset=wrong)] = places.pop(index)
    second.offsets = wrong
    (path / ".metadata").write_bytes(pickle.dumps(saved_by))
    return path


def _zeros_inside(path: Path, tensor: torch.Tensor) -> None:
    """64 KiB of zeros where elements were: as a server leaves them that has lost a block."""
    data, elements = bytearray(path.read_bytes()), saved.bytes_of(tensor[:16])
    at = data.index(elements)
    data[at + 4096 : at + 4096 + (64 << 10)] = bytes(64 << 10)
    path.write_bytes(data)


@damage
def lost_block(folder: Path, _: Path) -> Path:
    weight = torch.randn(1 << 16)
    path = _save(folder, {"weight": weight, "bias": torch.ones(3)})
    _zeros_inside(path, weight)
    return path


@damage
def lost_block_of_a_rank(folder: Path, two_ranks: Path) -> Path:
    path = _copied(two_ranks, folder)
    data, elements = bytearray((path / "__1_0.distcp").read_bytes()), None
    entry = next(e for e in dcp.read_metadata(str(path / ".metadata"))[1] if e.file == "__1_0.distcp" and e.shape)
    with open(path / entry.file, "rb") as file:
        whole, _ = torch_file.read_zip(file, entry.length, entry.at)
    elements = torch_file.only_tensor(whole)
    assert elements and elements[0].at is not None
    data[elements[0].at] ^= 1
    (path / entry.file).write_bytes(data)
    return path


@damage
def other_header_shape(folder: Path, _: Path) -> Path:
    about = {"weight": {"dtype": "F32", "shape": [5, 4], "data_offsets": [0, 64]}}
    write_safetensors(folder / "model.safetensors", {"weight": torch.ones(4, 4)}, about)
    return folder


@damage
def nan(folder: Path, _: Path) -> Path:
    state = net().state_dict()
    state["1.weight"][2, 3] = float("nan")
    return _save(folder, {"model": state})


@damage
def nan_by_ranks(folder: Path, two_ranks: Path) -> Path:
    return _copied(two_ranks, folder, "nan")


@damage
def inf(folder: Path, _: Path) -> Path:
    weight = torch.ones(3, 1 << 19, dtype=torch.bfloat16)
    weight[2, 7] = float("inf")
    write_safetensors(folder / "model.safetensors", {"weight": weight})
    return folder


@damage
def all_inf(folder: Path, _: Path) -> Path:
    return _save(folder, {"observer.min_val": torch.full((4,), float("inf")), "weight": torch.ones(2)})


@damage
def runs_code(folder: Path, _: Path) -> Path:
    return _save(folder, {"weight": torch.ones(2), "more": Runs()})


@damage
def metadata_runs_code(folder: Path, two_ranks: Path) -> Path:
    path = _copied(two_ranks, folder)
    (path / ".metadata").write_bytes(pickle.dumps(Runs()))
    return path


@damage
def entry_runs_code(folder: Path, two_ranks: Path) -> Path:
    """A stranger's object lies in place of rank 0's first tensor."""
    path = _copied(two_ranks, folder)
    data = bytearray((path / "__0_0.distcp").read_bytes())
    torch.save(Runs(), folder / "object")
    evil = (folder / "object").read_bytes()
    (length,) = {
        entry.length for entry in dcp.read_metadata(str(path / ".metadata"))[1] if entry.file == "__0_0.distcp"
    }
    comment = length - len(evil)  # a zip may end with one
    data[:length] = evil[:-2] + comment.to_bytes(2, "little") + bytes(comment)
    (path / "__0_0.distcp").write_bytes(data)
    return path


@damage
def whole_model(folder: Path, _: Path) -> Path:
    return _save(folder, models.Tied())


@damage
def plain_pickle(folder: Path, _: Path) -> Path:
    (folder / "model.pt").write_bytes(pickle.dumps({"weight": [1.0, 2.0]}))
    return folder / "model.pt"


@damage
def other_format(folder: Path, _: Path) -> Path:
    saved.shards(folder)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"GGUF" + bytes(100))
    return folder


@damage
def more_ranks_before(folder: Path, two_ranks: Path) -> Path:
    path = _copied(two_ranks, folder)
    shutil.copy(path / "__1_0.distcp", path / "__2_0.distcp")
    return path


@damage
def tensor_left_over(folder: Path, _: Path) -> Path:
    parts = saved.shards(folder)
    del parts["1.bias"]
    saved.write_index(folder, parts)
    return folder


@damage
def in_two_files(folder: Path, _: Path) -> Path:
    parts = saved.shards(folder)
    file = folder / parts["0.bias"]
    state = net().state_dict()
    tensors = {name: tensor for name, tensor in state.items() if parts[name] == file.name}
    saved.write_shard(file, {**tensors, "1.bias": state["1.bias"]})
    return folder


@damage
def slice_of_large(folder: Path, _: Path) -> Path:
    return _save(folder, {"weight": torch.zeros(20 << 20)[:3]})


@damage
def no_tensors(folder: Path, _: Path) -> Path:
    return _save(folder, {"step": 7, "rate": 0.1})


@damage
def ddp_names(folder: Path, _: Path) -> Path:
    return _save(folder, {"model": {f"module.{name}": tensor for name, tensor in net().state_dict().items()}})


@damage
def compiled_model(folder: Path, _: Path) -> Path:
    return _save(folder, net().state_dict())


@damage
def lacks(folder: Path, _: Path) -> Path:
    return _save(folder, net().state_dict())


@damage
def has_more(folder: Path, _: Path) -> Path:
    return _save(folder, {"state": {"model": net().state_dict()}})


@damage
def other_width(folder: Path, _: Path) -> Path:
    return _save(folder, net().state_dict())


@damage
def other_model(folder: Path, _: Path) -> Path:
    return _save(folder, net().state_dict())


@damage
def tied_once(folder: Path, _: Path) -> Path:
    write_safetensors(folder / "model.safetensors", {"embed.weight": torch.ones(6, 4)})
    return folder


@damage
def tied_in_two_types(folder: Path, _: Path) -> Path:
    write_safetensors(
        folder / "model.safetensors",
        {"embed.weight": torch.ones(6, 4), "head.weight": torch.ones(6, 4, dtype=torch.bfloat16)},
    )
    return folder


@damage
def tied_twice(folder: Path, _: Path) -> Path:
    write_safetensors(
        folder / "model.safetensors", {"embed.weight": torch.ones(6, 4), "head.weight": torch.zeros(6, 4)}
    )
    return folder
