"""What `preflight diff` prints: what got worse, with what else changed, then the rest, then the verdict."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.core.finding import Reported
from preflight.core.rank_ranges import count
from preflight.core.vote import grouped
from preflight.core.words import clauses, some
from preflight.history.diff import worse_findings
from preflight.results import console
from preflight.results.result import badness

BESIDE, CHANGES = 3, 12
"""How many changes a story names, and how many are listed one by one."""
Difference = Mapping[str, Any]


def lines(found: Difference, old: str, new: str, width: int = console.WIDTH) -> list[str]:
    told = [f"preflight diff: {run(old, found['old'])}", f"            to  {run(new, found['new'])}"]
    grave = worse_findings(found["findings"])
    told += _slower(found, width) if slower(found) else []
    told += console.found_lines(sorted(map(Reported.from_json, grave), key=badness), width)
    told += console.indented(changed_beside(found), width) if grave and not slower(found) else []
    told += _changes(found["changes"][BESIDE if found["worse"] else 0 :], width)
    told += _nodes(found, width)
    told += _rest(found, grave, width)
    return [console.plain(line) for line in [*told, "", _verdict(found, grave)]]


def run(path: str, about: Mapping[str, str]) -> str:
    return f"{path} ({about['started']}, {about['job']}, {about['verdict'].upper()})"


def slower(found: Difference) -> list[Mapping[str, Any]]:
    return [speed for speed in found["speeds"] if speed["verdict"] == "worse"]


def story(found: Difference) -> list[str]:
    """About the speed that fell most: which, how far, the others in a sentence, and what else changed."""
    worst, *others = slower(found)
    on = f" on {some([_named(unit) for unit in worst['slow']])}" if worst["slow"] else ""
    values = f"{worst['old']:.3g} {worst['unit']} before, {worst['new']:.3g} now"
    text = f"{values}: {worst['ratio']:.0%} of before, expected at least {worst['least']:.0%}"
    also = [f"{speed['check']} {speed['name']} ({speed['ratio']:.0%} of before)" for speed in others]
    sentences = [f"{worst['check']} {worst['name']}{on}", f"{text}; the noise between ranks is {worst['noise']:.1%}"]
    return [*sentences, *([f"also slower: {some(also)}"] if also else []), changed_beside(found)]


def _slower(found: Difference, width: int) -> Iterator[str]:
    what, *sentences = story(found)
    yield from ("", f"SLOWER {what}")
    for sentence in sentences:
        yield from console.indented(sentence, width)


def _named(unit: Mapping[str, Any]) -> str:
    return unit["node"] if unit["unit"] == unit["node"] else f"{unit['node']} {unit['unit']}"


def changed_beside(found: Difference) -> str:
    changes = [_change(change) for change in found["changes"][:BESIDE]]
    changes += [f"the node {node} came" for node in found["nodes"]["came"]]
    told = clauses(changes, BESIDE)
    return f"also changed: {told}" if told else "nothing else that is recorded has changed"


def _change(change: Mapping[str, Any]) -> str:
    """ "variable NCCL_ALGO: not set before, now Ring, on node-1"."""
    none = "not set" if change["kind"] == "variable" else "not there"
    before, now = change["old"] or none, change["new"] or none
    on = f"on {some(change['nodes'])}"
    on += f" ({some(change['gpus'])})" if change["gpus"] else ""
    return f"{change['kind']} {change['name']}: {before[:80]} before, now {now[:80]}, {on}"


def _changes(changes: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    yield from [""] if changes else ()
    for change in changes[:CHANGES]:
        yield from console.indented(f"changed: {_change(change)}", width)
    if len(changes) > CHANGES:
        yield from console.indented(f"changed: {len(changes) - CHANGES:,} more, see --json", width)


def _nodes(found: Difference, width: int) -> Iterator[str]:
    nodes, gpus = found["nodes"], found["gpus"]
    moved = [f"{gpu} from {before} to {now}" for gpu, (before, now) in gpus["moved"].items()]
    for word, names in (
        ("nodes that came", nodes["came"]), ("nodes that went", nodes["went"]), ("GPUs that came", gpus["came"]),
        ("GPUs that went", gpus["went"]), ("GPUs that moved", moved),
    ):  # fmt: skip
        if names:
            yield from console.indented(f"{word}: {some(names, 8)}", width)


def _rest(found: Difference, grave: list[dict[str, Any]], width: int) -> Iterator[str]:
    """What got better or stayed, and what could not be compared."""
    came, went = found["findings"]["came"], found["findings"]["went"]
    heavier = [finding for finding in grave if finding not in came]
    light = [finding for finding in came if finding not in grave]
    for word, chosen in (("more severe than before", heavier), ("gone", went), ("new", light)):
        known = [f"{finding['severity']} {finding['code']} {_who(finding)}".strip() for finding in chosen]
        if known:
            yield from console.indented(f"{word}: {some(known)}", width)
    better = [f"{speed['check']} {speed['name']} ({speed['ratio']:.2g} times)" for speed in reversed(found["speeds"])
              if speed["verdict"] == "better"]  # fmt: skip
    yield from console.indented(f"faster: {some(better)}", width) if better else ()
    for (was, now), checks in grouped(found["checks"], lambda change: (change["old"], change["new"])).items():
        names = some([change["check"] for change in checks], 8)
        yield from console.indented(f"{was} before, now {now}: {names}", width)
    for what, why in found["not_compared"].items():
        yield from console.indented(f"not compared: {what}: {why}", width)


def _who(finding: Mapping[str, Any]) -> str:
    return console.culprit(Reported.from_json(finding))


def _verdict(found: Difference, grave: list[dict[str, Any]]) -> str:
    word = "WORSE" if found["worse"] else "NOT WORSE"
    return f"verdict: {word} ({', '.join(counts(found, grave))}), exit code {int(found['worse'])}"


def counts(found: Difference, grave: list[dict[str, Any]]) -> list[str]:
    slow = len(slower(found))
    parts = [f"{count(len(grave), 'finding')} came"] if grave else []
    parts += [f"{count(slow, 'speed')} fell"] if slow else []
    parts += [f"{count(len(found['speeds']), 'speed')} compared", count(len(found["changes"]), "change")]
    return [*parts, f"{count(len(found['findings']['stayed']), 'finding')} stayed"]
