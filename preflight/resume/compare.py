"""What of a resumed training departs from one that never stopped, on one rank. Pure."""

import math
from collections.abc import Iterator, Sequence

from preflight.core import words
from preflight.core.rank_ranges import count
from preflight.resume import data
from preflight.resume.control import ROUNDING, Control
from preflight.resume.departure import Departure
from preflight.resume.point import ResumePoint
from preflight.resume.steps import RecordedStep, apart, distances

BFLOAT16, FLOAT16 = 2.0**-8, 2.0**-11
"""The spacing of their numbers, relative."""
RATE = 1e-6
"""Relative, of learning rates: a tensor holds them in float32."""
GRADIENT = 1e-4
"""Relative, of a gradient's norm."""
NAMED = 3


def departures(
    reference: Sequence[RecordedStep], resumed: Sequence[RecordedStep], point: ResumePoint, control: Control
) -> Iterator[Departure]:
    """`reference`: all steps of the training that never stopped."""
    expected = reference[point.after :]
    pairs = [*zip(expected, resumed, strict=False)]
    is_new = bool(pairs[0][0].state) and not pairs[0][1].state
    found = [
        *_weights(point, len(resumed[0].weights)),
        *_state(*pairs[0], control),
        *_buffers(*pairs[0], control),
        *([] if is_new else _options(*pairs[0])),
        *_rates(reference, resumed, point.after, is_new=is_new),
        *data.departures(reference, resumed, point.after),
    ]
    yield from found
    if not found:
        yield from _losses(pairs, point.after, control)


def _weights(point: ResumePoint, known: int) -> Iterator[Departure]:
    if point.others:
        which = words.some(point.others, NAMED)
        text = f"{which}: {len(point.others)} of {count(known, 'parameter')} differ from those after step "
        text += f"{point.after}, the furthest by {point.furthest:.1e} of its size{rounded(point.furthest)}; "
        yield Departure(
            "weights_differ", text + "all others are equal", point.others[0], {"tensors": [*point.others[:1000]]}
        )


def rounded(far: float) -> str:
    """Which type it seems to have been saved in: a difference that is its roundings."""
    for name, spacing in (("float16", FLOAT16), ("bfloat16", BFLOAT16)):
        if spacing / 64 < far < spacing:
            return f", as if saved in {name}"
    return ""


def _state(expected: RecordedStep, resumed: RecordedStep, control: Control) -> Iterator[Departure]:
    missing = [name for name in expected.state if name not in resumed.state]
    far = distances(expected.state, resumed.state)
    differ = {name: apart for name, apart in far.items() if not apart <= control.of_state}
    keys = words.some(dict.fromkeys(name.partition(" of ")[0] for name in (missing or differ)))
    of = count(len(expected.weights), "parameter")
    if missing:
        lost = [*dict.fromkeys(name.partition(" of ")[2] for name in missing)]
        which = "" if len(lost) == len(expected.weights) else f" ({words.some(lost, NAMED)})"
        text = f"{expected.kind} has no {keys} for {len(lost)} of {of}{which}, expected those of the stopped training"
        yield Departure("moments_lost", text, lost[0] if which else "", {"tensors": lost[:1000]})
    if differ:
        names = [*dict.fromkeys(name.partition(" of ")[2] for name in differ)]
        zero = all(not any(resumed.state[name]) for name in differ if not name.startswith("step of "))
        furthest = max(differ.values())
        how = "are zero" if zero else f"differ by up to {furthest:.1e} of their size{rounded(furthest)}"
        text = f"{expected.kind}'s {keys} of {len(names)} of {of} {how} ({words.some(names, NAMED)})"
        yield Departure("moments_differ", text, names[0] if len(names) == 1 else "", {"tensors": names[:1000]})


def _buffers(expected: RecordedStep, resumed: RecordedStep, control: Control) -> Iterator[Departure]:
    far = distances(expected.buffers, resumed.buffers)
    differ = {name: apart for name, apart in far.items() if not apart <= control.of_weights}
    if differ:
        name, furthest = max(differ.items(), key=lambda item: item[1])
        text = f"{words.some(differ, NAMED)}: {len(differ)} of {count(len(far), 'buffer or frozen parameter')} differ, "
        text += f"{name} by {furthest:.1e} of its size"
        yield Departure("buffers_differ", text, name, {"tensors": [*differ][:1000]})


