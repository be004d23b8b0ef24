"""What `preflight diff` prints: what got worse, with what else changed, then the rest, then the verdict."""

from collections.abc import Iterator, Sequence

from preflight.core.rank_ranges import count
from preflight.core.vote import grouped
from preflight.core.words import clauses, some
from preflight.history.difference import ComparedFinding, RunDifference, TraitChange
from preflight.history.run_entry import RunEntry
from preflight.results import console
from preflight.results.result import badness

BESIDE, CHANGES = 3, 12
"""How many changes a story names, and how many are listed one by one."""


def lines(found: RunDifference, old: str, new: str, width: int = console.WIDTH) -> list[str]:
    listed = [f"preflight diff: {run(old, found.old)}", f"            to  {run(new, found.new)}"]
    grave, slower = found.findings.worse, found.slower
    listed += _slower(found, width) if slower else []
    listed += console.found_lines(sorted((each.finding for each in grave), key=badness), width)
    listed += console.indented(changed_beside(found), width) if grave and not slower else []
    listed += _changes(found.changes[BESIDE if found.is_worse else 0 :], width)
    listed += _nodes(found, width)
    listed += _rest(found, grave, width)
    return [console.plain(line) for line in [*listed, "", _verdict(found)]]


def run(path: str, entry: RunEntry) -> str:
    return f"{path} ({entry.started}, {entry.job}, {entry.verdict.upper()})"


def story(found: RunDifference) -> list[str]:
    """About the speed that fell most: which, how far, the others in a sentence, and what else changed."""
    worst, *others = found.slower
    on = f" on {some([unit.label for unit in worst.slow])}" if worst.slow else ""
    values = f"{worst.old:.3g} {worst.unit} before, {worst.new:.3g} now"
    text = f"{values}: {worst.ratio:.0%} of before, expected at least {worst.least:.0%}"
    also = [f"{speed.check} {speed.name} ({speed.ratio:.0%} of before)" for speed in others]
    sentences = [f"{worst.check} {worst.name}{on}", f"{text}; the noise between ranks is {worst.noise:.1%}"]
    return [*sentences, *([f"also slower: {some(also)}"] if also else []), changed_beside(found)]


def _slower(found: RunDifference, width: int) -> Iterator[str]:
    what, *sentences = story(found)
    yield from ("", f"SLOWER {what}")
    for sentence in sentences:
        yield from console.indented(sentence, width)


def changed_beside(found: RunDifference) -> str:
    changes = [_change(change) for change in found.changes[:BESIDE]]
    changes += [f"the node {node} came" for node in found.nodes.came]
    listed = clauses(changes, BESIDE)
    return f"also changed: {listed}" if listed else "nothing else that is recorded has changed"


def _change(change: TraitChange) -> str:
    """ "variable NCCL_ALGO: not set before, now Ring, on node-1"."""
    before, now = change.shown(change.old), change.shown(change.new)
    on = f"on {some(change.nodes)}"
    on += f" ({some(change.gpus)})" if change.gpus else ""
    return f"{change.kind} {change.name}: {before[:80]} before, now {now[:80]}, {on}"


def _changes(changes: Sequence[TraitChange], width: int) -> Iterator[str]:
    yield from [""] if changes else ()
    for change in changes[:CHANGES]:
        yield from console.indented(f"changed: {_change(change)}", width)
    if len(changes) > CHANGES:
        yield from console.indented(f"changed: {len(changes) - CHANGES:,} more, see --json", width)


def _nodes(found: RunDifference, width: int) -> Iterator[str]:
    moved = [f"{gpu} from {before} to {now}" for gpu, (before, now) in found.moved.items()]
    for word, names in (
        ("nodes that came", found.nodes.came), ("nodes that went", found.nodes.went),
        ("GPUs that came", found.gpus.came), ("GPUs that went", found.gpus.went), ("GPUs that moved", moved),
    ):  # fmt: skip
        if names:
            yield from console.indented(f"{word}: {some(names, 8)}", width)


def _rest(found: RunDifference, grave: Sequence[ComparedFinding], width: int) -> Iterator[str]:
    """What got better or stayed, and what could not be compared."""
    came, went = found.findings.came, found.findings.went
    heavier = [each for each in grave if each not in came]
    light = [each for each in came if each not in grave]
    for word, chosen in (("more severe than before", heavier), ("gone", went), ("new", light)):
        known = [
            f"{each.finding.severity} {each.finding.code} {console.culprit(each.finding)}".strip() for each in chosen
        ]
        if known:
            yield from console.indented(f"{word}: {some(known)}", width)
    better = [f"{speed.check} {speed.name} ({speed.ratio:.2g} times)" for speed in reversed(found.speeds)
              if speed.verdict == "better"]  # fmt: skip
    yield from console.indented(f"faster: {some(better)}", width) if better else ()
    for (was, now), checks in grouped(found.checks, lambda change: (change.old, change.new)).items():
        names = some([change.check for change in checks], 8)
        yield from console.indented(f"{was} before, now {now}: {names}", width)
    for what, why in found.not_compared.items():
        yield from console.indented(f"not compared: {what}: {why}", width)


def _verdict(found: RunDifference) -> str:
    word = "WORSE" if found.is_worse else "NOT WORSE"
    return f"verdict: {word} ({', '.join(counts(found))}), exit code {int(found.is_worse)}"


def counts(found: RunDifference) -> list[str]:
    grave, slow = len(found.findings.worse), len(found.slower)
    parts = [f"{count(grave, 'finding')} came"] if grave else []
    parts += [f"{count(slow, 'speed')} fell"] if slow else []
    parts += [f"{count(len(found.speeds), 'speed')} compared", count(len(found.changes), "change")]
    return [*parts, f"{count(len(found.findings.stayed), 'finding')} stayed"]
