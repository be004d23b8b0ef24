"""Whether a checkpoint fits a model, by names, shapes and tied tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.checkpoint import names
from preflight.checkpoint.contents import Flaw, SavedTensor
from preflight.core import words
from preflight.core.rank_ranges import count


@dataclass(frozen=True)
class ModelShapes:
    """What a model's state_dict holds."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: Sequence[Sequence[str]]
    """Groups of names of the same tensor."""

    def partners(self, name: str) -> list[str]:
        return [other for group in self.tied if name in group for other in group if other != name]


def flaws(
    saved: Sequence[SavedTensor], model: ModelShapes, differ: Callable[[str, str], bool | None]
) -> Iterator[Flaw]:
    """`differ`: whether two saved tensors hold different elements."""
    by_name = {tensor.name: tensor for tensor in saved}
    start = names.section(by_name, model.shapes)
    held = names.under(by_name, start)
    expected = {names.bare(name): name for name in model.shapes}
    both = [name for name in expected if name in held]
    if not both:
        has, wants = words.some(list(by_name), 2) or "nothing", words.some(list(model.shapes), 2)
        yield Flaw("no_fit", "", f"none of the model's {count(len(expected), 'name')} ({wants}) is in it; it has {has}")
        return
    yield from _prefixes(start, {expected[name]: held[name] for name in both})
    for name in both:
        shape, wanted = by_name[held[name]].shape, model.shapes[expected[name]]
        if shape != wanted:
            yield Flaw(
                "shape_mismatch",
                by_name[held[name]].file,
                f"{list(shape)}, and {list(wanted)} in the model",
                held[name],
            )
    for name in expected:
        if name not in held:
            yield _not_held(expected[name], model, held)
    for name in held:
        if name not in expected:
            yield Flaw("not_in_model", "", "is in the checkpoint, but not in the model", held[name])
    types = {name: tensor.dtype for name, tensor in by_name.items()}
    yield from _tied(model, held, types, differ)


def _prefixes(start: str, pairs: Mapping[str, str]) -> Iterator[Flaw]:
    """Differences in names that wrappers cause. `pairs`: the checkpoint's names by the model's."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for wanted, name in pairs.items():
        mine, its = names.wrappers_of(name), names.wrappers_of(wanted)
        if mine != its:
            found.setdefault((mine, its), []).append(name)
    for (mine, its), own in found.items():
        whole = "all" if len(own) == len(pairs) else f"{len(own):,} of"
        more, less = [part for part in mine if part not in its], [part for part in its if part not in mine]
        what = [f"have {words.some(f'{part}. ({names.WRAPPERS[part]})' for part in more)} in them"] * bool(more)
        what += [f"lack {words.some(f'{part}. ({names.WRAPPERS[part]})' for part in less)} of the model's"] * bool(less)
        of = f" under {start}" * bool(start)
        text = (
            f"{whole} {count(len(pairs), 'name')}{of} {' and '.join(what) or 'have other wrappers'}, such as {own[0]}"
        )
        yield Flaw("prefix", "", text)


def _not_held(name: str, model: ModelShapes, held: Mapping[str, str]) -> Flaw:
    partner = next((other for other in model.partners(name) if names.bare(other) in held), "")
    if partner:
        return Flaw("tied_once", "", f"is not in it, and is one tensor with {partner} in the model, which is", name)
    return Flaw("not_in_checkpoint", "", "is in the model, but not in the checkpoint", name)


def _tied(
    model: ModelShapes,
    held: Mapping[str, str],
    types: Mapping[str, str],
    differ: Callable[[str, str], bool | None],
) -> Iterator[Flaw]:
    for group in model.tied:
        here = [held[names.bare(name)] for name in group if names.bare(name) in held]
        for other in here[1:]:
            if types[here[0]] != types[other]:
                text = f"is saved as {types[other]}, and {here[0]} as {types[here[0]]}, and both are one tensor in the "
                yield Flaw("tied_differ", "", f"{text}model: the one loaded last is kept", other)
            elif differ(here[0], other):
                text = f"differs from {here[0]}, and both are one tensor in the model: the one loaded last is kept"
                yield Flaw("tied_differ", "", text, other)
