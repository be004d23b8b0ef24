"""A loader that is stopped within an epoch and resumed in a new process continues with the next samples.

Only with `--data`. Each rank reads your first training loader by itself, in separate processes: one is stopped after
some batches, its state is saved (`state_dict` of the loader or its sampler; a loader without one is resumed as most
scripts do it, by skipping as many batches), and a new process continues. What that yields, to the end of the epoch and
in the next, is compared with what the first process yields without a stop; so are a second stop, and a different
number of DataLoader workers. If a sampler chooses the samples, nothing is loaded. See docs/data.md.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from preflight.check import (
    After,
    Code,
    Context,
    Finding,
    Level,
    NoReply,
    Plan,
    Probe,
    Run,
    Scope,
    Skip,
    UserCode,
    count,
    option,
    ranges,
    seconds,
    words,
)
from preflight.checks.data.resume import runs
from preflight.checks.data.resume.compare import Id, ResumeDifference, compare
from preflight.checks.data.resume.runs import LoaderRun, Order

DEADLINE_S = 180.0
DATA = option(UserCode.parse, None, "the function that returns your loader, or loaders, as MODULE:FUNCTION")
PLAN = Plan(
    Scope.RANK,
    lambda asked: Level.STANDARD if asked.sets(DATA) else None,
    deadline_s=DEADLINE_S,
    estimate_s=5.0,
    after={"data.sampler": After.USES | After.UNLESS_FAILED},
    fresh=True,
)

BATCHES = option(count, 3, "batches after which the loader is stopped, for the first and for the second time")
SECONDS = option(seconds, 20.0, "seconds for each of up to four processes; what they do not reach is not compared")
SAMPLES = option(count, 50_000, "samples to read per epoch and rank")

KEEP = "Save the loader's state_dict with the checkpoint and load it before the epoch is iterated"
EPOCH_RESET = Code(
    "A resumed loader restarts its epoch: all samples before the stop come again.",
    fix="Return the position in the epoch from state_dict, and start there in __iter__ after load_state_dict.",
)
ORDER_CHANGED = Code(
    "A resumed loader yields a different order: some samples come again, others never.",
    fix="Save what determines the permutation (seed, epoch, generator state) in state_dict, and restore it.",
)
SKIPPED_BATCHES = Code(
    "A resumed loader skips the next batches.",
    fix="Count what the loop has received, not what the sampler was asked for: DataLoader workers are ahead by "
    "prefetch_factor x num_workers batches (torchdata's StatefulDataLoader does that).",
)
REPEATED = Code(
    "A resumed loader yields the last batches before the stop again.",
    fix="Count a batch as soon as it is yielded: state_dict must include the one that the loop has now.",
)
NEXT_EPOCH = Code(
    "After a resumed epoch the next one differs from that of a run without the stop.",
    fix="Let __iter__ start at 0 again once the resumed epoch has ended, and restore seed and epoch in "
    "load_state_dict.",
)
SECOND_RESUME = Code(
    "The first resume is right, but a second one is not.",
    fix="Let state_dict count from the start of the epoch, even after load_state_dict, not from the resume.",
)
REFUSED = Code(
    "The loader cannot be resumed from its own state: your code raises.",
    fix="See the line shown; what state_dict returns must be enough for load_state_dict in a new process.",
)
UNSEEDED = Code(
    "The loader has no state, and shuffles differently in each process: it cannot be resumed within an epoch.",
    fix="Seed the shuffling (DataLoader(generator=...), the same seed and epoch in each process), or use a loader with "
    "state_dict (torchdata's StatefulDataLoader).",
)
WORKERS_CHANGE_ORDER = Code(
    "A resumed loader yields different samples with a different number of DataLoader workers.",
    fix="Resume with the same number of workers; save that number with the state.",
)
NOT_COMPARED = Code(
    "Whether the loader can be resumed is unknown: its samples cannot be told from each other.",
    fix="Name a field that identifies a sample, such as an id or a path: --set data.sampler.key=NAME; or turn random "
    "augmentation off in the function that makes the loaders.",
)
CODES: dict[str, Code] = {
    "restarted": EPOCH_RESET, "empty": SKIPPED_BATCHES, "lost": SKIPPED_BATCHES, "repeated": REPEATED,
    "order": ORDER_CHANGED,
}  # fmt: skip


class Facts(TypedDict):
    name: str
    loader: str
    holder: str
    """What has the state: loader, sampler, or "" (batches were skipped)."""
    by_index: bool
    workers: int
    other_workers: int | None
    stopped: int
    """Batches before the first stop."""
    rest: int
    """Batches compared after the stop."""
    whole: bool
    """Whether the epoch was read to the end."""
    skipped: ResumeDifference | None
    """The difference in the skipped batches, which should be those of the first process."""
    first: ResumeDifference | None
    next: ResumeDifference | None
    """The difference in the next epoch."""
    second: ResumeDifference | None
    second_next: ResumeDifference | None
    by_workers: ResumeDifference | None
    mistake: dict[str, Any] | None
    """An exception in the first or second resume: text, file, line."""
    workers_mistake: str
    """Why the state could not be loaded with a different number of DataLoader workers; refusing it is sound."""
    known: bool
    """Whether anything came again in a new process, resumed or from the start; else the content is random."""


def measure(ctx: Context) -> Facts:
    code = ctx[DATA]
    assert code is not None, "the engine asks for it"
    with tempfile.TemporaryDirectory(prefix="preflight-resume-") as folder:
        return _measured(ctx, str(code), folder)


def _measured(ctx: Context, code: str, folder: str) -> Facts:
    """Raises Skip."""
    stops = ctx[BATCHES]
    states = [os.path.join(folder, name) for name in ("first", "second")]
    order = Order(
        code=code,
        rank=ctx.group_rank,
        world=len(ctx.members),
        local_rank=ctx.local_rank,
        loads="",
        skips=0,
        stops=stops,
        saves=states[0],
        workers=None,
        samples=ctx[SAMPLES],
        seconds=ctx[SECONDS],
    )
    begun = _run(ctx, order)
    if why := begun["left_out"] or (begun["mistake"] or {}).get("text", ""):
        raise Skip(f"the loader cannot be read by one rank alone: {why}")
    if not begun["rest"]:
        raise Skip(f"the first epoch has no more than {stops} batches: set data.resume.batches to fewer")
    again: Order = {**order, "loads": states[0], "saves": states[1]}
    if not begun["holder"]:
        again = {**again, "skips": stops, "stops": 0}
    resumed = _run(ctx, again)
    facts = _compared(begun, resumed, stops)
    if not facts["known"] and not resumed["mistake"]:  # a control: is it random, or does it only resume wrongly?
        facts["known"] = _repeats_itself(begun, _run(ctx, {**order, "saves": states[1]}))
    if begun["holder"] and not (resumed["mistake"] or facts["first"]):
        _again(ctx, facts, begun, {**again, "loads": states[1], "stops": 0})
        _with_other_workers(ctx, facts, begun, {**again, "stops": 0, "workers": begun["workers"] + 1})
    return facts


def _run(ctx: Context, order: Order) -> LoaderRun:
    """Raises Skip if the process gives no answer."""
    ctx.doing("reading the loader in a new process" if order["loads"] else "reading the loader, to be stopped")
    with Probe({"run": runs.run}) as probe:
        reply = probe.ask("run", order, deadline_s=min(DEADLINE_S / 5, 2 * order["seconds"] + 10.0))
    if isinstance(reply, NoReply):
        raise Skip(f"a separate process that read the loader gave no answer ({reply.call}: {reply.text})")
    seen: LoaderRun = reply.value
    return seen


def _compared(begun: LoaderRun, resumed: LoaderRun, stops: int) -> Facts:
    got = resumed["before"] + resumed["rest"]
    skipped = [] if begun["holder"] else got[:stops]
    known = set(_flat(begun["before"] + begun["rest"]))
    return Facts(
        name=begun["name"],
        loader=begun["loader"],
        holder=begun["holder"],
        by_index=begun["by_index"],
        workers=begun["workers"],
        other_workers=None,
        stopped=stops,
        rest=len(begun["rest"]),
        whole=begun["whole"],
        skipped=None if begun["holder"] else compare([], _flat(begun["before"]), _flat(skipped)),
        first=_difference(begun, resumed, got[len(skipped) :], 0),
        next=_next(begun, resumed),
        second=None,
        second_next=None,
        by_workers=None,
        mistake=resumed["mistake"],
        workers_mistake="",
        known=not got or any(id_ in known for id_ in _flat(got)),
    )


def _repeats_itself(begun: LoaderRun, again: LoaderRun) -> bool:
    """Whether any sample comes again in a second new process that reads the loader from the start."""
    known = set(_flat(begun["before"] + begun["rest"]))
    return any(id_ in known for id_ in _flat(again["before"] + again["rest"]))


def _flat(batches: Sequence[Sequence[Id]]) -> list[Id]:
    return [id_ for batch in batches for id_ in batch]


def _difference(begun: LoaderRun, seen: LoaderRun, got: list[list[Id]], stops: int) -> ResumeDifference | None:
    """`stops`: batches from the first stop to the next. Compares what both have read."""
    before, expected = _flat(begun["before"] + begun["rest"][:stops]), _flat(begun["rest"][stops:])
    given = _flat(got)
    if not (begun["whole"] and seen["whole"]):
        given, expected = given[: len(expected)], expected[: len(given)]
    return None if seen["mistake"] else compare(before, expected, given)


def _next(begun: LoaderRun, seen: LoaderRun) -> ResumeDifference | None:
    """The difference in the next epoch, as far as both have read it."""
    if not (begun["whole"] and seen["whole"]) or seen["mistake"]:
        return None
    expected, got = _flat(begun["next"]), _flat(seen["next"])
    if not (begun["next_whole"] and seen["next_whole"]):
        expected, got = expected[: len(got)], got[: len(expected)]
    return compare([], expected, got)


def _again(ctx: Context, facts: Facts, begun: LoaderRun, order: Order) -> None:
    """Resumes the resumed loader a second time."""
    if not os.path.exists(order["loads"]):  # the rest of the epoch was too short
        return
    seen = _run(ctx, order)
    facts["mistake"] = seen["mistake"]
    facts["second"] = _difference(begun, seen, seen["before"] + seen["rest"], facts["stopped"])
    facts["second_next"] = _next(begun, seen)


def _with_other_workers(ctx: Context, facts: Facts, begun: LoaderRun, order: Order) -> None:
    facts["other_workers"] = order["workers"]
    seen = _run(ctx, order)
    facts["workers_mistake"] = (seen["mistake"] or {}).get("text", "")
    facts["by_workers"] = _difference(begun, seen, seen["before"] + seen["rest"], 0)


Difference = tuple[Code, str, str, dict[str, Any]]
"""(code, severity, sentence, where)."""


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    """One finding per code, for all ranks that have it."""
    found: dict[str, dict[int, Difference]] = {}
    for rank in sorted(facts):
        for difference in _differences(facts[rank]):
            found.setdefault(difference[0].meaning, {})[rank] = difference
    for of_ranks in found.values():
        rank, (code, severity, text, where) = next(iter(of_ranks.items()))
        if len(of_ranks) < len(facts):
            text = f"{text} (on {ranges.ranks(of_ranks)} of {len(facts)})"
        if len(of_ranks) == 1 and len(facts) > 1:
            where = {**run.job.where(rank), **where}
        yield getattr(code, severity)(text, **where)
    yield from _unknown(facts)


def _unknown(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    ranks = [rank for rank, own in facts.items() if not own["known"] and not own["mistake"]]
    if ranks:
        yield NOT_COMPARED.not_measured(
            f"nothing that the resumed loader gave on {ranges.ranks(ranks)} had come before, nor in a second read from "
            "the start: its content is random, so that samples could not be compared"
        )


def _differences(own: Facts) -> Iterator[Difference]:
    if own["mistake"]:
        where = {key: own["mistake"][key] for key in ("file", "line") if own["mistake"].get(key)}
        yield REFUSED, "fail", f"{own['mistake']['text']} ({_how(own)} after {_batches(own['stopped'])})", where
    elif own["known"]:
        yield from _resumed(own)


def _resumed(own: Facts) -> Iterator[Difference]:
    first, stopped = own["first"], own["stopped"]
    if not own["holder"]:
        if own["skipped"] or first:
            text = f"{_loader(own)} has no state_dict, and yields a different order in a second process"
            differs = own["skipped"] or first
            at = f": {_unit(own)} {differs['first']:,} differs" if differs else ""
            yield UNSEEDED, "warn", f"{text}{at}, expected the same, so that batches can be skipped", {}
        elif own["next"]:
            yield NEXT_EPOCH, "fail", _of_next(own, own["next"]), {}
        return
    if first:
        yield CODES[first["kind"]], "fail", _sentence(own, first, stopped, "stopped after"), {}
    elif own["next"]:
        yield NEXT_EPOCH, "fail", _of_next(own, own["next"]), {}
    elif own["second"]:
        yield SECOND_RESUME, "fail", _sentence(own, own["second"], 2 * stopped, "stopped a second time after"), {}
    elif own["second_next"]:
        yield SECOND_RESUME, "fail", f"{_of_next(own, own['second_next'])} (after a second stop)", {}
    elif own["by_workers"]:
        now = f"with {own['other_workers']} DataLoader workers instead of {own['workers']}, stopped after"
        yield WORKERS_CHANGE_ORDER, "warn", _sentence(own, own["by_workers"], stopped, now), {}


def _loader(own: Facts) -> str:
    return f"loader {own['name']!r} ({own['loader']})" if own["name"] else f"the loader ({own['loader']})"


def _how(own: Facts) -> str:
    return f"resumed by load_state_dict of the {own['holder']}" if own["holder"] else "resumed by skipping"


def _batches(number: int) -> str:
    return f"{number:,} batch{'es' * (number != 1)}"


def _sentence(own: Facts, difference: ResumeDifference, stopped: int, when: str) -> str:
    shift = _units(own, difference["shift"])
    what = {
        "restarted": "restarts its epoch",
        "lost": f"skips the next {shift}",
        "repeated": f"yields the last {shift} again",
        "empty": f"ends at once, expected {shift} more",
        "order": f"continues in a different order, from {_unit(own)} {difference['first']:,} of the epoch on",
    }[difference["kind"]]
    text = f"{_loader(own)}, {when} {_batches(stopped)} and {_how(own)}, {what}"
    return (
        f"{text}, expected the {'samples' if own['by_index'] else 'batches'} that come next; {_counts(own, difference)}"
    )


def _unit(own: Facts) -> str:
    return "sample" if own["by_index"] else "batch"


def _units(own: Facts, number: int) -> str:
    return ranges.count(number, "sample") if own["by_index"] else _batches(number)


def _counts(own: Facts, difference: ResumeDifference) -> str:
    parts = []
    if again := difference["again"]:
        such = f" (such as {difference['again_example']})" * own["by_index"]
        parts.append(f"{_units(own, again)} come{'s' * (again == 1)} again{such}")
    if lost := difference["lost"]:
        such = f" (such as {difference['lost_example']})" * own["by_index"]
        parts.append(f"{_units(own, lost)} never come{'s' * (lost == 1)}{such}")
    return words.some(parts) or "the samples are the same"


def _of_next(own: Facts, difference: ResumeDifference) -> str:
    text = f"{_loader(own)}, {_how(own)} after {_batches(own['stopped'])}, ends its epoch correctly"
    what = "has no batch" if difference["kind"] == "empty" else f"differs from {_unit(own)} {difference['first']:,} on"
    return f"{text}, but the next epoch {what}, expected the same as in a run without a stop"


def summarize(facts: Mapping[int, Facts], run: Run) -> str:  # noqa: ARG001 -- the engine's signature
    """ "stopped after 3 batches and resumed by skipping: the same 9 batches, and the next epoch"."""
    own = facts[min(facts)]
    if any(next(_differences(other), None) and next(_differences(other))[1] != "info" for other in facts.values()):
        return "wrong, see its findings"
    if not all(other["known"] for other in facts.values()):
        return "unknown: its content is random, and nothing comes twice"
    epoch = " and the next epoch" if own["whole"] else ", the epoch is longer than was read"
    twice = ", twice" if own["holder"] else ""
    fixed = "; its state is refused with another number of workers" if own["workers_mistake"] else ""
    rest = f"the same {_batches(own['rest'])}{epoch}"
    return f"stopped after {_batches(own['stopped'])} and {_how(own)}{twice}: {rest}{fixed}"
