"""What is measured of speed on one rank."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from preflight.checks.train.speed.memory_fit import FitFacts
from preflight.checks.train.speed.node_links import NodeRates

if TYPE_CHECKING:
    from preflight.train_smoke.speed.trace import Exposed
    from preflight.train_smoke.speed.training import TimedSteps
    from preflight.train_smoke.trainer.memory import Memory


class StrategySpeed(TypedDict):
    rounds: "list[TimedSteps]"
    """More than one where the first ones showed a straggler: it must be seen again."""
    loss: float | None
    """This rank's, after the steps to warm up; None where it is not finite."""
    gradients: int
    """Bytes that this rank keeps: under DDP all."""
    memory: "Memory"
    exposed: "Exposed"
    throttled: float
    """The share of the periods of the rank's CPU quota that it was used up in: of the round with the least."""


class Facts(TypedDict):
    samples: int
    """A step of this rank."""
    tokens: int
    """In a sample; 0 where it is no text."""
    flops: int
    """Of a step of this rank, in forward and backward."""
    device: str
    autocast: bool
    cores: str
    """On which this rank may run: "0-7"."""
    quota: float | None
    """How many of them it may use, by its cgroups; None: all."""
    solo: "TimedSteps | None"
    """Alone, with no other rank of the node at work: of the first rank of each node."""
    alone: "TimedSteps"
    """Alone, with all other ranks at work."""
    node: "TimedSteps | None"
    """Under the first strategy, with the ranks of the node; where that is not all or one."""
    strategies: dict[str, StrategySpeed]
    clock_mhz: float | None
    """Of the core on which it ran at the end of the first strategy's steps."""
    kernel: str
    """Which one runs here, since when: the same for all containers of a machine."""
    links: NodeRates
    """Between nodes, where communication takes most of a step."""
    not_timed: dict[str, str]
    """Why, by strategy."""
    fit: FitFacts | None
    """Where the user has asked for it."""
    attached: dict[str, str]
    """Files for the report, by name: in base64."""


AllFacts = Mapping[int, Facts]
