"""What the search for a broken way has found, in words."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from preflight.check import Code, Finding, Run, ranges, words
from preflight.checks.comm.paths import ways
from preflight.checks.comm.paths.search import SIMPLEST, Found, PairTrial
from preflight.checks.comm.paths.timed import NO_ANSWER, NOT_TIMED
from preflight.checks.comm.paths.trial import Trial
from preflight.checks.comm.paths.ways import AS_IT_IS

BROKEN = Code(
    "A collective fails, or works only without one of NCCL's transports.",
    fix="Check that transport's services, cables and settings.",
)
ENOUGH_S = 30.0
"""For a process, to make its CUDA context and to start NCCL: where it had less, no answer says nothing."""
NO_WAY = "No transport is to blame: see comm.init, and the end of NCCL's log (--report DIR, in DIR/logs)."
ALL_WAYS = {way.without: way for way in (*ways.singly(2), *ways.of_sockets(1), *ways.of_sockets(2))}


def findings(found: Found, patience_s: float, run: Run) -> Iterator[Finding]:
    """Where an all-reduce has failed as the job runs it. `patience_s`: what a process had."""
    trials = found["trials"]
    all_hung = all(any(text.startswith(NO_ANSWER) for text in trial["failed"]) for trial in trials)
    slow_start = all_hung and not any(trial["works"] for trial in trials)
    if slow_start and patience_s < ENOUGH_S:
        text = f"no first all-reduce ended, in any way, within the {patience_s:.0f} s for each process"
        yield NOT_TIMED.not_measured(f"{text}, expected {ENOUGH_S:g} s or more")
        return
    own = [trial for trial in trials if trial["without"] == AS_IT_IS]
    text = f"a first all-reduce fails {AS_IT_IS} ({_why(own[0])})"
    helps, once = _helps(trials), _once(trials)
    if own[-1]["works"]:
        yield BROKEN.fail(f"{text} once, and works once; expected it to work", fix=NO_WAY)
    elif helps:
        bad = [pair for pair in found["pairs"] if pair["failed"]]
        text += f", twice, and works {helps}, twice{_of_pairs(bad, found['pairs'], run)}; expected it to work"
        yield BROKEN.fail(text, fix=ALL_WAYS[helps].fix, **_culprit(bad, found["pairs"], run))
    elif once:
        text += f", and has worked once {once}: there was no time to try both again; expected it to work"
        yield BROKEN.fail(text, fix=ALL_WAYS[once].fix)
    else:
        tried = words.some((trial["without"] for trial in trials if trial["without"] != AS_IT_IS), 8)
        yield BROKEN.fail(f"{text}, {_of_all(found['trials'])} ({tried}); expected it to work", fix=NO_WAY)


def _helps(trials: Sequence[Trial]) -> str | None:
    """What has worked twice."""
    worked = Counter(trial["without"] for trial in trials if trial["works"])
    return next((without for without, times in worked.items() if times > 1), None)


def _once(trials: Sequence[Trial]) -> str | None:
    """What has worked, and was not tried again."""
    times = Counter(trial["without"] for trial in trials)
    worked = (trial["without"] for trial in trials if trial["works"])
    return next((without for without in worked if without in ALL_WAYS and times[without] == 1), None)


def _of_all(trials: Sequence[Trial]) -> str:
    simple = any(trial["works"] for trial in trials if trial["without"] == SIMPLEST.without)
    return "works over sockets only, and without no single way" if simple else "and in no other way"


def _why(trial: Trial) -> str:
    """Where a rank has not answered, what the others say is its consequence."""
    hung = {text: ranks for text, ranks in trial["failed"].items() if text.startswith(NO_ANSWER)}
    why = (hung or trial["failed"]).items()
    return words.clauses([f"{ranges.ranks(ranges.from_text(ranks))}: {text}" for text, ranks in why], 2)


def _of_pairs(bad: Sequence[PairTrial], tried: Sequence[PairTrial], run: Run) -> str:
    if not bad:
        return f"; each two GPUs of a node alone can do it ({ranges.count(len(tried), 'pair')})" if tried else ""
    named = words.some(_pair(pair, run) for pair in bad)
    return f"; of {ranges.count(len(tried), 'pair')} of GPUs {len(bad)} cannot do it: {named}"


def _pair(pair: PairTrial, run: Run) -> str:
    (a, b), node = pair["ranks"], run.job.node_of(pair["ranks"][0])
    places = [node.ranks.index(rank) for rank in (a, b)]
    return f"GPUs {places[0]} and {places[1]} of {node.node} (ranks {a} and {b})"


def _culprit(bad: Sequence[PairTrial], tried: Sequence[PairTrial], run: Run) -> dict[str, Any]:
    """A node if only its GPUs fail, a rank if all its pairs and no other fail, a link if it is one pair."""
    nodes = {run.job.node_of(pair["ranks"][0]).node for pair in bad}
    if len(nodes) != 1:
        alone = {run.job.node_of(rank).node for rank in run.members}
        return {"node": alone.pop()} if len(alone) == 1 else {}
    of_rank = Counter(rank for pair in tried for rank in pair["ranks"])
    failed = Counter(rank for pair in bad for rank in pair["ranks"])
    whole = [rank for rank, times in failed.items() if times == len(bad) and times == of_rank[rank] > 1]
    if len(whole) == 1:
        return run.job.where(whole[0])
    first, second = bad[0]["ranks"]
    link = {"link": f"rank {first} and rank {second}"} if len(bad) == 1 else {}
    return {"node": nodes.pop(), **link}
