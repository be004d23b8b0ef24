"""Reads pickles of checkpoints without importing, calling or building anything that they name.

Each class or function that a pickle names becomes a class of this module that only keeps what it is given. So the
names, types and shapes of tensors can be read from files of any origin, and what the pickle would have run when loaded
is known by name.
"""

import collections
import pickle
from collections.abc import Callable, Iterator
from typing import IO, Any

LARGEST = 1 << 30
"""Bytes: the metadata of a checkpoint of 1,000 ranks and 100,000 tensors has some 100 MB."""
DEEPEST, MOST = 200, 50_000_000
"""The most levels of containers, and entries, that are visited."""
RUNS = (
    "os", "posix", "nt", "subprocess", "sys", "socket", "shutil", "runpy", "importlib", "pty", "ctypes", "code",
    "pickle", "_pickle", "timeit", "operator", "webbrowser", "multiprocessing", "asyncio", "threading", "signal",
    "urllib", "http", "requests", "tempfile", "platform", "pdb", "bdb", "inspect", "types", "marshal", "io", "_io",
    "builtins", "__builtin__",
)  # fmt: skip
"""Modules with which a pickle can do anything; in builtins everything but HARMLESS."""
OF_TORCH = ("torch.load", "torch.hub", "torch.utils.cpp_extension", "torch.jit")
"""Parts of torch with which a pickle can do anything."""
HARMLESS = {
    "set", "frozenset", "bytearray", "bytes", "complex", "slice", "range", "int", "float", "str", "bool", "list",
    "dict", "tuple", "object", "getattr", "NoneType", "Ellipsis",
}  # fmt: skip
_OTHERS = {"types.SimpleNamespace", "_io.BytesIO", "io.BytesIO"}
PLAIN = ("collections", "numpy", "_codecs", "copyreg", "copy_reg", "datetime", "pathlib", "ml_dtypes")
"""Modules of tensors and plain data."""
PLAIN_OF_TORCH = (
    "torch._utils", "torch._tensor", "torch.nn.parameter", "torch.serialization", "torch.storage", "torch.distributed",
    "torch.torch_version", "torch._C", "torch.random",
)  # fmt: skip
"""And names without a module between, such as torch.float32."""


_REAL: dict[str, type] = {"collections.OrderedDict": collections.OrderedDict, "torch.Size": tuple}
"""Classes that only hold what they are given."""


class Inert:
    """Takes the place of an object of any class."""

    origin = ""
    """ "torch._utils._rebuild_tensor_v2"."""
    args: tuple[Any, ...]

    def __new__(cls, *args: Any, **_: Any) -> "Inert":
        made = object.__new__(cls)
        made.args, made.state, made.items = args, None, []
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state: Any
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def get(self, name: str) -> Any:
        """A field of its state; None if it does not exist."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        return state.get(name) if isinstance(state, dict) else None


class InertUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], persistent: Callable[[Any], Any] | None = None) -> None:
        """`persistent` makes an object for a reference to something outside the pickle, such as a storage."""
        super().__init__(file, encoding="utf-8", errors="replace")
        self._persistent, self._made = persistent, dict(_REAL)
        self.names: set[str] = set()
        """The classes and functions that it names: "posix.system"."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        origin = f"{module_name}.{global_name}"
        self.names.add(origin)
        if origin not in self._made:
            self._made[origin] = type("Inert", (Inert,), {"origin": origin})
        return self._made[origin]

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise pickle.UnpicklingError("it refers to something outside")
        return self._persistent(pid)


def runs_code(origin: str) -> bool:
    """Whether loading it would let the file's author do anything."""
    root, _, rest = origin.partition(".")
    if root in ("builtins", "__builtin__"):
        return rest not in HARMLESS
    return (root in RUNS and origin not in _OTHERS) or _is_under(origin, OF_TORCH)


def is_plain(origin: str) -> bool:
    """Whether it belongs to tensors and plain data, to which torch.load can be limited."""
    root, _, rest = origin.partition(".")
    if root in ("builtins", "__builtin__"):
        return rest in HARMLESS
    is_of_torch = root == "torch" and ("." not in rest or _is_under(origin, PLAIN_OF_TORCH))
    return root in PLAIN or is_of_torch


def _is_under(origin: str, modules: tuple[str, ...]) -> bool:
    return any(f"{origin}.".startswith(f"{module}.") for module in modules)


def walk(root: Any, is_leaf: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yields (path such as "model.layer.weight", leaf) for leaves and non-containers; visits each container once."""
    waiting: list[tuple[str, Any, int]] = [("", root, 0)]
    seen: set[int] = set()
    for _ in range(MOST):
        if not waiting:
            return
        path, item, depth = waiting.pop()
        children = None if is_leaf(item) else _children(item)
        if children is None:
            yield path, item
        elif id(item) not in seen and depth < DEEPEST:
            seen.add(id(item))
            found = [(f"{path}.{key}" if path else str(key), child, depth + 1) for key, child in children]
            waiting += reversed(found)


def _children(item: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(item, dict):
        return [(key if isinstance(key, str | int) else "?", child) for key, child in item.items()]
    if isinstance(item, list | tuple):
        return list(enumerate(item))
    if isinstance(item, Inert):
        state = item.state if isinstance(item.state, tuple) else (item.state,)
        fields = [pair for part in state if isinstance(part, dict) for pair in part.items()]
        return [*enumerate(item.args), *fields, *enumerate(item.items)]
    return None
