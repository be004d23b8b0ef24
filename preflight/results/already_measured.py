"""A fix that sends the reader to what another check of the same run has measured says what that check found.

A check is judged when it ends, before later ones run: only the finished run knows. `Code.see` names the checks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from preflight.core import words
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.results.result import Result

MOST = 3
"""Findings, and checks that found nothing, which a fix names."""
LONGEST = 160
"""Characters of a summary."""


def resolved(results: Sequence[Result], job: Job) -> list[Result]:
    """The results, each `see` of their findings turned into words in its fix. Severities, codes and culprits stay."""
    node_of = {rank: node.node for node in job.nodes for rank in node.ranks}
    return [replace(own, findings=_resolved(own, results, node_of)) for own in results]


@dataclass
class _Seen:
    """What the checks that a fix names have found."""

    sound: list[Result] = field(default_factory=list)
    """All of them that have measured, for the case that none has found anything."""
    anywhere: list[Reported] = field(default_factory=list)
    """Causes that name no place."""
    by_node: dict[str, list[Reported]] = field(default_factory=dict)

    def add(self, result: Result, node_of: Mapping[int, str]) -> None:
        self.sound.append(result)
        for cause in result.findings:
            if cause.counts and cause.severity in ("fail", "warn"):
                nodes = _nodes(cause, node_of)
                for of_place in [self.by_node.setdefault(node, []) for node in nodes] or [self.anywhere]:
                    of_place.append(cause)

    def at(self, finding: Reported, node_of: Mapping[int, str]) -> list[Reported]:
        """The causes at the finding's place; those of all places if it names none."""
        nodes = _nodes(finding, node_of) or self.by_node.keys()
        found = [*self.anywhere, *(cause for node in nodes for cause in self.by_node.get(node, ()))]
        rank = finding.where.get("rank")
        return [cause for cause in found if rank is None or cause.where.get("rank", rank) == rank]


def _resolved(own: Result, results: Sequence[Result], node_of: Mapping[int, str]) -> list[Reported]:
    seen: dict[tuple[str, ...], _Seen] = {}
    found = []
    for finding in own.findings:
        see = tuple(finding.see or ())
        if see not in seen:
            seen[see] = _Seen()
            for result in results:
                if result is not own and _is_named(result.check, see) and _is_measured(result):
                    seen[see].add(result, node_of)
        fix = _with_what_is_known(finding, see, seen[see], node_of)
        found.append(replace(finding, fix=fix, see=None, cleared=""))
    return found


def _with_what_is_known(finding: Reported, see: Sequence[str], seen: _Seen, node_of: Mapping[int, str]) -> str:
    fix = finding.fix
    if causes := seen.at(finding, node_of):
        named = words.some(dict.fromkeys(map(_in_words, causes)), MOST)
        return f"This run has found {named}, a possible cause: see to that first. Else: {fix}"
    if finding.cleared and any(_is_named(other.check, see[:1]) for other in seen.sound):
        return f"{_sound(seen.sound)} found nothing{_there(finding)}. {finding.cleared}"
    return f"{fix} ({_sound(seen.sound)} found nothing{_there(finding)} in this run.)" if seen.sound else fix


def _is_named(check: str, see: Sequence[str]) -> bool:
    return check in see or check.partition(".")[0] in see


def _is_measured(result: Result) -> bool:
    """Whether its silence says something: every rank that it asked has measured all, and what it found was judged."""
    kinds = {outcome.kind for outcome in result.outcomes.values()}
    return kinds == {"measured"} and result.status != "error" and result.why_skipped is None


def _nodes(finding: Reported, node_of: Mapping[int, str]) -> set[str]:
    where = finding.where
    of_ranks = {node_of.get(where[key], "") for key in ("rank", "peer_rank") if key in where} - {""}
    return {where[key] for key in ("node", "peer_node") if key in where} | of_ranks


def _in_words(cause: Reported) -> str:
    keys = [key for key in ("node", "rank", "gpu", "device", "interface", "peer_node") if key in cause.where]
    place = ", ".join(f"{key.replace('_', ' ')} {cause.where[key]}" for key in keys).removeprefix("node ")
    return f"{cause.code} ({place})" if place else cause.code


def _there(finding: Reported) -> str:
    return " there" if {"node", "rank"} & finding.where.keys() else ""


def _sound(seen: Iterable[Result]) -> str:
    """ "comm.rails (4 links: 1.2 GB/s median, 1.1 GB/s at least) and net.mesh"."""
    named = [f"{result.check} ({_cut(result.summary)})" if result.summary else result.check for result in seen]
    return words.some(named, MOST)


def _cut(summary: str) -> str:
    return summary if len(summary) <= LONGEST else f"{summary[:LONGEST]}..."
