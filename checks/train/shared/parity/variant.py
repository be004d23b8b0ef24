"""A variant whose training diverges from the expected one, and how to report it: which ranks to name, and how."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from preflight.check import ranges
from preflight.checks.train.shared.parity.divergence import Divergence, Point, TrainingPair
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Furthest, Limits

Kind = Literal[
    "not_finite", "wrong_start", "wrong_data", "wrong_step", "not_averaged", "not_exchanged", "wrong_exchange",
    "wrong_clip", "out_of_sync", "drift", "unsteady", "model_changed", "missing_collective", "wrong_gradient",
    "other_loss",
]  # fmt: skip
"""Slugs of the codes of parity and model_parallel."""


@dataclass(frozen=True)
class Case:
    """One variant on all ranks, and where it diverges."""

    pairs: Mapping[int, TrainingPair]
    limits: Limits
    divergence: Divergence
    clips: bool
    """Whether the variant clips the gradient."""

    @property
    def point(self) -> Point:
        """The point of the first rank that differs."""
        return self.divergence.first[min(self.divergence.first)]


@dataclass(frozen=True)
class Meaning:
    kind: Kind
    told: str
    """With the measured and the expected value."""
    point: Point
    rank: int | None = None
    """The rank to blame."""
    parameter: str | None = None
    noticed_by: tuple[int, ...] = field(default=())


# Which ranks it names


def blamed(
    case: Case, kind: Kind, why: str, of: Callable[[TrainingPair], str | None] = lambda _: None
) -> Iterator[Meaning]:
    """A meaning per rank that differs first, if these are to blame; else one that blames no rank."""
    if not case.divergence.blamed:
        yield unblamed(case, kind, why, of(case.pairs[min(case.divergence.first)]))
        return
    for rank, point in case.divergence.first.items():
        others = case.divergence.later
        yield Meaning(kind, f"{_told(point, case, rank)}{why}", point, rank, of(case.pairs[rank]), others)


def unblamed(case: Case, kind: Kind, why: str, parameter: str | None = None) -> Meaning:
    rank = min(case.divergence.first)
    differ = f"{len(case.divergence.first):,} of {ranges.count(len(case.pairs), 'rank')} differ there"
    told = f"{_told(case.point, case, rank)}{why} (rank {rank}'s; {differ})"
    return Meaning(kind, told, case.point, None, parameter, case.divergence.ranks)


def named(case: Case, kind: Kind, rank: int, why: str, parameter: str | None) -> Meaning:
    point = case.divergence.first.get(rank, case.point)
    others = tuple(other for other in case.divergence.ranks if other != rank)
    return Meaning(kind, f"{_told(point, case, rank)}{why}", point, rank, parameter, others)


def parameter_of(pair: TrainingPair, moment: compare.Moment) -> str | None:
    furthest = pair.apart["own"].get(moment) or pair.apart["whole"].get(moment)
    return furthest["parameter"].partition(" ")[0] if furthest and furthest["off"] else None


# In words


def _told(point: Point, case: Case, rank: int) -> str:
    """With the measured and the expected value."""
    step, quantity = point.place
    if quantity in ("start", "gradient", "end", "state"):
        return _of_moment(quantity, case.pairs[rank].apart["whole"][quantity], case.limits)
    if quantity == "clipped":
        found = f"clipping finds a gradient norm of {compare.text(point.measured)} at step {step}"
        return f"{found}, expected {compare.text(point.expected)} (to {case.limits.curves:.0e})"
    to = f"{case.limits.curves:.0e}{' of the norm' if quantity in compare.SCALES else ''}"
    is_common = quantity == "losses" and not case.pairs[rank].measured["own_norms"]
    value = f"{'loss' if is_common else compare.NAMES[quantity]} at step {step} is {compare.text(point.measured)}"
    return f"the {value}, expected {compare.text(point.expected)} (to {to})"


def _of_moment(quantity: str, furthest: Furthest, limits: Limits) -> str:
    name, _, kind = furthest["parameter"].partition(" ")
    off = _percent(furthest["off"])
    if quantity == "start":
        return f"{name} starts {off} of its largest element away from where it starts alone, expected no difference"
    if quantity == "end":
        return f"{name} ends {off} of its path away from where it should, expected at most {limits.end:.2g}"
    what = f"gradient of {name} at step 0" if quantity == "gradient" else f"optimizer's {kind} of {name} at the end"
    if isinstance(furthest["off"], str):
        return f"the {what} is {'missing' if off == 'inf' else off}"
    limit = limits.gradient if quantity == "gradient" else limits.state
    return f"the {what} is {off} of its largest element off, expected at most {limit:.1g}"


def _percent(off: compare.Number) -> str:
    return off if isinstance(off, str) else f"{off:.3%}" if off >= 1e-4 else f"{off:.1e}"


def how_far(furthest: Furthest) -> str:
    if furthest["off"] == "inf":
        return f"{furthest['parameter']}'s, which is missing"
    return f"{furthest['parameter']}'s, off by {_percent(furthest['off'])} of its largest element"
