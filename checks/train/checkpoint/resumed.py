"""What a checkpoint did not restore, on which ranks, and what it means."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from preflight.check import Code, Finding, Run, ranges, words
from preflight.checks.train.checkpoint.folder import NO_ROOM
from preflight.train_smoke.checkpoint.names import CHECKPOINTS, INTO
from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Spread

if TYPE_CHECKING:
    from preflight.train_smoke.checkpoint.compare import Difference
    from preflight.train_smoke.checkpoint.run import Resumed, Saved

DAMAGED = Code(
    "A file of a checkpoint is not what was written.",
    fix="Do not trust this storage with checkpoints: write twice and compare; check its server, its client's cache "
    "options (findmnt) and dmesg. Load with weights_only=True, and keep an older checkpoint.",
)
REFUSED = Code(
    "A checkpoint cannot be saved or loaded.",
    fix="See the message; --set train.checkpoint.forms=... runs one form alone, --report DIR keeps the ranks' logs.",
)
WRONG_WEIGHTS = Code(
    "Weights or buffers are not what was saved.",
    fix="Do not resume here: look for what changes torch's saving or loading (a patched torch, a hook, strict=False), "
    "then for the storage.",
)
WRONG_OPTIMIZER = Code(
    "The optimizer's moments or step counts are not what was saved.",
    fix="Save and load the optimizer with the model, by torch.distributed.checkpoint.state_dict's get_state_dict and "
    "set_state_dict if ranks or strategy change; look for what patches them.",
)
LOST_PROGRESS = Code(
    "The step count or the learning-rate schedule starts over.",
    fix="Save the scheduler's state_dict() and the step, and load them after the optimizer; do not rebuild the "
    "scheduler after loading.",
)
LOST_RANDOM = Code(
    "The random state is not what was saved.",
    fix="Save torch.get_rng_state() (and the GPU's) of each rank, and set it after everything that draws or seeds.",
)
UNTIED = Code(
    "The checkpoint has different values for two names of one parameter.",
    fix="Save a tied parameter under one name, or both names from the same tensor: which value wins is chance.",
)
DRIFT = Code(
    "All that was saved was restored, but training continues differently.",
    fix="Look for state outside the checkpoint: a hook, a buffer with persistent=False, a cache, a patched torch.",
)
NO_DCP = Code(
    "Checkpoints with torch.distributed.checkpoint and of FSDP were not tried: NumPy is missing.",
    fix="pip install numpy on all nodes, if your job saves this way: without it rank 0 raises while saving, and the "
    "other ranks wait in a collective.",
)
NOT_MADE = Code(
    "A form of checkpoint that was asked for was not made.",
    fix="See the message; --checkpoint DIR names a folder that all nodes share.",
)
NEEDS_NUMPY = "torch needs NumPy for it, which some rank does not have"
BY_KIND: Mapping[str, Code] = {
    "tie": UNTIED, "weights": WRONG_WEIGHTS, "buffers": WRONG_WEIGHTS, "moments": WRONG_OPTIMIZER,
    "optimizer step": WRONG_OPTIMIZER, "step": LOST_PROGRESS, "schedule": LOST_PROGRESS, "rate": LOST_PROGRESS,
    "random": LOST_RANDOM,
}  # fmt: skip
"""In the order in which causes are reported."""
FULL = ("No space left", "Disk quota exceeded", "File too large")


@dataclass(frozen=True)
class Told:
    """One fault with one checkpoint."""

    code: Code
    rank: int | None
    text: str
    """The message."""
    case: str
    """Which checkpoint, and into what it was loaded."""
    where: Mapping[str, Any] = field(default_factory=dict)
    noticed_by: tuple[int, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def is_of(self, other: "Told") -> bool:
        """Whether both are the same fault."""
        alike = (self.code, self.rank, self.where.get("file")) == (other.code, other.rank, other.where.get("file"))
        return alike and (self.code is not REFUSED or self.text == other.text)


AllSaved = Mapping[int, "Mapping[str, Saved]"]
"""By rank, then by name of the checkpoint."""


def judge(saved: AllSaved, spreads: Sequence[Spread], path: str, run: Run) -> Iterator[Finding]:
    """Reports a fault that several checkpoints show once, for the first. `path`: the folder."""
    listed: list[Told] = []
    for told in _all(saved, spreads):
        same = next((place for place, known in enumerate(listed) if known.is_of(told)), None)
        if same is None:
            listed.append(told)
        elif told.case not in (listed[same].case, *listed[same].also):
            listed[same] = replace(listed[same], also=(*listed[same].also, told.case))
    for told in listed:
        where = run.job.where(told.rank) if told.rank is not None else {}
        where |= {"file": path} if told.code is NO_ROOM else {}
        also = f"; the same with {words.some(told.also)}" if told.also else ""
        yield told.code.fail(
            f"{told.case}: {told.text}{also}", noticed_by=told.noticed_by, evidence=told.evidence, **told.where, **where
        )


def judge_left_out(left_out: Mapping[str, str], without: Sequence[int], of: int, *, is_used: bool) -> Iterator[Finding]:
    """Forms that could not be made. `without`: the ranks that lack NumPy; `of`: number of ranks; `is_used`: the user
    saves checkpoints in this way, or may."""
    names = [name for name in CHECKPOINTS if left_out.get(name) == NEEDS_NUMPY]
    if names:
        all_lack = len(without) == of
        who = "is not installed" if all_lack else f"{ranges.ranks(without)} of {of} cannot use, expected it on all"
        say = NO_DCP.warn if is_used else NO_DCP.not_measured
        yield say(f"{words.some(names)} not made: torch needs NumPy for it, which {who}")


def judge_asked(left_out: Mapping[str, str]) -> Iterator[Finding]:
    """Forms that the user asked for, and that cannot be made here. (By default they do not belong to the check.)"""
    others = {name: why for name, why in left_out.items() if why != NEEDS_NUMPY}
    if others:
        yield NOT_MADE.not_measured(f"not made, though asked for: {left_out_in_words(others)}")


def left_out_in_words(left_out: Mapping[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())


def _all(saved: AllSaved, spreads: Sequence[Spread]) -> Iterator[Told]:
    first = saved[min(saved)] if saved else {}
    limit = compare.limits(spreads).curves
    for name in _names(first):
        own = {rank: its[name] for rank, its in saved.items()}
        failed = {rank: its["error"] for rank, its in own.items() if its["error"]}
        if failed:
            yield from _refused(failed, name, "saving", len(own))
            continue
        for target in (target for target in INTO if target in own[min(own)]["into"]):
            resumed = {rank: its["into"][target] for rank, its in own.items() if target in its["into"]}
            case = f"{name} into {INTO[target]}"
            if problems := [*_of_resumed(resumed, case)]:
                yield from problems
            else:
                yield from _drifted({rank: own[rank]["curve"] for rank in resumed}, resumed, case, limit)


def _names(saved: "Mapping[str, Saved]") -> Iterable[str]:
    """Names in the order in which they ran; JSON keeps none."""
    return [name for name in CHECKPOINTS if name in saved]


def _refused(failed: Mapping[int, str], case: str, what: str, ranks: int) -> Iterator[Told]:
    """Groups errors by their text. Blames no rank for what all raise, nor rank 0 for what it does alone."""
    alike: dict[str, list[int]] = {}
    for rank, text in failed.items():
        if "rank 0 could not" not in text or len(failed) == 1:
            alike.setdefault(text, []).append(rank)
    for text, who in alike.items():
        code = NO_ROOM if any(said in text for said in FULL) else REFUSED
        odd = who[0] if len(who) == 1 and ranks > 1 else None
        on = f" on {ranges.ranks(who)}" if len(who) < ranks else ""
        yield Told(code, odd, f"{what} it raised {text}{on}, expected it to work", case)


def _of_resumed(resumed: "Mapping[int, Resumed]", case: str) -> Iterator[Told]:
    """Causes before consequences: files, then torch's errors about them, then what was restored."""
    errors = {rank: own["error"] for rank, own in resumed.items() if own["error"]}
    damaged = {damage["file"]: (rank, damage["told"]) for rank, own in resumed.items() for damage in own["damaged"]}
    if damaged:
        for file, (rank, told) in damaged.items():
            raised = f"; loading it raised {next(iter(errors.values()))}" if errors else ""
            text = f"{file}, written by rank {rank}, {told}{raised}"
            yield Told(DAMAGED, None, text, case, {"file": file}, tuple(sorted(errors)))
    elif errors:
        yield from _refused(errors, case, "loading", sum(not own["idle"] for own in resumed.values()))
    else:
        kinds = {difference["kind"] for own in resumed.values() for difference in own["differences"]}
        for kinds_of in _by_code(kinds):
            yield from _differ(resumed, case, kinds_of)