def _options(expected: RecordedStep, resumed: RecordedStep) -> Iterator[Departure]:
    """Of param_groups, all but the learning rate of now."""
    if len(expected.groups) != len(resumed.groups):
        text = f"{count(len(resumed.groups), 'group')} of parameters, expected {len(expected.groups)}"
        yield Departure("options_differ", text)
        return
    for number, (ours, theirs) in enumerate(zip(expected.groups, resumed.groups, strict=True)):
        for name in ours.keys() - {"lr"}:
            if name not in theirs or apart(ours[name], theirs[name]) > RATE:
                now = f"{theirs[name]:g}" if name in theirs else "missing"
                text = f"{name} of group {number} is {now}, expected {ours[name]:g}"
                yield Departure("options_differ", text)


def _rates(
    reference: Sequence[RecordedStep], resumed: Sequence[RecordedStep], after: int, *, is_new: bool
) -> Iterator[Departure]:
    """A scheduler that began anew departs at the second step: the optimizer's checkpoint holds the first rate. In an
    optimizer that was not loaded (`is_new`) a rate departs, too, which is no fault of the scheduler's."""
    pairs = [(a.rates, b.rates) for a, b in zip(reference[after:], resumed, strict=False)]
    wrong = [at for at, (ours, theirs) in enumerate(pairs) if not _equal_rates(ours, theirs)]
    if not wrong:
        return
    at = wrong[0]
    ours, theirs = pairs[at]
    text = f"in step {after + at + 1} it is {_list(theirs)}, expected {_list(ours)}"
    shift = next((by for by in range(1, after + 1) if _is_shifted(reference, resumed, after, at, by)), None)
    if shift == after:
        text += f"; so it was in step {at + 1}: the scheduler began anew"
    elif shift is not None:
        text += f"; so it was {count(shift, 'step')} before: the scheduler is behind"
    elif is_new:
        return
    yield Departure("learning_rate", text)


def _is_shifted(
    reference: Sequence[RecordedStep], resumed: Sequence[RecordedStep], after: int, since: int, by: int
) -> bool:
    """Whether, from the step `since` on, the rates are those of `by` steps before, and these move."""
    places = range(since, min(len(resumed), len(reference) - after))
    return all(_equal_rates(reference[after + at - by].rates, resumed[at].rates) for at in places)


def _equal_rates(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(ours) == len(theirs) and all(apart(a, b) <= RATE for a, b in zip(ours, theirs, strict=True))


def _list(rates: Sequence[float]) -> str:
    return words.some([f"{rate:.4g}" for rate in dict.fromkeys(rates)]) or "not there"


def _losses(pairs: Sequence[tuple[RecordedStep, RecordedStep]], after: int, control: Control) -> Iterator[Departure]:
    """Where nothing else departs. Random numbers that were not restored explain it, if the training draws them."""
    for at, (ours, theirs) in enumerate(pairs):
        far = max(map(apart, ours.losses, theirs.losses), default=0.0)
        is_far = far > control.of_losses or len(ours.losses) != len(theirs.losses)
        if not is_far and apart(ours.gradient, theirs.gradient) <= max(GRADIENT, control.of_losses):
            continue
        numbers = f"{_numbers(theirs)}, expected {_numbers(ours)}"
        where = f"in step {after + at + 1}"
        if ours.random != theirs.random and (ours.draws or theirs.draws):
            text = f"the training draws random numbers (dropout), and its state is another one: {where} {numbers}"
            yield Departure("random_state", f"{text}; the steps after it are not compared")
        elif (scale := _scale(ours, theirs)) is not None:
            yield Departure("loss_scale", f"{where} the loss is {scale:g} times what it was: {numbers}")
        else:
            yield Departure("loss_differs", f"{where} {numbers}; weights, optimizer, rates and batches are equal")
        return


def _numbers(step: RecordedStep) -> str:
    return f"loss {words.some([f'{loss:.6g}' for loss in step.losses], 2) or 'none'}, gradient {step.gradient:.5g}"


def _scale(ours: RecordedStep, theirs: RecordedStep) -> float | None:
    """A gradient scaler's: a power of two, the same for all losses, under equal gradients."""
    if not ours.losses or len(ours.losses) != len(theirs.losses) or not all(ours.losses):
        return None
    ratios = [b / a for a, b in zip(ours.losses, theirs.losses, strict=True)]
    exponent = math.log2(ratios[0]) if ratios[0] > 0 and math.isfinite(ratios[0]) else 0.5
    same = all(apart(ratio, ratios[0]) <= ROUNDING for ratio in ratios)
    is_one = abs(exponent - round(exponent)) < ROUNDING and round(exponent) != 0
    return ratios[0] if same and is_one and apart(ours.gradient, theirs.gradient) <= GRADIENT else None
