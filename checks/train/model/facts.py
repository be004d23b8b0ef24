"""What is measured of a user's model, what is asked for, and what ranks agree on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from preflight.check import UserCode

if TYPE_CHECKING:
    from preflight.train_smoke import strategies
    from preflight.train_smoke.user_given import MistakeFacts


class Facts(TypedDict):
    mistake: "MistakeFacts | None"
    """Why this rank did not train."""
    skipped: str
    """Why it could not, though nothing is wrong."""
    layout: str
    """A digest of names, shapes and types of parameters and buffers; the next two of their values, and of the batch."""
    weights: str
    batch: str
    batch_words: str
    traits: dict[str, Any] | None
    """As `user_traits.Traits`."""
    made_up: list[str]
    """What preflight has added to what was given, in words."""
    smaller: str
    """How the model of a configuration was made smaller, and why."""
    rows: int
    """Of the global batch."""
    own: int
    """Of these, this rank's."""
    unlike: str
    """The first parameter that is not as in the first rank's model."""
    loaded: bool
    """Whether the first rank's weights were loaded into all, since they were not the same."""
    unused: list[str]
    """Parameters that were left as they are: on some rank they get no gradient."""
    left_out: dict[str, str]
    """Variants that were not run, and why."""
    not_run: dict[str, str]
    """Variants that this model gives no cause to run, and why: it has no plan, or cannot be cut into stages."""
    refused: "dict[str, MistakeFacts]"
    """Variants under which every rank's training raised."""
    steps: int
    """Of each training."""
    strategies: "dict[str, strategies.Facts]"


@dataclass(frozen=True)
class Wanted:
    """What the user wants to be run."""

    names: Mapping[str, list[str]]
    """Variants by their strategies."""
    asked: bool
    """Whether the user has named these strategies."""
    threads: int | None = None
    tp_plan: UserCode | None = None
    tp_ranks: int | None = None


class Agreement(TypedDict):
    """The first rank's, to all."""

    go: bool
    skipped: str
    loaded: bool
    layout: list[str]
    """Of the first rank's model, where others differ."""
    traits: dict[str, Any] | None
    """The first rank's: rates must be the same on all."""
    unused: list[str]
    """On any rank."""
    step_s: float
    """Forward and backward over all rows, on the slowest rank."""
    left_s: float
    """Of the deadline."""