def _by_code(kinds: Iterable[str]) -> list[list[str]]:
    """Groups of kinds that one code covers, in order of causes. If a tie is broken, the weight is a consequence."""
    found: dict[int, list[str]] = {}
    for kind, code in BY_KIND.items():
        if kind in kinds:
            found.setdefault(id(code), []).append(kind)
    return list(found.values())[: 1 if "tie" in kinds else None]


def _differ(resumed: "Mapping[int, Resumed]", case: str, kinds: Sequence[str]) -> Iterator[Told]:
    code = BY_KIND[kinds[0]]
    of_rank = {
        rank: [difference for difference in own["differences"] if difference["kind"] in kinds]
        for rank, own in resumed.items()
        if not own["idle"]
    }
    seen = [rank for rank, own in of_rank.items() if own]
    guilty = [rank for rank in seen if any(difference["own"] != 0.0 for difference in of_rank[rank])] or seen
    odd = guilty if 2 * len(guilty) < len(of_rank) else [None]
    for rank in odd:
        some = of_rank[guilty[0] if rank is None else rank]
        first = next((difference for difference in some if difference["own"] != 0.0), some[0])
        parameter = {"parameter": first["name"].partition(" ")[0]} if _is_of_parameter(first) else {}
        noticed = tuple(other for other in seen if other != rank)
        evidence = {"differences": [dict(difference) for difference in some[:6]]}
        yield Told(code, rank, _in_words(first, some, rank), case, parameter, noticed, evidence)


