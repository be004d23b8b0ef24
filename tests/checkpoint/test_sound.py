"""Checkpoints with which nothing is wrong: nothing is said of them, and what they hold is."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.serialization import set_crc32_options

from preflight.checkpoint import dcp, pickled_names, torch_file
from tests.checkpoint import models, saved
from tests.checkpoint.saved import look, net, shards, write_safetensors

pytestmark = pytest.mark.process


def full() -> dict[str, Any]:
    """As a training saves it."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "rng": torch.get_rng_state(),
        "best": float("inf"), "names": ["a", None],
    }  # fmt: skip


def kinds() -> dict[str, torch.Tensor]:
    """Types, layouts and values that are sound, though a sum of them may not be."""
    base = torch.randn(6, 4)
    return {
        "bfloat16": torch.full((70_000,), 3e38, dtype=torch.bfloat16),
        "float16": torch.full((70_000,), 6e4, dtype=torch.float16),
        "float32": torch.full((70_000,), 3e38),
        "float8": torch.ones(5).to(torch.float8_e4m3fn),
        "complex64": torch.ones(2, dtype=torch.complex64),
        "uint16": torch.ones(3, dtype=torch.uint16),
        "bool": torch.ones(3, dtype=torch.bool),
        "mask": torch.full((4, 4), float("-inf")).triu(1),
        "transposed": base.t(),
        "row": base[1],
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
        "parameter": nn.Parameter(torch.ones(2)),
        "negative": base.view(-1)[::2],
    }


def tied() -> dict[str, torch.Tensor]:
    return dict(models.Tied().state_dict())


def in_a_folder(suffix: str = "safetensors") -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.mkdir()
        shards(path, suffix)

    return make


