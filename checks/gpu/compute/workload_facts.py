"""What an exercise of a device leaves behind: the facts of `gpu.compute`."""

from typing import TypedDict


class DeviceKind(TypedDict):
    """All that decides which bits a sum rounds to. Devices of equal kind owe each other equal bits and speeds."""

    type: str
    """cuda or cpu."""
    name: str
    capability: str
    units: int
    """Multiprocessors; 0 on a CPU."""
    driver: str | None
    torch: str
    cuda: str | None
    blas: str | None
    """The version of cuBLAS that is loaded."""
    settings: list[str]
    """Variables that choose other arithmetic: "NVIDIA_TF32_OVERRIDE=1"."""


class WrongResult(TypedDict):
    """A product or a copy that is not what it must be."""

    what: str
    peer: str | None
    """The UUID of the other GPU of a P2P copy."""
    elements: int
    of: int
    index: int
    """Of the first wrong element, counted row by row."""
    got: float | str
    """Text where it is no JSON number: nan, inf."""
    expected: float | str


class Repeats(TypedDict):
    """One product, computed again and again."""

    digest: str
    """Of the first one's bits."""
    repeats: int
    unlike: int
    """Of the repeats: those that differ from the first in any bit."""
    elements: int
    """That differ in the worst of them."""
    of: int


class Facts(TypedDict):
    kind: DeviceKind
    uuid: str | None
    """As NVML writes it; None on a CPU."""
    speeds: dict[str, float]
    """TFLOP/s of GEMMs, and GB/s (10^9 bytes) of copies."""
    wrong: list[WrongResult]
    repeats: dict[str, Repeats]
    not_measured: list[str]
    """What, and why."""
    error: str | None
    """What CUDA answered, and to what; nothing was measured after it."""