def _is_of_parameter(difference: "Difference") -> bool:
    return difference["kind"] in ("weights", "buffers", "moments", "tie")


def _in_words(first: "Difference", some: Sequence["Difference"], rank: int | None) -> str:
    share = first["share"] if rank is None or first["own"] is None else first["own"]
    piece = "" if rank is None or first["own"] is None else " of this rank's piece"
    part = f"in {share:.3g} of its elements{piece}" if 0 < share < 1 or piece else ""
    names = dict.fromkeys(difference["name"] for difference in some)
    more = f" (and {ranges.count(len(names) - 1, 'other')})" if len(names) > 1 else ""
    was = "the saved value" if first["was"] == "as it was" else first["was"]
    return f"{first['name']}{more} is {first['now']}{f' {part}' if part else ''} after loading, expected {was}"


def _drifted(
    curves: Mapping[int, Sequence[Mapping[str, compare.Number]]], resumed: "Mapping[int, Resumed]", case: str,
    limit: float,
) -> Iterator[Told]:  # fmt: skip
    for rank, own in resumed.items():
        for step, (was, now) in enumerate(zip(curves[rank], own["curve"], strict=False)):
            for what, value in now.items():
                off = compare.difference(value, was[what], was["norm"] if what == "print" else None)
                if off > limit or math.isnan(off):
                    text = (
                        f"{NAMES[what]} of step {step} after loading is {compare.text(value)}, expected "
                        f"{compare.text(was[what])} as without a stop ({off:.1e} apart, at most {limit:.1e})"
                    )
                    yield Told(DRIFT, None, text, case, {"step": step}, tuple(sorted(resumed)))
                    return


NAMES = {"loss": "the loss", "norm": "the gradient norm", "print": "the signed sum of the gradient"}


def summarize(saved: AllSaved, spreads: Sequence[Spread]) -> str:
    """ "fsdp2/dcp, ddp/full and 2 more, loaded 7 times: equal to the last bit, then as without a stop to 3e-07"."""
    some = saved[min(saved)]
    names = list(_names(some))
    loads = sum(len(own["into"]) for own in some.values())
    told = f"{words.some(names, 3)} loaded {ranges.count(loads, 'time')}"
    if [*_all(saved, spreads)]:
        return told
    apart = [
        compare.difference(now[what], was[what], was["norm"] if what == "print" else None)
        for own in some.values()
        for into in own["into"].values()
        for was, now in zip(own["curve"], into["curve"], strict=False)
        for what in now
    ]
    return f"{told}: equal to the last bit, then as without a stop to {max(apart, default=0.0):.0e}"
