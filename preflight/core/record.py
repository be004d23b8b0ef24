"""What a check says of one rank's facts to other runs: what the machine has, and how fast it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("variable", "software", "driver", "clock", "link", "hardware", "limit")
"""Of traits, the likeliest cause of another speed first."""


@dataclass(frozen=True)
class Trait:
    """What should be the same tomorrow: it is told where two runs differ in it."""

    kind: str
    """One of KINDS."""
    name: str
    value: str
    gpu: str = ""
    """The UUID of the GPU that has it; without one it is the node's."""


@dataclass(frozen=True)
class Figure:
    """How fast something was."""

    name: str
    """ "16 MiB fp32 busbw"."""
    value: float
    unit: str
    gpu: str = ""
    """As of a trait."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For Prometheus: message_size, dtype."""
    less_is_better: bool = False
    least: float | None = None
    """The share of it that a sound machine keeps from run to run, which judges it; None: it is shown only."""


def traits(kind: str, values: Mapping[str, object], gpu: str = "") -> list[Trait]:
    """One for each value that is known."""
    return [Trait(kind, name, str(value), gpu) for name, value in values.items() if value not in (None, "")]
