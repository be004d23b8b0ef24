"""Whether a library's random generator is seeded the same on all ranks, differently on each, or differently on some."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

from preflight.check import Vote, ranges, vote


class Seeded(TypedDict):
    """A library's generator on one rank, after the user's function."""

    seed: int | None
    """The seed, if the library tells it, as torch does."""
    state: str
    """A digest of the state."""
    changed: bool
    """Whether the function seeded it (torch), or at least drew from it (Python, NumPy)."""
    undrawn: bool
    """Whether it is known that nothing was drawn since it was seeded."""


@dataclass(frozen=True)
class Odd:
    """Ranks on which a generator is seeded differently than on most."""

    ranks: tuple[int, ...]
    certain: bool
    """Whether the seed is known to differ; else it may be the same, with more drawn since."""
    text: str
    """What was found and what was expected, for a sentence."""


def seeds(states: Mapping[int, Seeded]) -> Vote[int | str]:
    """The seeds, or the states if seeds are unknown."""
    return vote({rank: state["state"] if state["seed"] is None else state["seed"] for rank, state in states.items()})


def odd(library: str, states: Mapping[int, Seeded]) -> Iterator[Odd]:
    """Odd ranks. None if all are the same, or all different: both are sound. `states`: by rank."""
    counted = seeds(states)
    if counted.decided and not counted.unanimous:
        yield from _but_on_some(library, states, counted)
        return
    seeded = [
        rank for rank, state in states.items() if state["changed"] and (state["seed"] is not None or state["undrawn"])
    ]
    left = [rank for rank, state in states.items() if not state["changed"]]
    if seeded and left:
        fewer = min(seeded, left, key=len) if len(seeded) != len(left) else [*seeded, *left]
        yield Odd(tuple(fewer), True, f"{library} is seeded on {ranges.ranks(seeded)}, and not on {ranges.ranks(left)}")


def _but_on_some(library: str, states: Mapping[int, Seeded], counted: "Vote[int | str]") -> Iterator[Odd]:
    most, among = states[counted.ranks_of[counted.usual][0]], counted.share()
    ranks: dict[tuple[bool, str], list[int]] = {}
    for rank, _ in counted.odd():
        state = states[rank]
        if not state["changed"]:
            certain, sentence = True, f"{library} is not seeded on {{ranks}}, expected it as on {among}"
        elif state["seed"] is not None:
            certain, sentence = (
                True,
                f"{library} is seeded {state['seed']} on {{ranks}}, expected {most['seed']} as on {among}",
            )
        elif state["undrawn"] and most["undrawn"]:
            certain, sentence = True, f"{library} is seeded differently on {{ranks}} than on {among}, expected the same"
        else:
            certain = False
            sentence = f"{library} is seeded differently on {{ranks}} than on {among}, or has drawn differently since"
        ranks.setdefault((certain, sentence), []).append(rank)
    for (certain, sentence), of in ranks.items():
        yield Odd(tuple(of), certain, sentence.format(ranks=ranges.ranks(of)))


def describe(states: Mapping[int, Seeded]) -> str:
    """ "seeded 42", "not seeded", "seeded with 4 seeds": after the library's name."""
    counted = seeds(states)
    if not any(state["changed"] for state in states.values()):
        return "not seeded"
    if not all(state["changed"] for state in states.values()):
        return "not seeded on all"
    if counted.unanimous:
        return f"seeded {counted.usual}" if isinstance(counted.usual, int) else "seeded the same"
    if isinstance(counted.usual, int):
        return f"seeded with {len(counted.ranks_of)} seeds"
    return "seeded differently"
