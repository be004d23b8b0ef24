"""Every rank sees its own samples, all ranks together see each once, and the order changes every epoch.

`--data MODULE:FUNCTION` names a function without arguments, which every rank calls. It returns what the training loop
iterates: a DataLoader, a list or dict of them, or your own loaders. Each is read for two epochs, within a budget of
time and samples. If a sampler chooses the samples, they are identified by index, without loading them, and all ranks
together are compared with the dataset's length; otherwise by content. See docs/data.md. Without `--data`, torch's
DistributedSampler is tested on this world, which says nothing about your own loader.
"""

import time
from collections.abc import Iterator, Mapping

from preflight.check import (
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    Plan,
    Run,
    Scope,
    Severity,
    UserCode,
    count,
    option,
    ranges,
    seconds,
)
from preflight.checks.data.sampler import (
    batches,
    coverage,
    datasets,
    disjoint,
    mistakes,
    one_loader,
    orders,
    replicas,
    summary,
)
from preflight.checks.data.sampler.one_loader import Loader
from preflight.checks.data.shared.readings import Facts
from preflight.sdk.effective_batch import learning_rate

PART, MEET = 0.4, 0.7
"""Shares of the check's time: the most that reading, or a single wait, may take; and when ranks stop waiting for others
that still read."""


def _deadline(job: Job) -> float:
    """A user's function may build an index for minutes if allowed to; every wait has its `patience_s`."""
    return 600.0 + job.world_size / 32


PARTS = (batches, datasets, mistakes, orders, summary, replicas, disjoint)
DATA = option(UserCode.parse, None, "the function that returns your loader, or loaders, as MODULE:FUNCTION")
PLAN = Plan(
    Scope.WORLD,
    Level.STANDARD,
    deadline_s=_deadline,
    estimate_s=2.0,
    after={"comm.init": After.USES | After.UNLESS_FAILED},
    fresh=lambda asked: asked.sets(DATA),
    facts_version=2,
)


SECONDS = option(seconds, 30.0, "seconds for reading all loaders, both epochs")
SAMPLES = option(count, 10_000_000, "samples to read per epoch and rank")
PATIENCE_S = option(seconds, 30.0, "seconds that the function, or one batch, may take")
GLOBAL_BATCH = option(count, None, "samples of all ranks that an optimizer step should train on")
ACCUMULATE = option(count, 1, "batches per rank and optimizer step, for global_batch")
LR = option(learning_rate, None, "your learning rate, to report its scaled value")
BASE_BATCH = option(count, None, "the global batch it was tuned for; unset: one rank's")
DATA_PARALLEL = option(count, None, "ranks that read different samples, if others share a model; unset: all")
KEY = option(str, "", "the field that identifies a sample, if samples are compared by content")

OTHER_RANKS_PRINT = Code(
    "Ranks other than the first print in the function.",
    fix="Print on rank 0 only: if torch.distributed.get_rank() == 0.",
)
OTHER_RANKS_WRITE = Code(
    "Ranks other than the first write, create or remove files in the function.",
    fix="Write on one rank (of a node), and let the others wait: torch.distributed.barrier().",
)


def measure(ctx: Context) -> Facts:
    from preflight.checks.data.sampler import loaders
    from preflight.checks.data.shared.user_function import called

    end_s = time.monotonic() + MEET * ctx.deadline_s
    reading_s, patience_s = (min(ctx[limit], PART * ctx.deadline_s) for limit in (SECONDS, PATIENCE_S))
    budget = loaders.Budget(reading_s, ctx[SAMPLES], patience_s, len(ctx.members), end_s, ctx[KEY] or None)
    code = ctx[DATA]
    if code is None:
        return loaders.torchs_own(ctx, budget)
    return loaders.given(ctx, called(ctx, code, patience_s), budget, ctx[DATA_PARALLEL])


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    yield from mistakes.mistakes(facts, run)
    others = list(mistakes.different_loaders(facts, run))
    yield from others
    if not others and not any(own["mistake"] for own in facts.values()):
        yield from _loaders(facts, run)
    yield from _aside(facts)


