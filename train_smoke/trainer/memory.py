"""The peak memory of a training, above what was in use before it, and whether memory has run out."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TypedDict

import torch

MIB = 2**20


class Memory(TypedDict):
    """Bytes of one rank. The peaks are those of forward, backward and step, above what was in use before the model was
    wrapped; None if they are not known."""

    held: int
    """Parameters, gradients and optimizer state between steps."""
    allocated: int | None
    """GPU memory used by tensors (torch.cuda.max_memory_allocated)."""
    reserved: int | None
    """GPU memory reserved by torch's allocator."""
    resident: int | None
    """The process's memory if there is no GPU (VmHWM of /proc/self/status), to a MiB. A rough value: the heap keeps
    freed pages, and one training reuses what another has left."""


class PeakWatch:
    """Watches the peak while it is on, so that what is gathered for comparison does not count."""

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
    """Returns free heap pages to the kernel: an earlier training would hide this one's peak. musl has no such call."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one of its causes, says that memory has run out."""
    raised: BaseException | None = error
    for _ in range(10):  # exceptions may name each other in a ring
        if isinstance(raised, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(raised, RuntimeError) and "can't allocate memory" in str(raised):
            return True
        raised = raised and (raised.__cause__ or raised.__context__)
    return False
