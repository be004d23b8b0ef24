"""A stand-in for NCCL on a machine without a GPU: gloo does the work, and the log of a made-up machine lies where
NCCL's would. In the folder PREFLIGHT_TEST_NCCL: RANK.log is that log; RANK.error is what init_process_group raises."""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def _start(rank: int) -> str:
    """Writes the log as NCCL does, and returns the error, if there is one."""
    folder = Path(os.environ["PREFLIGHT_TEST_NCCL"])
    log, error = (folder / f"{rank}.{kind}" for kind in ("log", "error"))
    if log.exists():
        Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))).write_text(log.read_text())
    return error.read_text() if error.exists() else ""


def _patch_torch() -> None:
    import torch
    from torch import distributed

    torch.version.cuda = "12.4"
    torch.cuda.device_count = lambda: 8
    distributed.is_nccl_available = lambda: True
    make: Any = distributed.init_process_group

    def init_process_group(backend: str, **options: Any) -> Any:
        error = _start(options["rank"])
        if error:
            raise distributed.DistBackendError(error)
        return make("gloo", **{**options, "device_id": None})

    distributed.init_process_group = init_process_group  # type: ignore[assignment]


class _Loader(importlib.abc.Loader):
    def __init__(self, spec: importlib.machinery.ModuleSpec) -> None:
        self._own = spec.loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        assert self._own
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert self._own
        self._own.exec_module(module)
        if module.__name__ == "preflight.check":
            module.Context.device = property(lambda _self: __import__("torch").device("cpu"))


class _AtWork(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "preflight.engine.process_group":
            _patch_torch()
        if name != "preflight.check":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec:
            spec.loader = _Loader(spec)
        return spec


sys.meta_path.insert(0, _AtWork())
