"""What the names in a pickle say: which let its author do anything, and which belong to tensors and plain data."""

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
