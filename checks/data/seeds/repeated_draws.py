"""Which DataLoader workers draw the same random numbers, on one rank, on two ranks or in two epochs; and why."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from preflight.check import Code, Finding, Run, ranges, words
from preflight.checks.data.seeds.rng_draws import MAIN, Draws, Named


class Start(NamedTuple):
    """The state in which a worker starts an epoch."""

    rank: int
    epoch: int
    worker: int
    data: str
    """A digest of what its rank reads."""


Kind = Literal["workers", "ranks", "epochs"]
WITHIN: dict[Kind, Callable[[Start], object]] = {
    "workers": lambda start: (start.rank, start.epoch),
    "ranks": lambda start: start.epoch,
    "epochs": lambda start: start.rank,
}
"""Groups of starts in which no two should be equal,"""
BETWEEN: dict[Kind, Callable[[Start], object]] = {
    "workers": lambda start: start.worker,
    "ranks": lambda start: start.data,
    "epochs": lambda start: start.epoch,
}
"""unless this is the same: ranks that read the same samples share a model, and should draw the same for them."""


@dataclass(frozen=True)
class Repeat:
    """Starts that are equal but should not be."""

    kind: Kind
    generators: tuple[str, ...]
    ranks: tuple[int, ...]
    starts: int
    """Starts on the first rank, in one epoch of all ranks, or in all epochs; and from how many states."""
    states: int
    start: Start
    """An example: it equals `other`."""
    other: Start

    @property
    def example(self) -> str:
        """ "worker 1 of rank 0 starts like its worker 0"."""
        start, other = self.start, self.other
        if start.worker == MAIN:
            return f"rank {start.rank} starts like rank {other.rank}"
        begins = f"worker {start.worker} of rank {start.rank} starts"
        if self.kind == "workers":
            return f"{begins} like its worker {other.worker}"
        if self.kind == "ranks":
            return f"{begins} like worker {other.worker} of rank {other.rank}"
        as_who = "it started" if start.worker == other.worker else f"worker {other.worker} started"
        return f"{begins} epoch {start.epoch} as {as_who} epoch {other.epoch}"


def repeats(draws: Mapping[int, Draws], data: Mapping[int, str]) -> Iterator[Repeat]:
    """Repeats of one loader. `draws`: by rank. `data`: by rank a digest of the samples that it reads, if known."""
    known: dict[str, dict[Start, str]] = {}
    for rank, rank_draws in sorted(draws.items()):
        for look in rank_draws["looks"]:
            start = Start(rank, look["epoch"], look["worker"], data.get(rank, f"rank {rank}"))
            for name, state in look["drawn"].items():
                known.setdefault(name, {})[start] = state
    for kind in WITHIN:
        found = {name: repeat for name, states in known.items() if (repeat := _repeat(kind, name, states))}
        yield from _joined(found)


def _repeat(kind: Kind, name: str, states: Mapping[Start, str]) -> Repeat | None:
    within, between = WITHIN[kind], BETWEEN[kind]
    alike: dict[object, list[Start]] = {}
    for start, state in states.items():
        alike.setdefault((state, within(start)), []).append(start)
    groups = [group for group in alike.values() if len({between(start) for start in group}) > 1]
    if not groups:
        return None
    other, *rest = min(groups)
    first = next(start for start in rest if between(start) != between(other))
    ranks = sorted({start.rank for group in groups for start in group})
    near = [start for start in states if within(start) == within(first)]
    if kind == "epochs":
        near = [start for start in states if start.rank in ranks]
    distinct = len({states[start] for start in near})
    return Repeat(kind, (name,), tuple(ranks), len({_own(kind, start) for start in near}), distinct, first, other)


def _own(kind: Kind, start: Start) -> object:
    """What should have its own state."""
    return (start.data, start.worker) if kind == "ranks" else start


def _joined(found: Mapping[str, Repeat]) -> Iterator[Repeat]:
    """Merges generators that repeat in the same way: Python, NumPy and torch are seeded at one place. A generator that
    the dataset holds has its own cause."""
    like: dict[object, list[Repeat]] = {}
    for name, repeat in found.items():
        like.setdefault((name if is_own(name) else "", repeat.ranks, repeat.starts, repeat.states), []).append(repeat)
    for first, *others in like.values():
        yield Repeat(**{**vars(first), "generators": (*first.generators, *(other.generators[0] for other in others))})


def is_own(generator: str) -> bool:
    """Whether the dataset or collate function holds the generator, rather than a library."""
    return "." in generator


# Findings about them


WORKERS_REPEAT = Code(
    "DataLoader workers of one rank draw the same random numbers.",
    fix="In worker_init_fn seed from torch.initial_seed(), which differs in each worker and epoch: "
    "np.random.seed(torch.initial_seed() % 2**32).",
)
RANKS_REPEAT = Code(
    "Ranks that read different samples draw the same random numbers for them.",
    fix="Give the DataLoader generator=torch.Generator().manual_seed(seed + rank); a worker_init_fn should seed from "
    "torch.initial_seed().",
)
EPOCHS_REPEAT = Code(
    "DataLoader workers draw the same random numbers in every epoch.",
    fix="In worker_init_fn seed from torch.initial_seed(), which differs in each worker and epoch: "
    "np.random.seed(torch.initial_seed() % 2**32).",
)
NOT_SEEN = Code(
    "What a loader draws from is unknown.",
    fix="See the message; data.sampler reports what is wrong with the loader itself.",
    see=("data.sampler",),
)
OWN = "Make {generator} in worker_init_fn, seeded from torch.initial_seed(): each worker gets a copy of the dataset's."
BY_RANK = "Once the model is built, also seed by rank: torch.manual_seed(seed + rank), and so random and np.random."
OWN_BY_RANK = "Also seed {generator} by rank."


def judge(name: str, loader: Mapping[int, Draws], run: Run) -> Iterator[Finding]:
    found = list(repeats(loader, _data(name, run)))
    inside = {generator for repeat in found if repeat.kind == "workers" for generator in repeat.generators}
    for repeat in found:
        if repeat.kind == "workers" or not inside.issuperset(repeat.generators):
            yield _finding(repeat, found, loader, name, run)
    why: dict[str, list[int]] = {}
    for rank, rank_draws in loader.items():
        if rank_draws["unseen"]:
            why.setdefault(rank_draws["unseen"], []).append(rank)
    for text, ranks in why.items():
        where = run.job.where(ranks[0]) if len(ranks) == 1 < len(loader) else {}
        yield NOT_SEEN.not_measured(f"{_title(name)}nothing was seen on {ranges.ranks(ranks)}: {text}", **where)


def summarize(name: str, loader: Mapping[int, Draws], run: Run) -> str:
    """ "train: 4 x 2 DataLoader workers draw differently in 2 epochs"."""
    first = next(iter(loader.values()))
    who = f"{len(loader):,} x {first['workers']} DataLoader workers" if first["workers"] else "samples"
    if any(draws["unseen"] for draws in loader.values()):
        sentence = "what is drawn was not seen"
    elif not any(look["drawn"] for draws in loader.values() for look in draws["looks"]):
        sentence = "no sample draws random numbers"
    elif found := {repeat.kind for repeat in repeats(loader, _data(name, run))}:
        sentence = f"{who} draw the same ({', '.join(sorted(found))})"
    else:
        sentence = f"{who} draw differently{' in 2 epochs' if first['epochs'] > 1 else ''}"
    return f"{_title(name)}{sentence}"


def _data(name: str, run: Run) -> dict[int, str]:
    """By rank, a digest of what this loader reads, according to data.sampler."""
    return {
        rank: reading["epochs"][0]["order"]
        for rank, own in run.facts("data.sampler").items()
        for reading in (own["readings"] if own["given"] else ())
        if reading["name"] == name and reading["epochs"]
    }


def _title(name: str) -> str:
    return f"loader {name}: " if name.isdecimal() else f"{name}: " if name else ""


def _finding(repeat: Repeat, found: list[Repeat], loader: Mapping[int, Draws], name: str, run: Run) -> Finding:
    rank_draws, own = loader[repeat.start.rank], is_own(repeat.generators[0])
    also = {str(other.kind) for other in found if set(other.generators) & set(repeat.generators)}
    by_rank = OWN_BY_RANK if own else None if rank_draws["workers"] else BY_RANK
    code, fix = {
        "workers": (WORKERS_REPEAT, OWN if own else None),
        "ranks": (RANKS_REPEAT, by_rank),
        "epochs": (EPOCHS_REPEAT, OWN if own else None),
    }[repeat.kind]
    # A worker_init_fn that repeats on ranks, but not in epochs, seeds from torch's state: that is the cause.
    by_init = repeat.kind != "ranks" or "epochs" in also
    cause = rank_draws["dataset"] if own else rank_draws["init"] if by_init else None
    where: dict[str, Any] = {"file": cause and cause["file"], "line": cause and cause["line"]}
    if len(repeat.ranks) == 1 < len(loader):
        where |= run.job.where(repeat.ranks[0])
    text = f"{_title(name)}{_sentence(repeat, also)}{_because(repeat, rank_draws, cause)}"
    proof = {"generator": repeat.generators[0], "states": repeat.states, "starts": repeat.starts}
    return code.warn(text, fix=fix, evidence=proof, **where)


def _sentence(repeat: Repeat, also: set[str]) -> str:
    more = " in both epochs" if repeat.kind == "workers" and "epochs" in also else ""
    more += ", and as other ranks do" if repeat.kind == "workers" and "ranks" in also else ""
    begin = (
        f"on {ranges.count(repeat.starts, 'rank')}"
        if repeat.start.worker == MAIN
        else f"at {repeat.starts:,} starts of workers"
    )
    return (
        f"{repeat.kind} draw the same from {words.some(repeat.generators)} on {ranges.ranks(repeat.ranks)}{more}: "
        f"{repeat.example} ({ranges.count(repeat.states, 'state')} {begin}, expected {repeat.starts:,})"
    )


def _because(repeat: Repeat, rank_draws: Draws, cause: Named | None) -> str:
    if cause is not None:
        place = f" ({cause['file']}:{cause['line']})" if cause["file"] else ""
        if not is_own(repeat.generators[0]):
            return f"; {cause['name']}(){place} seeds them"
        return (
            f"; it is made with {cause['name']}{place}{' and copied to each worker' if rank_draws['workers'] else ''}"
        )
    if not rank_draws["workers"]:
        return ""
    own = (
        f"the loader's generator, seeded {rank_draws['seed']}"
        if rank_draws["seed"] is not None
        else "torch's generator"
    )
    return f"; workers are seeded from {own}"
