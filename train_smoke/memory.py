"""What a training takes at its peak, over what was taken before it."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TypedDict

import torch

MIB = 2**20


class Memory(TypedDict):
    """Bytes of one rank. The peaks are those of forward, backward and step, over what was taken before the model was
    wrapped; None where they cannot be known."""

    held: int
    """Of parameters, gradients and optimizer state between steps."""
    allocated: int | None
    """Of the GPU's memory, by tensors (torch.cuda.max_memory_allocated)."""
    reserved: int | None
    """Of the GPU's memory, by torch's allocator."""
    resident: int | None
    """Of the process, without a GPU (VmHWM of /proc/self/status), to a MiB. It is a rough one: the heap keeps pages
    that were freed, and one training takes what another one has left."""


class PeakWatch:
    """Watches the peak while it is on: what is gathered to be compared is not counted."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._peaks: dict[str, int] = {}
        if not self._cuda:
            _give_back_free_pages()
        self._before = self._now(peak=False)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self._reset()
        yield
        for kind, value in self._now(peak=True).items():
            self._peaks[kind] = max(self._peaks.get(kind, 0), value)

    def memory(self, held: int) -> Memory:
        over = {kind: max(0, value - self._before[kind]) for kind, value in self._peaks.items() if kind in self._before}
        return Memory(
            held=held,
            allocated=over.get("allocated"),
            reserved=over.get("reserved"),
            resident=round(over["resident"] / MIB) * MIB if "resident" in over else None,
        )

    def _reset(self) -> None:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the kernel's proc(5): the peak becomes what is resident now

    def _now(self, *, peak: bool) -> dict[str, int]:
        if self._cuda:
            cuda = torch.cuda
            if peak:
                allocated, reserved = cuda.max_memory_allocated, cuda.max_memory_reserved
            else:
                allocated, reserved = cuda.memory_allocated, cuda.memory_reserved
            return {"allocated": allocated(self._device), "reserved": reserved(self._device)}
        with contextlib.suppress(OSError), open("/proc/self/status") as file:
            lines = dict(line.split(":", 1) for line in file if line.startswith("Vm"))
            return {"resident": int(lines["VmHWM" if peak else "VmRSS"].split()[0]) * 1024}
        return {}


def _give_back_free_pages() -> None:
    """Of the C library's heap to the kernel, or a training before would hide this one's. musl has no such call."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
