"""What the recorder of `preflight resume` keeps of tensors: two numbers each, digests of batches, and plain numbers.
Injected beside preflight_resume_rank.py."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False  # typing's own would be an import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CHUNK = 1 << 22
"""Elements that are summed at a time: 32 MiB in float64."""
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that wrappers add: a parameter has one name with and without them."""


class Tensors:
    """`torch`: the user's."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.signs: dict[Any, Any] = {}

    def random_state(self) -> str:
        torch = self.torch
        states = [torch.get_rng_state()]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
        return self.digest(states)

    def digest(self, tensors: Any) -> str:
        import ctypes
        import hashlib

        hasher = hashlib.sha256()
        for tensor in tensors:
            host = _local(tensor.detach()).cpu().contiguous()
            hasher.update(("%s%s" % (host.dtype, tuple(host.shape))).encode())  # noqa: UP031
            if host.numel():  # without NumPy, elements are only accessible by address
                size = host.numel() * host.element_size()
                hasher.update((ctypes.c_char * size).from_address(host.data_ptr()))
        return hasher.hexdigest()[:16]

    def summaries(self, tensors: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """(norm, sum with fixed signs) by name; a plain number is (its size, itself)."""
        found: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, (int, float)):
                found[name] = (abs(float(tensor)), float(tensor))
            else:
                found[name] = self._summary(_local(tensor.detach()))
        by_device: dict[Any, list[str]] = {}
        for name, value in found.items():
            if not isinstance(value, tuple):
                by_device.setdefault(value.device, []).append(name)
        for names in by_device.values():
            for name, (square, total) in zip(names, self.torch.stack([found[n] for n in names]).tolist()):  # noqa: B905
                found[name] = (square**0.5, total)
        return found

    def _summary(self, tensor: Any) -> Any:
        torch = self.torch
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        flat, sums = tensor.reshape(-1), torch.zeros(2, dtype=torch.float64, device=tensor.device)
        for at in range(0, flat.numel(), CHUNK):
            part = flat[at : at + CHUNK].double()
            sums += torch.stack([part.dot(part), part.dot(self._signs(part))])
        return sums

    def _signs(self, part: Any) -> Any:
        """As many signs as it has elements, always the same ones."""
        known = self.signs.get(part.device)
        if known is None or known.numel() < part.numel():
            places = self.torch.arange(part.numel(), device=part.device, dtype=self.torch.int64)
            known = ((places * 2654435761 >> 13) & 1).double() * 2 - 1
            self.signs[part.device] = known
        return known[: part.numel()]


def _local(tensor: Any) -> Any:
    """This rank's part of a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def tensors_in(given: Any, kind: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(given, kind):
        yield given
    elif depth < 6 and isinstance(given, Mapping):
        for value in given.values():
            yield from tensors_in(value, kind, depth + 1)
    elif depth < 6 and isinstance(given, (list, tuple)):
        for value in given:
            yield from tensors_in(value, kind, depth + 1)


def entries(name: str, state: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a parameter's state as "exp_avg of layer.weight", lists by their places."""
    for key, value in state.items():
        if isinstance(value, (list, tuple)):
            yield from entries(name, {"%s.%d" % (key, at): item for at, item in enumerate(value)}, kind)  # noqa: UP031
        elif isinstance(value, kind) and value.numel() == 1:
            yield "%s of %s" % (key, name), float(value)  # noqa: UP031
        elif isinstance(value, (int, float, kind)):
            yield "%s of %s" % (key, name), value  # noqa: UP031


def numbers(group: Any, kind: Any) -> dict[str, float]:
    """Its numbers by name, tuples by their places."""
    found: dict[str, float] = {}
    for key, value in group.items():
        listed = {key: value}
        if isinstance(value, (list, tuple)) and key != "params":
            listed = {"%s.%d" % (key, at): item for at, item in enumerate(value)}  # noqa: UP031
        for name, item in listed.items():
            if isinstance(item, (int, float)) or (isinstance(item, kind) and item.numel() == 1):
                found[name] = float(item)
    return found
