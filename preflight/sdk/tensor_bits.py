"""A tensor's bits, and their digest. Imports torch: only `measure` may import it."""

import ctypes
import hashlib
from collections.abc import Iterable

from torch import Tensor


def raw(tensor: Tensor) -> bytes:
    """Its elements as they are in memory."""
    host = _on_host(tensor)
    return bytes(_memory(host))


def digest(parts: Iterable[Tensor | str]) -> str:
    """16 hexadecimal digits that are equal for parts that are equal to the last bit, in the same order."""
    hasher = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            hasher.update(f"{part}\n".encode())
        else:
            host = _on_host(part)
            hasher.update(_memory(host))
    return hasher.hexdigest()[:16]


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _memory(host: Tensor) -> "ctypes.Array[ctypes.c_char]":
    """Its elements, valid as long as the tensor lives. Without NumPy they are only accessible by address."""
    size = host.numel() * host.element_size()
    return (ctypes.c_char * size).from_address(host.data_ptr()) if size else (ctypes.c_char * 0)()
