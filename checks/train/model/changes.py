"""What a user's forward pass changes in the model, and whether all ranks come to the same."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import Code, Finding, ranges, words
from preflight.checks.train.model.facts import Facts

if TYPE_CHECKING:
    from preflight.train_smoke.user.control import ChangedTensor

BUFFERS_BY_RANK = Code(
    "Forward changes buffers or parameters by the rows of each rank, and uses them.",
    fix="Exchange what forward makes of the rows before it changes them: all_reduce sums and counts (a codebook's, a "
    "center's), gather the rows of a queue. DDP's broadcast_buffers only hands out the first rank's.",
)
OTHER_BUFFERS = Code(
    "Forward changes buffers alike on all ranks, but otherwise than one process with all rows.",
    fix="Follow the number of ranks through what forward exchanges: sums and counts must both be over all ranks, and a "
    "mean divides by the rows of all of them.",
)
FORWARD_WRITES = Code(
    "Forward itself changes parameters.",
    fix="Nothing under DDP. Under FSDP it changes a gathered copy, which is thrown away: do it after optimizer.step().",
)
ALIKE = 1e-4
"""How far the changes on two ranks may be apart, relative to the largest: thousands of roundings."""


def told(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    changed = {rank: _changed(own) for rank, own in facts.items()}
    names = {name: None for own in changed.values() for name in own}  # a set in order
    apart = [name for name in names if not _alike([own.get(name) for own in changed.values()])]
    other = [name for name in names if name not in apart and _is_other(next(iter(changed.values()))[name])]
    used = {name for own in changed.values() for name, its in own.items() if its["used"]}
    if used.intersection(apart):
        yield _by_rank(sorted(apart, key=lambda name: name not in used), ranges.ranks(sorted(facts)))
    if wrong := [name for name in other if name in used]:
        text = (
            f"forward changes {words.some(wrong)} alike on all ranks, {_ratio(next(iter(changed.values()))[wrong[0]])}"
        )
        more = "but otherwise than one process with all rows, expected the same"
        yield OTHER_BUFFERS.warn(f"{text}{more}", evidence={"changed": wrong[:20]}, parameter=wrong[0])
    yield from _written(changed, apart)


def _by_rank(names: list[str], ranks: str) -> Finding:
    """`names`: the first is used by forward."""
    text = (
        f"forward changes {words.some(names)} by each rank's own rows, and uses it in the next: after one step it "
        f"differs between {ranks}, expected the same on all, of all rows. Under DDP only the first rank's rows count "
        "(the others' are replaced), under FSDP each rank goes on with its own"
    )
    return BUFFERS_BY_RANK.warn(text, evidence={"changed": names[:20]}, parameter=names[0])


def _written(changed: "Mapping[int, Mapping[str, ChangedTensor]]", apart: list[str]) -> Iterator[Finding]:
    """Parameters that forward changes alike on all ranks."""
    written = sorted({name for own in changed.values() for name, its in own.items() if its["is_parameter"]} - {*apart})
    if written:
        text = f"forward changes {words.examples(written, 'parameter')}; here they are as before at each forward"
        yield FORWARD_WRITES.info(text, evidence={"parameters": written[:20]})


def _changed(own: Facts) -> "dict[str, ChangedTensor]":
    forward = own.get("forward")
    return {its["name"]: its for its in forward["changed"]} if forward else {}


def _alike(every: "list[ChangedTensor | None]") -> bool:
    """Whether all ranks' changes are the same; a rank without one has changed nothing."""
    views = [its["views"] if its else [0.0] for its in every]
    width = max(map(len, views))
    first, *others = [[*view, *[0.0] * (width - len(view))] for view in views]
    return all(_near(other, first) for other in others)


def _is_other(its: "ChangedTensor") -> bool:
    return bool(its["alone"]) and not _near(its["views"], its["alone"])


def _near(first: list[float], second: list[float]) -> bool:
    scale = max(map(abs, (*first, *second)), default=0.0)
    return all(abs(a - b) <= ALIKE * scale for a, b in zip(first, second, strict=True))


def _ratio(its: "ChangedTensor") -> str:
    """ "changed 2 times as much, " if it is a multiple, or ""."""
    top = max(range(len(its["alone"])), key=lambda at: abs(its["alone"][at]))
    times = its["views"][top] / its["alone"][top] if its["alone"][top] else 0.0
    is_multiple = times and _near(its["views"], [times * value for value in its["alone"]])
    return f"{times:.3g} times as far as it should, " if is_multiple else ""
