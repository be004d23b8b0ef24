"""What is said of draws that repeat, and why they do."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight.check import Code, Finding, Run, ranges
from preflight.checks.data.seeds.repeated_draws import Repeat, is_own, listed, repeats
from preflight.checks.data.seeds.rng_draws import MAIN, Draws, Named

WORKERS_REPEAT = Code(
    "DataLoader workers of one rank draw the same random numbers.",
    fix="In worker_init_fn seed from torch.initial_seed(), which is another in each worker and epoch: "
    "np.random.seed(torch.initial_seed() % 2**32).",
)
RANKS_REPEAT = Code(
    "Ranks that read unlike samples draw the same random numbers for them.",
    fix="Give the DataLoader generator=torch.Generator().manual_seed(seed + rank); a worker_init_fn is to seed from "
    "torch.initial_seed().",
)
EPOCHS_REPEAT = Code(
    "DataLoader workers draw the same random numbers in every epoch.",
    fix="In worker_init_fn seed from torch.initial_seed(), which is another in each worker and epoch: "
    "np.random.seed(torch.initial_seed() % 2**32).",
)
NOT_SEEN = Code(
    "It is not known what a loader draws from.",
    fix="See the message; data.sampler tells what is wrong with the loader itself.",
)
OWN = "Make {generator} in worker_init_fn, seeded from torch.initial_seed(): each worker gets a copy of the dataset's."
BY_RANK = "Once the model is built seed by the rank, too: torch.manual_seed(seed + rank), and so random and np.random."
OWN_BY_RANK = "Seed {generator} by the rank, too."


def judge(name: str, loader: Mapping[int, Draws], run: Run) -> Iterator[Finding]:
    """Of one loader, by rank."""
    found = list(repeats(loader, _data(name, run)))
    inside = {generator for repeat in found if repeat.kind == "workers" for generator in repeat.generators}
    for repeat in found:
        if repeat.kind == "workers" or not inside.issuperset(repeat.generators):
            yield _finding(repeat, found, loader, name, run)
    why: dict[str, list[int]] = {}
    for rank, its in loader.items():
        if its["unseen"]:
            why.setdefault(its["unseen"], []).append(rank)
    for text, ranks in why.items():
        where = run.job.where(ranks[0]) if len(ranks) == 1 < len(loader) else {}
        yield NOT_SEEN.info(f"{_title(name)}nothing was seen on {ranges.ranks(ranks)}: {text}", **where)


def summarize(name: str, loader: Mapping[int, Draws], run: Run) -> str:
    """ "train: 4 x 2 DataLoader workers draw differently in 2 epochs"."""
    first = next(iter(loader.values()))
    who = f"{len(loader):,} x {first['workers']} DataLoader workers" if first["workers"] else "samples"
    if any(draws["unseen"] for draws in loader.values()):
        said = "what is drawn was not seen"
    elif not any(look["drawn"] for draws in loader.values() for look in draws["looks"]):
        said = "no sample draws random numbers"
    elif found := {repeat.kind for repeat in repeats(loader, _data(name, run))}:
        said = f"{who} draw alike ({', '.join(sorted(found))})"
    else:
        said = f"{who} draw differently{' in 2 epochs' if first['epochs'] > 1 else ''}"
    return f"{_title(name)}{said}"


def _data(name: str, run: Run) -> dict[int, str]:
    """By rank a digest of what this loader reads, as data.sampler has read it."""
    return {
        rank: reading["epochs"][0]["order"]
        for rank, own in run.facts("data.sampler").items()
        for reading in (own["readings"] if own["given"] else ())
        if reading["name"] == name and reading["epochs"]
    }


def _title(name: str) -> str:
    return f"loader {name}: " if name.isdecimal() else f"{name}: " if name else ""


def _finding(repeat: Repeat, found: list[Repeat], loader: Mapping[int, Draws], name: str, run: Run) -> Finding:
    its, own = loader[repeat.start.rank], is_own(repeat.generators[0])
    also = {str(other.kind) for other in found if set(other.generators) & set(repeat.generators)}
    by_rank = OWN_BY_RANK if own else None if its["workers"] else BY_RANK
    code, fix = {
        "workers": (WORKERS_REPEAT, OWN if own else None),
        "ranks": (RANKS_REPEAT, by_rank),
        "epochs": (EPOCHS_REPEAT, OWN if own else None),
    }[repeat.kind]
    # A worker_init_fn that repeats on ranks, but not in epochs, seeds from torch's state: that is the cause.
    by_init = repeat.kind != "ranks" or "epochs" in also
    cause = its["dataset"] if own else its["init"] if by_init else None
    where: dict[str, Any] = {"file": cause and cause["file"], "line": cause and cause["line"]}
    if len(repeat.ranks) == 1 < len(loader):
        where |= run.job.where(repeat.ranks[0])
    text = f"{_title(name)}{_said(repeat, also)}{_because(repeat, its, cause)}"
    proof = {"generator": repeat.generators[0], "states": repeat.states, "starts": repeat.starts}
    return code.warn(text, fix=fix, evidence=proof, **where)


def _said(repeat: Repeat, also: set[str]) -> str:
    """What was measured and what was expected."""
    more = " in both epochs" if repeat.kind == "workers" and "epochs" in also else ""
    more += ", and as other ranks do" if repeat.kind == "workers" and "ranks" in also else ""
    begin = (
        f"on {ranges.count(repeat.starts, 'rank')}"
        if repeat.start.worker == MAIN
        else f"at {repeat.starts:,} starts of workers"
    )
    return (
        f"{repeat.kind} draw alike from {listed(repeat.generators)} on {ranges.ranks(repeat.ranks)}{more}: "
        f"{repeat.example} ({ranges.count(repeat.states, 'state')} {begin}, expected {repeat.starts:,})"
    )


def _because(repeat: Repeat, its: Draws, cause: Named | None) -> str:
    if cause is not None:
        place = f" ({cause['file']}:{cause['line']})" if cause["file"] else ""
        if not is_own(repeat.generators[0]):
            return f"; {cause['name']}(){place} seeds them"
        return f"; it is made with {cause['name']}{place}{' and copied to each worker' if its['workers'] else ''}"
    if not its["workers"]:
        return ""
    own = f"the loader's generator, seeded {its['seed']}" if its["seed"] is not None else "torch's generator"
    return f"; workers are seeded from {own}"
