"""Checkpoints on a disk, sound ones; what tests/checkpoint/damages.py makes of them is not."""

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from preflight.checkpoint import command
from preflight.checkpoint.arguments import CheckpointRequest
from tests import running

MODELS = "tests.checkpoint.models"
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3"}


def look(path: Path, model: str = "", timeout_s: float = 60.0) -> dict[str, Any]:
    """Its report as JSON."""
    asked = CheckpointRequest(str(path), f"{MODELS}:{model}" if model else None, None, timeout_s)
    return command.look(asked).to_json()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any] | None = None) -> None:
    """By hand, as its format says. `header`: entries in place of the right ones."""
    about: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        end = len(data) + tensor.numel() * tensor.element_size()
        about[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(data), end]}
        data += bytes_of(tensor)
    text = json.dumps({**about, **(header or {})}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def shards(folder: Path, suffix: str = "safetensors") -> dict[str, str]:
    """Two shards of `net` with an index, as Hugging Face writes them. The index's map."""
    names = list(net().state_dict())
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    files = [f"{stem}-{number:05}-of-00002.{suffix}" for number in (1, 2)]
    parts = {name: files[name.startswith("1.")] for name in names}
    for file in files:
        write_shard(folder / file, {name: tensor for name, tensor in net().state_dict().items() if parts[name] == file})
    write_index(folder, parts, stem, suffix)
    return parts


def write_shard(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    if path.suffix == ".bin":
        torch.save(dict(tensors), path)
    else:
        write_safetensors(path, tensors)


def write_index(folder: Path, parts: Mapping[str, str], stem: str = "model", suffix: str = "safetensors") -> None:
    index = {"metadata": {"total_size": 848}, "weight_map": parts}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def save_on_two_ranks(folder: Path) -> None:
    """Makes folders of DCP: sound, wider, nan."""
    environ = {**running.environment(), "PYTHONPATH": str(running.ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.checkpoint.save_on_two_ranks", str(folder)]
    subprocess.run(command, check=True, env=environ, cwd=running.ROOT, timeout=120, capture_output=True)