SOUND: dict[str, Callable[[Path], object]] = {
    "flat.pt": lambda path: torch.save(net().state_dict(), path),
    "full.pt": lambda path: torch.save(full(), path),
    "kinds.pt": lambda path: torch.save(kinds(), path),
    "old.pt": lambda path: torch.save(full(), path, _use_new_zipfile_serialization=False),
    "tied.pt": lambda path: torch.save(tied(), path),
    "protocol.pt": lambda path: torch.save(full(), path, pickle_protocol=4),
    "model.safetensors": lambda path: write_safetensors(path, {**net().state_dict(), "none": torch.ones(0, 3)}),
    "safetensors": in_a_folder(),
    "bin": in_a_folder("bin"),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    SOUND[name](path)
    report = look(path)
    assert report["checks"][0]["findings"] == []
    assert report["exit_code"] == 0
    assert report["checkpoint"]["tensors"] > 0


def test_best_scores_that_are_infinite_are_sound(tmp_path: Path) -> None:
    """As Lightning's ModelCheckpoint and scripts save them; a parameter that is a scalar is none."""
    infinite = torch.tensor(float("inf"))
    callbacks = {"ModelCheckpoint{'monitor': 'loss'}": {"kth_value": infinite, "best_k_models": {"a/b.ckpt": infinite}}}
    torch.save({"state_dict": net().state_dict(), "callbacks": callbacks, "best": infinite}, tmp_path / "last.ckpt")
    assert look(tmp_path / "last.ckpt")["checks"][0]["findings"] == []
    torch.save({"net": {**net().state_dict(), "scale": infinite}}, tmp_path / "scale.pt")
    (found,) = look(tmp_path / "scale.pt")["checks"][0]["findings"]
    assert found["code"] == "preflight.checkpoint.infinite" and found["where"]["parameter"] == "net.scale"


def test_a_file_that_was_saved_without_checksums_is_sound(tmp_path: Path) -> None:
    set_crc32_options(False)
    try:
        torch.save(net().state_dict(), tmp_path / "model.pt")
    finally:
        set_crc32_options(True)
    assert look(tmp_path / "model.pt")["checks"][0]["findings"] == []


@pytest.mark.parametrize(
    ("chunks", "wrong"),
    [
        ({(0, 0): (2, 4), (2, 0): (3, 4)}, ""),
        ({(0, 0): (5, 2), (0, 2): (5, 2)}, ""),
        ({(0, 0): (2, 2), (0, 2): (2, 2), (2, 0): (3, 1), (2, 1): (3, 3)}, ""),
        ({(0, 0): (5, 4), (5, 0): (0, 4)}, ""),
        ({(0, 0): (2, 4), (1, 0): (3, 4)}, "overlap"),
        ({(0, 0): (5, 2), (0, 1): (5, 2)}, "overlap"),
        ({(0, 0): (2, 4), (3, 0): (3, 4)}, "is not in its shape [5, 4]"),
    ],
    ids=["rows", "columns", "a grid", "an empty shard", "rows that overlap", "columns that overlap", "beyond"],
)
def test_chunks_tile_a_tensor(chunks: dict[tuple[int, ...], tuple[int, ...]], wrong: str) -> None:
    found = dcp._not_tiled(dcp.Described((5, 4), "float32", chunks))
    assert wrong in found and bool(found) == bool(wrong)
    assert dcp._not_tiled(dcp.Described((), "float32", {(): ()})) == ""


@pytest.mark.more
def test_of_dcp_neither(two_ranks: Path) -> None:
    report = look(two_ranks / "sound")
    assert report["checks"][0]["findings"] == []
    about = report["checkpoint"]
    assert (about["ranks"], about["tensors"], about["elements"], about["others"]) == (2, 3, 28, 2)


def test_a_trainers_folder_has_other_files(tmp_path: Path) -> None:
    """Its arguments are an object, its generators are NumPy's, and more lies there."""
    shards(tmp_path)
    torch.save(full()["optimizer"], tmp_path / "optimizer.pt")
    torch.save(models.Tied, tmp_path / "training_args.bin")
    (tmp_path / "tokenizer.bin").write_bytes(b"any")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to("link")
    (tmp_path / "logs").mkdir()
    assert look(tmp_path)["checks"][0]["findings"] == []


@pytest.mark.parametrize("model", ["net", "as_for_run", "not_on_meta"])
@pytest.mark.parametrize("name", ["flat.pt", "full.pt", "safetensors"])
def test_it_fits(name: str, model: str, tmp_path: Path) -> None:
    SOUND[name](tmp_path / name)
    report = look(tmp_path / name, model)
    assert report["checks"][0]["findings"] == []


def test_tied_tensors_that_are_saved_twice_and_equal_fit(tmp_path: Path) -> None:
    torch.save(tied(), tmp_path / "shared.pt")
    torch.save({name: tensor.clone() for name, tensor in tied().items()}, tmp_path / "twice.pt")
    for name, elements in (("shared.pt", 24), ("twice.pt", 48)):
        report = look(tmp_path / name, "tied")
        assert report["checks"][0]["findings"] == []
        assert report["checkpoint"]["elements"] == elements


def test_a_generator_of_numpys_is_no_object_of_a_strangers(tmp_path: Path) -> None:
    """As numpy.random.get_state() is pickled; NumPy need not be here."""
    text = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR."
    _, names = torch_file.unpickled(io.BytesIO(text))
    assert names == {"numpy.core.multiarray._reconstruct", "numpy.ndarray"}
    assert all(map(pickled_names.is_plain, names)) and not any(map(pickled_names.runs_code, names))


def test_what_it_reads_it_does_not_change(tmp_path: Path) -> None:
    SOUND["full.pt"](tmp_path / "full.pt")
    before = (tmp_path / "full.pt").read_bytes()
    look(tmp_path / "full.pt")
    assert (tmp_path / "full.pt").read_bytes() == before
    assert os.listdir(tmp_path) == ["full.pt"]


def test_names_and_wrappers_are_told(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in net().state_dict().items()}
    torch.save({"model": state}, tmp_path / "model.pt")
    told = look(tmp_path / "model.pt")["checkpoint"]["overview"]
    assert told[-1] == "  all names have module. in them (DDP's or DataParallel's), such as model.module.0.weight"
    assert saved.look(tmp_path / "model.pt")["exit_code"] == 0
