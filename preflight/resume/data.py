"""Whether a resumed training reads on where the stopped one was, by digests of its batches. Pure."""

from collections.abc import Iterator, Sequence

from preflight.core.rank_ranges import count
from preflight.resume.departure import Departure
from preflight.resume.steps import RecordedStep


def departures(reference: Sequence[RecordedStep], resumed: Sequence[RecordedStep], after: int) -> Iterator[Departure]:
    """`after`: steps done at the point of resume."""
    ours, theirs = [step.batches for step in reference], [step.batches for step in resumed]
    expected = ours[after:]
    wrong = [at for at, (a, b) in enumerate(zip(expected, theirs, strict=False)) if a != b]
    if not wrong:
        return
    first, batches = wrong[0], theirs[wrong[0] :]
    place = next((at for at in range(len(ours)) if _is_run(ours, at, batches)), None)
    number = after + first + 1
    if place is not None and place < after + first:
        what = "the data began anew" if not place else f"it reads again from step {place + 1} on"
        text = f"step {number} trains the batch of step {place + 1}: {what}, and "
        yield Departure("data_repeats", f"{text}what {count(after + first - place, 'step')} trained is trained twice")
    elif place is not None:
        text = f"step {number} trains the batch of step {place + 1}: "
        yield Departure("data_skips", f"{text}the data of {count(place - after - first, 'step')} is left out")
    else:
        known = {batch for step in ours[:after] for batch in step}
        again = sum(batch in known for step in batches for batch in step)
        seen = f"{again} of {sum(map(len, batches))} were trained before the stop" if again else "none was seen before"
        yield Departure(
            "data_differs",
            f"from step {number} on its batches are others than those of the training that never stopped; {seen}",
        )


def _is_run(ours: Sequence[tuple[str, ...]], place: int, batches: Sequence[tuple[str, ...]]) -> bool:
    """Whether the batches stand there one after another, as far as the training that never stopped went."""
    beside = ours[place : place + len(batches)]
    return bool(beside) and all(a == b for a, b in zip(beside, batches, strict=False))
