"""What a check keeps of one rank's facts to compare runs: what the machine has, and how fast it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BASELINE = "preflight.baseline"
"""The id of the facts that hold the figures of the run of `--baseline REPORT`, so that a report can be judged again
without it."""
KINDS = ("variable", "software", "driver", "clock", "link", "hardware", "limit")
"""Kinds of traits, the likeliest cause of a change in speed first."""


@dataclass(frozen=True)
class Trait:
    """Something that should be the same tomorrow: a difference between two runs is reported."""

    kind: str
    """One of KINDS."""
    name: str
    value: str
    gpu: str = ""
    """The UUID of the GPU that has it; "" if it is the node's."""


@dataclass(frozen=True)
class Figure:
    """How fast something was."""

    name: str
    """ "16 MiB fp32 busbw"."""
    value: float
    unit: str
    gpu: str = ""
    """As in `Trait`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For Prometheus: message_size, dtype."""
    less_is_better: bool = False
    least: float | None = None
    """The share of it that a sound machine reaches in every run: less is a finding. None: it is only shown."""


def traits(kind: str, values: Mapping[str, object], gpu: str = "") -> list[Trait]:
    """One trait for each value that is known."""
    return [Trait(kind, name, str(value), gpu) for name, value in values.items() if value not in (None, "")]
