"""What came of each variant that ranks have begun together, and of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import training
    from preflight.train_smoke.user.control import Forward
    from preflight.train_smoke.user.validation import MistakeFacts


class VariantName(NamedTuple):
    strategy: str
    variant: str

    def __str__(self) -> str:
        return f"{self.strategy}/{self.variant}"


@dataclass(frozen=True)
class TrainedVariant:
    name: VariantName
    facts: "training.Facts"


@dataclass(frozen=True)
class NotRunVariant:
    """It does not apply to this model, and was not asked for."""

    name: VariantName
    reason: str


@dataclass(frozen=True)
class RefusedVariant:
    """Training raised on every rank."""

    name: VariantName
    mistake: "MistakeFacts"


@dataclass(frozen=True)
class LateVariant:
    """There was no time for it."""

    name: VariantName


VariantOutcome = TrainedVariant | NotRunVariant | RefusedVariant | LateVariant


@dataclass(frozen=True)
class JointTraining:
    """What came of the strategies, on one rank. Empty if ranks did not train together."""

    loaded: bool = False
    """Whether the first rank's weights were loaded on all, since ranks differed."""
    unused: Sequence[str] = ()
    """Parameters left unchanged, since they get no gradient on some rank."""
    steps: int = 0
    """Steps of each training."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """{variant that cannot be compared: why}."""
    late: Mapping[str, str] = field(default_factory=dict)
    """{variant for which the plan has no time: why}."""
    outcomes: Sequence[VariantOutcome] = ()
    skipped: str = ""
    """Why it ended early, though nothing is wrong."""
    forward: "Forward | None" = None
    """What one forward of all ranks together did; None if it raised."""
