"""Turns three trainings into findings. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.core import rank_ranges
from preflight.core.finding import Reported
from preflight.core.rank_ranges import count
from preflight.resume import codes, compare, point
from preflight.resume.control import Control
from preflight.resume.departure import Departure
from preflight.resume.point import ResumePoint
from preflight.resume.steps import RecordedStep, StepTrace, distances
from preflight.resume.training import TrainingEnd

ERROR = re.compile(r"^(?:\[?\w*rank\d+\]?:?\s*)*((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)\b.*)")
LAUNCHERS_OWN = ("ChildFailedError", "SignalException")
LAST_LINES = 5
OF_LOSS = ("loss_differs", "random_state", "loss_scale")
"""Found where nothing else departs on the rank."""
EQUAL = 1e-3
"""How near weights are that are those of a step but for a rounding."""


@dataclass(frozen=True)
class Judged:
    findings: list[Reported]
    after: int | None = None
    """The steps that were done at the point of resume."""


def unfinished(name: str, ended: TrainingEnd, expected: int) -> Reported | None:
    """Why a training that should have waited after `expected` steps has not come so far."""
    done = ended.trace.length
    if ended.held:
        return None
    if ended.trace.not_recorded:
        return _reported("not_seen", f"{name}: its steps could not be recorded: {ended.trace.not_recorded}", "error")
    if not done and (ended.out_of_time or ended.code == 0):
        return _reported("no_steps", f"{name}: no optimizer step {_ending(ended)}")
    if ended.out_of_time:
        text = f"{name}: {count(done, 'step')} {_ending(ended)}, expected {expected}"
        return _reported("deadline", text)
    text = f"{name} {_ending(ended)} after {count(done, 'step')}, expected {expected}"
    return _reported("training_failed", text + _why(ended), output=ended.last_lines)


def _ending(ended: TrainingEnd) -> str:
    return f"in {ended.seconds:.0f} s" if ended.out_of_time else f"ended with exit code {ended.code}"


def _why(ended: TrainingEnd) -> str:
    """The last error of its output."""
    found = [match[1] for line in ended.last_lines if (match := ERROR.match(line))]
    found = [line for line in found if not any(own in line for own in LAUNCHERS_OWN)]
    return f": {found[-1][:300]}" if found and ended.code else ""


def resumed(reference: StepTrace, stopped_at: int, saved: int | None, ended: TrainingEnd, control: Control) -> Judged:
    """`stopped_at`: the step after which the training was stopped; `saved`: its first checkpoint, if one was seen."""
    trace = ended.trace
    if not trace.length:
        if ended.out_of_time:
            return Judged([_reported("deadline", f"the resumed training: no step {_ending(ended)}")])
        text = f"the resumed training {_ending(ended)} before its first step{_why(ended)}"
        return Judged([_reported("resume_failed", text, output=ended.last_lines)])
    rank = min(trace.ranks)
    first, steps = trace.ranks[rank][0], reference.ranks.get(rank, ())
    where = point.find(first, steps, control)
    if where is None:
        after, far = point.nearest(first, steps)
        text = f"no parameter is as it was after any of {count(len(steps), 'step')}; nearest is step {after}, "
        return Judged([_reported("weights_differ", f"{text}the furthest by {far:.1e} of its size{_hint(far)}")])
    if where.after == 0 and not _is_at_start(steps, control):
        text = f"its weights are those before step 1, expected those of a checkpoint before step {stopped_at + 1}; "
        text += f"the first save was after step {saved}" if saved else "no torch.save was seen before the stop"
        return Judged([_reported("not_resumed", text)], 0)
    return Judged([*_compared(reference, trace, where, control), *_not_seen(reference)], where.after)


def _hint(far: float) -> str:
    return compare.rounded(far) if far < EQUAL * 8 else ""


def _is_at_start(steps: Sequence[RecordedStep], control: Control) -> bool:
    """Whether the training does not move its weights at all: there is no telling where it went on."""
    return all(
        far <= control.of_weights for step in steps for far in distances(steps[0].weights, step.weights).values()
    )


def _compared(reference: StepTrace, trace: StepTrace, where: ResumePoint, control: Control) -> Iterator[Reported]:
    by_departure: dict[tuple[str, str], list[tuple[int, Departure]]] = {}
    if trace.ranks.keys() != reference.ranks.keys():
        text = f"{count(len(trace.ranks), 'rank')} did steps, and {len(reference.ranks)} before"
        yield _reported("not_seen", text, not_measured=True)
    for rank in sorted(trace.ranks.keys() & reference.ranks.keys()):
        of_rank = where if rank == min(trace.ranks) else _beside(reference, trace, rank, where, control)
        for found in compare.departures(reference.ranks[rank], trace.ranks[rank], of_rank, control):
            by_departure.setdefault((found.slug, found.text), []).append((rank, found))
    if any(slug not in OF_LOSS for slug, _ in by_departure):  # a rank that departs takes the others' gradients with it
        by_departure = {key: group for key, group in by_departure.items() if key[0] not in OF_LOSS}
    for group in by_departure.values():
        yield _of_ranks(group, len(trace.ranks))


def _beside(reference: StepTrace, trace: StepTrace, rank: int, where: ResumePoint, control: Control) -> ResumePoint:
    """Of another rank: the same step, with its own parameters that differ."""
    far = distances(reference.ranks[rank][where.after].weights, trace.ranks[rank][0].weights)
    others = {name: apart for name, apart in far.items() if not apart <= control.of_weights}
    return ResumePoint(where.after, tuple(sorted(others)), max(others.values(), default=0.0))


def _of_ranks(group: list[tuple[int, Departure]], world: int) -> Reported:
    ranks, first = [rank for rank, _ in group], group[0][1]
    where: dict[str, object] = {"parameter": first.parameter} if first.parameter else {}
    text = first.text
    if len(ranks) < world:
        text = f"{rank_ranges.ranks(ranks)}: {text}"
        where |= {"rank": ranks[0]} if len(ranks) == 1 else {}
    return _reported(first.slug, text, where=where, evidence=first.evidence)


def _not_seen(reference: StepTrace) -> Iterator[Reported]:
    steps = [step for of_rank in reference.ranks.values() for step in of_rank]
    if not any(step.batches for step in steps):
        yield _reported(
            "not_seen", "no torch module was called with a tensor: the data is not compared", not_measured=True
        )
    if not any(step.losses for step in steps):
        yield _reported("not_seen", "no backward was seen: the loss is not compared", not_measured=True)


def not_repeatable(control: Control) -> Reported:
    text = f"the same command, twice from the start, is not the same training: {control.why_not}"
    return _reported("not_repeatable", text)


def _reported(
    slug: str,
    text: str,
    severity: str = "",
    *,
    where: Mapping[str, object] | None = None,
    evidence: Mapping[str, object] | None = None,
    output: Sequence[str] = (),
    not_measured: bool = False,
) -> Reported:
    code = codes.by_slug()[slug]
    severity = severity or codes.SEVERITIES.get(code, "fail")
    return Reported(
        severity=severity,
        code=f"{codes.FAMILY}.{slug}",
        message=text,
        where=dict(where or {}),
        evidence={**(evidence or {}), **({"output": [*output[-LAST_LINES:]]} if output else {})},
        fix=code.fix,
        action="none" if severity == "info" else code.action,
        not_measured=not_measured,
    )
