"""Whether trainings are equal to the last bit, and where they first differ. Names and numbers only; no torch."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypedDict

from preflight.train_smoke.trainer import compare
from preflight.train_smoke.trainer.compare import Curve, Number, Quantity, Spread


class Bits(TypedDict):
    curve: Curve
    tensors: list[tuple[str, str]]
    """A hash of each tensor's bits, by moment and name, in the model's order: ("gradient head.weight", "61cba477")."""


class TrainedTwice(TypedDict):
    """The same training, done twice, that did not give the same bits."""

    once: Bits
    again: Bits
    apart: Spread
    """How far apart the two are."""


class FirstDifference(NamedTuple):
    place: int
    """Its index in the order in which a training makes its values."""
    step: int
    parameter: str | None
    what: str
    """For a sentence: "the loss at step 3 is", or "the bits of head.weight after step 7 are"."""
    measured: str
    expected: str


WORDS: dict[Quantity, str] = {
    "losses": "the loss",
    "own_norms": "the gradient norm of the last part",
    "own_prints": "the signed sum of the last part's gradient",
    "norms": "the gradient norm",
    "prints": "the signed sum of the gradient",
}
"""The quantities of trainings alone, in words."""


def first_difference(measured: Bits, expected: Bits) -> FirstDifference | None:
    """The first value that differs, in the order in which a training makes them; None if all are equal."""
    steps = len(expected["curve"]["losses"])
    tensors = dict(measured["tensors"]), dict(expected["tensors"])
    for number, place in enumerate(_places(steps, {**tensors[1], **tensors[0]})):
        values = place.of(measured["curve"], tensors[0]), place.of(expected["curve"], tensors[1])
        if values[0] != values[1]:
            return FirstDifference(number, place.step, place.parameter, place.what, *_told(*values))
    return None


class _Place(NamedTuple):
    step: int
    what: str
    key: str
    parameter: str | None = None

    def of(self, curve: Curve, tensors: Mapping[str, str]) -> Number | None:
        if self.parameter is not None:
            return tensors.get(self.key)
        values: list[Number] = curve[self.key]  # type: ignore[literal-required]
        return values[self.step] if self.step < len(values) else None


def _places(steps: int, tensors: Iterable[str]) -> Iterator[_Place]:
    def at(moment: str, step: int, text: str) -> Iterator[_Place]:
        for key in tensors:
            made, _, name = key.partition(" ")
            if made == moment:
                yield _Place(step, f"the bits of {text.format(name=name)} are", key, name.partition(" ")[0])

    last = steps - 1
    yield from at("start", 0, "{name} before step 0")
    for step in range(steps):
        for quantity, words in WORDS.items():
            yield _Place(step, f"{words} at step {step} is", quantity)
            if step == 0 and quantity == "losses":
                yield from at("gradient", 0, "the gradient of {name} at step 0")
    yield from at("end", last, f"{{name}} after step {last}")
    yield from at("state", last, f"the optimizer's {{name}} after step {last}")


def _told(measured: Number | None, expected: Number | None) -> tuple[str, str]:
    """Both numbers as text, with as many digits as they need to differ."""
    for digits in (4, 7, 9):
        texts = [_text(number, digits) for number in (measured, expected)]
        if texts[0] != texts[1]:
            break
    return texts[0], texts[1]


def _text(value: Number | None, digits: int) -> str:
    return "missing" if value is None else compare.text(value, digits)
