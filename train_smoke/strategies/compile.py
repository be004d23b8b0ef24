"""DDP and FSDP2 under `torch.compile`: the compiler, cleaning up after it, and the variants."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from preflight.train_smoke.strategies.ddp import BUCKET_MB, UnderDdp
from preflight.train_smoke.trainer.sharded import Sharded
from preflight.train_smoke.trainer.wrapped import StrategySetting, Variant, Wrapped, blocks, shapes_of

BACKENDS = ("aot_eager", "inductor")
"""Both trace forward and backward into graphs. aot_eager runs them by torch's own kernels; inductor makes code."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables that say where generated code goes. torch sets the first itself; old Triton otherwise uses $HOME."""
FIRST_BUCKET = "_DEFAULT_FIRST_BUCKET_BYTES"


def why_not() -> str:
    """Why torch.compile cannot run in this process, in torch's words; "" if it can."""
    try:
        torch.compile(lambda x: x, backend="eager")
    except (ImportError, RuntimeError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def usual_backend(device: torch.device) -> str:
    """inductor if it can generate code for a GPU (it needs Triton, which needs a C compiler), else aot_eager."""
    if device.type == "cpu" or not shutil.which(os.environ.get("CC", "gcc")):
        return "aot_eager"
    from torch.utils._triton import has_triton

    return "inductor" if has_triton() else "aot_eager"


@dataclass
class Compiler:
    """A backend of torch.compile that counts graphs: torch.compile may compile nothing without an error."""

    backend: str
    graphs: dict[str, int] = field(default_factory=dict)
    """How many graphs were compiled, by variant."""

    def of(self, variant: str) -> Callable[[torch.fx.GraphModule, Sequence[Tensor]], Callable[..., Any]]:
        """The value for `torch.compile(..., backend=)`."""
        from torch._dynamo import lookup_backend

        make: Callable[..., Any] = lookup_backend(self.backend)
        self.graphs[variant] = 0

        def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
            made: Callable[..., Any] = make(graph, inputs)
            self.graphs[variant] += 1
            return made

        return compile_graph


_compiler = Compiler(BACKENDS[0])
"""The compiler of this worker's variants now; `at_work` changes it."""


@contextlib.contextmanager
def at_work(backend: str, folder: str = "") -> Iterator[Compiler]:
    """Variants are compiled by this backend. Generated code goes to a new folder below `folder` ("": below the
    temporary folder), which is removed; environment and torch's compiler are restored."""
    global _compiler
    before = _compiler
    with tempfile.TemporaryDirectory(prefix="preflight-", dir=folder or None, ignore_cleanup_errors=True) as caches:
        environ, folder_before = {name: os.environ.get(name) for name in CACHES}, tempfile.tempdir
        os.environ.update(dict.fromkeys(CACHES, caches))
        tempfile.tempdir = caches  # inductor creates a folder there, whatever the variables say
        _compiler = Compiler(backend)
        try:
            with _in_this_process(backend):
                yield _compiler
        finally:
            _compiler, tempfile.tempdir = before, folder_before
            torch.compiler.reset()
            _put_back(environ)


def _put_back(environ: Mapping[str, str | None]) -> None:
    for name, value in environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _in_this_process(backend: str) -> contextlib.AbstractContextManager[object]:
    """Keeps inductor in this process: it would start a lasting pool of processes, and cache C++ headers elsewhere."""
    if backend != "inductor":
        return contextlib.nullcontext()
    from torch._inductor import config

    alone: Any = config
    wanted = {"compile_threads": 1, "cpp_cache_precompile_headers": False}
    context: contextlib.AbstractContextManager[object] = alone.patch(
        {name: value for name, value in wanted.items() if hasattr(config, name)}
    )
    return context


# The variants


class CompiledDdp(UnderDdp):
    """torch.compile splits the graph where a bucket of DDP ends, so that its all-reduce can start."""

    def __init__(self, plain: nn.Module, setting: StrategySetting) -> None:
        super().__init__(plain, setting)
        compiled: Any = torch.compile(self.module, backend=_compiler.of("ddp"))
        self.module = compiled

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        """Makes the first bucket no larger than the others: this small model would fit into one."""
        usual = getattr(distributed, FIRST_BUCKET, None)
        setattr(distributed, FIRST_BUCKET, int(BUCKET_MB * 2**20))
        try:
            yield
        finally:
            setattr(distributed, FIRST_BUCKET, usual)


def _fsdp2(plain: nn.Module, setting: StrategySetting) -> Wrapped:
    """Compiles each block by itself: parameters are gathered between them."""
    shapes, units = shapes_of(plain), blocks(plain)
    mesh, backend = DeviceMesh.from_group(setting.group, setting.device.type), _compiler.of("fsdp2")
    for unit in units:
        unit.compile(backend=backend)
    for unit in (*units, plain):
        fully_shard(unit, mesh=mesh)
    wrapped = Sharded(plain, plain, setting, shapes, setting.group)
    wrapped.units = units
    return wrapped


VARIANTS: Mapping[str, Variant] = {
    "ddp": Variant(CompiledDdp, compiled=lambda plain: [plain]),
    "fsdp2": Variant(_fsdp2, compiled=lambda plain: [*blocks(plain), plain]),
}
"""By the names of trainer/names.py."""