def _loaders(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    read = list(_read(facts, run))
    for loader in read:
        yield from _loader(loader, run)
    yield from batches.wrong_global_batch(read, run[GLOBAL_BATCH], run[ACCUMULATE])


def _read(facts: Mapping[int, Facts], run: Run) -> Iterator[Loader]:
    """The loaders that every rank read without a mistake."""
    for loader in one_loader.loaders(facts, run, run[DATA_PARALLEL]):
        if not any(reading["mistake"] for reading in loader.readings.values()):
            yield loader


def _loader(loader: Loader, run: Run) -> Iterator[Finding]:
    parts = datasets.parts(loader)
    found = _cause(loader, parts, run)
    yield from found
    if found:
        return
    yield from batches.sizes(loader)
    yield from orders.orders(loader)
    yield from summary.padded_and_dropped(loader) if len(parts) == 1 else ()
    yield from summary.not_proven(loader, parts)


def _cause(loader: Loader, parts: list[Loader], run: Run) -> list[Finding]:
    """The first findings, which explain what would be found after them."""
    return next((found for step in _causes(loader, parts, run) if (found := list(step))), [])


def _causes(loader: Loader, parts: list[Loader], run: Run) -> Iterator[Iterator[Finding]]:
    if len(parts) == 1:
        yield datasets.lengths(loader)
        yield datasets.contents(loader)
        yield replicas.replicas(loader)
        yield replicas.parted_twice(loader)
        yield replicas.seeds(loader)
        yield replicas.data_parallel(loader, run[DATA_PARALLEL])
    if loader.comparable:
        for step in (disjoint.workers, disjoint.same_samples, disjoint.overlap, disjoint.never_seen):
            yield (finding for part in parts for finding in step(part))
    yield batches.numbers(loader)


def _aside(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    others = [(rank, facts[rank]) for rank in sorted(facts)[1:]]
    printed = {rank: other for rank, other in others if other["lines"]}
    if printed:
        first = next(iter(printed.values()))
        lines = ranges.count(sum(own["lines"] for own in printed.values()), "line")
        text = f"{ranges.ranks(printed)} printed {lines} in the function, such as {first['printed'][0]!r}"
        yield OTHER_RANKS_PRINT.info(text, evidence={"printed": first["printed"]})
    written = {rank: other["written"] for rank, other in others if other["written"]}
    if written:
        names = [name for writes in written.values() for name in writes]
        often = max(names, key=names.count)
        twice = f", on {names.count(often)} of them" if names.count(often) > 1 else ""
        files = ranges.count(len(set(names)), "file")
        text = f"{ranges.ranks(written)} wrote, created or removed {files} in the function, such as {often}{twice}"
        yield OTHER_RANKS_WRITE.info(text, evidence={"files": sorted(set(names))[:20]})


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "1,000,003 samples, 4 ranks x 250,001 (1 padded), disjoint, complete, reshuffled each epoch"."""
    if any(own["mistake"] for own in facts.values()) or len({one_loader.names(own) for own in facts.values()}) > 1:
        return "nothing was proven"
    read = list(_read(facts, run))
    if not any(own["given"] for own in facts.values()):
        return _of_torch(read)
    return "; ".join(loader.says(_proven(loader, run)) for loader in read) or "nothing was proven"


def _proven(loader: Loader, run: Run) -> str:
    parts = datasets.parts(loader)
    wrong = any(finding.severity is not Severity.INFO for finding in _cause(loader, parts, run))
    if wrong:
        return "wrong, see its findings"
    batch = batches.effective(loader, run[ACCUMULATE], run[BASE_BATCH], run[LR])
    return "; ".join(filter(None, (summary.summary(loader, parts), batch)))


def _of_torch(loaders: list[Loader]) -> str:
    right = [loader.name for loader in loaders if coverage.is_sound(loader)]
    ranks = ranges.count(loaders[0].world, "rank") if loaders else "no rank"
    names = f" ({', '.join(right)})" if right else ""
    proof = f"torch's DistributedSampler is right on {ranks}{names}" if right else "nothing was proven"
    return f"{proof}; your own loader was not checked: give --data MODULE:FUNCTION"
