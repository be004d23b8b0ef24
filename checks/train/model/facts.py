"""What is measured for a user's model, and what the user asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from preflight.check import UserCode

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import training
    from preflight.train_smoke.user.control import Forward
    from preflight.train_smoke.user.validation import MistakeFacts


class ModelFacts(TypedDict):
    """What a rank has been given to train."""

    layout: str
    """Digest of names, shapes and types of parameters and buffers; the next two: of their values, and of the batch."""
    weights: str
    batch: str
    batch_words: str
    made_up: list[str]
    """What preflight added to what was given, in words."""
    smaller: str
    """How a configuration's model was made smaller, and why."""
    rows: int
    """Rows of the global batch."""
    own: int
    """This rank's rows."""
    seeded: int
    """The seed that the user's function has set; 0 if it has set none."""
    dropped: int
    """Rows that were left out, so that all ranks have equally many."""


UNKNOWN = ModelFacts(
    layout="", weights="", batch="", batch_words="", made_up=[], smaller="", rows=0, own=0, seeded=0, dropped=0
)
"""Of a rank that did not get that far."""


class Facts(ModelFacts):
    mistake: "MistakeFacts | None"
    """Why this rank did not train."""
    skipped: str
    """Why it could not train, though nothing is wrong."""
    traits: dict[str, Any] | None
    """See `user.traits.Traits`."""
    unlike: str
    """The first parameter that differs from the first rank's model."""
    loaded: bool
    """Whether the first rank's weights were loaded on all, since ranks differed."""
    forward: "NotRequired[Forward | None]"
    """What one forward pass of all ranks together exchanged and changed."""
    unused: list[str]
    """Parameters left unchanged, since they get no gradient on some rank."""
    left_out: dict[str, str]
    """{variant that was not run: why}."""
    late: NotRequired[list[str]]
    """Those of them for which there was no time."""
    not_run: dict[str, str]
    """{variant that does not apply to this model: why}: it has no plan, or cannot be split into stages."""
    refused: "dict[str, MistakeFacts]"
    """Variants under which training raised on every rank."""
    steps: int
    """Steps of each training."""
    strategies: "dict[str, training.Facts]"


@dataclass(frozen=True)
class Wanted:
    """What the user wants to run."""

    names: Mapping[str, list[str]]
    """Variants by strategy."""
    asked: bool
    """Whether the user named these strategies."""
    threads: int | None = None
    tp_plan: UserCode | None = None
    tp_ranks: int | None = None
