"""Random generators are the same where needed (initial weights), and different where needed (augmentation).

Only with `--data`. Finds which of Python's, NumPy's and torch's generators your function seeds, and whether all ranks
seed them the same; and which ones a sample draws from. Starts workers like those of your DataLoader, in two epochs;
each passes one sample through your collate_fn. Workers, ranks or epochs whose generators start in the same state have
the same crops, flips and noise. Generators that no sample draws from are ignored.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict

from preflight.check import (
    After,
    Code,
    Context,
    Finding,
    Level,
    Plan,
    Run,
    Scope,
    Severity,
    Skip,
    UserCode,
    option,
    ranges,
    seconds,
    words,
)
from preflight.checks.data.seeds import repeated_draws, rng_draws, seed_vote
from preflight.checks.data.seeds.rng_draws import Draws
from preflight.checks.data.seeds.seed_vote import Seeded
from preflight.checks.data.shared.generators import CUDA, NUMPY, PYTHON, TORCH

if TYPE_CHECKING:
    from preflight.checks.data.shared.generators import State

PARTS = (repeated_draws,)
DATA = option(UserCode.parse, None, "the function that returns your DataLoader, as MODULE:FUNCTION")
PLAN = Plan(
    Scope.WORLD,
    lambda asked: Level.STANDARD if asked.sets(DATA) else None,
    deadline_s=180.0,
    estimate_s=2.0,
    after={"data.sampler": After.USES, "comm.init": After.UNLESS_FAILED},
)


SECONDS = option(seconds, 30.0, "seconds for all loaders together; the rest is skipped")
PATIENCE_S = option(seconds, 30.0, "seconds that the workers of one loader may take")

SOME_DIFFER = Code(
    "A random generator has the same seed on most ranks, but not on some.",
    fix="Seed all ranks the same, or each by its rank; look for a seed under `if rank == 0`, or from the environment.",
)
WEIGHTS_DIFFER = Code(
    "Weights initialized after the function differ between ranks.",
    fix="DDP sends rank 0's weights to all. FSDP does not, unless told to: call torch.manual_seed(seed), the same on "
    "all ranks, before the model is built.",
)
DROPOUT_REPEATS = Code(
    "Dropout drawn after the function is the same on all ranks.",
    fix="Call torch.manual_seed(seed + rank) once the model is built, if each rank should have its own masks.",
)


class Facts(TypedDict):
    function: str
    """The function's name as the user gave it."""
    libraries: dict[str, Seeded]
    """torch, Python, and NumPy and CUDA if in use."""
    loaders: list[Draws]


def measure(ctx: Context) -> Facts:
    """Raises Skip if the function itself failed."""
    from preflight.checks.data.shared.user_function import called_before

    given = ctx[DATA]
    assert given is not None, "the engine asks for it"
    called = called_before(given)
    if called is None:
        raise Skip("data.sampler calls the function, but was left out, or its process has ended")
    if called.mistake is not None:
        raise Skip("the function returned no loader, see data.sampler")
    end = time.monotonic() + ctx[SECONDS]
    loaders = []
    for name, loader in called.loaders.items():
        ctx.doing(f"starting the workers of loader {name!r}" if name else "starting the loader's workers")
        left = min(ctx[PATIENCE_S], end - time.monotonic())
        loaders.append(rng_draws.read(loader, name, called.function, called.after, left))
    libraries = {name: _seeded(called.before.get(name), state) for name, state in called.after.items()}
    return Facts(function=str(given), libraries=libraries, loaders=loaders)


def _seeded(before: "State | None", after: "State") -> Seeded:
    """`before` is None if the function itself imported the library."""
    changed = after.undrawn if before is None else (after.seed, after.digest) != (before.seed, before.digest)
    if before is not None and after.seed is not None:
        changed = after.seed != before.seed
    return Seeded(seed=after.seed, state=after.digest, changed=changed, undrawn=after.undrawn)


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    some = list(_some_differ(facts, run))
    yield from some
    for name, loader in _loaders(facts).items():
        yield from repeated_draws.judge(name, loader, run)
    if len(facts) > 1 and not any(TORCH in finding.evidence["libraries"] for finding in some):
        yield from _weights_and_dropout(facts)


def _loaders(facts: Mapping[int, Facts]) -> dict[str, dict[int, Draws]]:
    found: dict[str, dict[int, Draws]] = {}
    for rank in sorted(facts):
        for draws in facts[rank]["loaders"]:
            found.setdefault(draws["name"], {})[rank] = draws
    return found


def _libraries(facts: Mapping[int, Facts]) -> dict[str, dict[int, Seeded]]:
    names = [name for name in (TORCH, PYTHON, NUMPY) if any(name in own["libraries"] for own in facts.values())]
    return {
        name: {rank: own["libraries"][name] for rank, own in sorted(facts.items()) if name in own["libraries"]}
        for name in names
    }


def _some_differ(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """One finding for all libraries that are seeded differently on the same ranks."""
    odd: dict[tuple[bool, tuple[int, ...]], dict[str, str]] = {}
    for library, states in _libraries(facts).items():
        for group in seed_vote.odd(library, states):
            odd.setdefault((group.certain, group.ranks), {})[library] = group.text
    for (certain, ranks), sentences in odd.items():
        where = run.job.where(ranks[0]) if len(ranks) == 1 else {}
        severity = Severity.WARN if certain else Severity.INFO
        proof = {"libraries": list(sentences), "ranks": ranges.to_text(ranks)}
        yield SOME_DIFFER.finding(severity, "; ".join(sentences.values()), evidence=proof, **where)


def _weights_and_dropout(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    """Info only: sound scripts choose either, and should know which. Says nothing about a script that has not seeded
    here, since it may do so later."""
    torch = _libraries(facts)[TORCH]
    cuda = {rank: own["libraries"].get(CUDA, torch[rank])["state"] for rank, own in facts.items()}
    after, ranks = f"after {next(iter(facts.values()))['function']}", ranges.count(len(facts), "rank")
    if len(set(cuda.values())) == 1:
        seed = torch[min(torch)]["seed"]
        yield DROPOUT_REPEATS.info(
            f"torch has the same state on {ranks} {after} (seed {seed}): their dropout masks are equal"
        )
    elif (
        any(seeded["changed"] for seeded in torch.values()) and len({seeded["state"] for seeded in torch.values()}) > 1
    ):
        counted = seed_vote.seeds(torch)
        what = f"torch is seeded {counted.usual} on {ranks}, but has drawn differently since"
        if not counted.unanimous:
            what = f"torch is seeded differently {after} ({counted.sides(2)})"
        yield WEIGHTS_DIFFER.info(f"{what}, so weights initialized then differ between {ranks}")


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    """ "torch seeded 42, Python and NumPy not seeded on 4 ranks; 4 x 2 DataLoader workers draw differently in 2
    epochs"."""
    libraries_by_seed: dict[str, list[str]] = {}
    for library, states in _libraries(facts).items():
        libraries_by_seed.setdefault(seed_vote.describe(states), []).append(library)
    seeded = ", ".join(f"{words.some(libraries)} {how}" for how, libraries in libraries_by_seed.items())
    parts = [repeated_draws.summarize(name, loader, run) for name, loader in _loaders(facts).items()]
    return "; ".join([f"{seeded} on {ranges.count(len(facts), 'rank')}", *parts])
