"""The facts of `gpu.compute`."""

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from preflight.sdk.arithmetic import DeviceKind


class WrongResult(TypedDict):
    """A wrong product or copy."""

    what: str
    peer: str | None
    """The UUID of the other GPU in a P2P copy."""
    elements: int
    of: int
    index: int
    """Position of the first wrong element, row by row."""
    got: float | str
    """Text if it is not a JSON number: nan, inf."""
    expected: float | str


class Repeats(TypedDict):
    """Repeats of one product."""

    digest: str
    """Digest of the first product's bits."""
    repeats: int
    unlike: int
    """How many repeats differ from the first in any bit."""
    elements: int
    """How many elements differ in the worst repeat."""
    of: int


class Facts(TypedDict):
    kind: "DeviceKind"
    uuid: str | None
    """As NVML writes it; None on a CPU."""
    speeds: dict[str, float]
    """TFLOP/s of GEMMs, and GB/s (10^9 bytes) of copies."""
    wrong: list[WrongResult]
    repeats: dict[str, Repeats]
    not_measured: list[str]
    """What this machine does not have, and why."""
    no_memory: NotRequired[list[str]]
    """What was not measured since another GPU's memory is in use."""
    error: str | None
    """CUDA's error, and in which step; nothing was measured after it."""
