"""What `preflight history` prints."""

from collections.abc import Iterator

from preflight.core.rank_ranges import count
from preflight.core.words import clauses, some
from preflight.history.questions import Answers, FailingNode, FigureStep, RenamedHost, Repair
from preflight.results import console

MOST = 10
"""How many of each kind are on the screen."""


def lines(found: Answers, path: str, width: int = console.WIDTH) -> list[str]:
    since = f", from {found.first} to {found.last}" if found.runs else ""
    listed = [f"preflight history: {path}: {count(found.runs, 'run')}{since}"]
    for title, texts in (
        ("nodes that fail again and again, of the last 30 days", [_failing(node) for node in found.failing]),
        ("repaired, and came back", [_repair(each) for each in found.came_back]),
        ("repaired", [_repair(each) for each in found.repaired]),
        ("figures that became worse", [_step(step) for step in found.steps]),
    ):
        listed += _section(title, texts, width)
    if found.renamed:
        listed += _section("renamed hosts, by their machine ids", [_rename(host) for host in found.renamed], width)
    return [console.plain(line) for line in listed]


def _section(title: str, texts: list[str], width: int) -> Iterator[str]:
    yield from ("", f"{title}: {'none' if not texts else ''}".rstrip())
    for text in texts[:MOST]:
        yield from console.indented(text, width)
    if len(texts) > MOST:
        yield from console.indented(f"{len(texts) - MOST:,} more, see --json", width)


def _rename(host: RenamedHost) -> str:
    return f"{host.node}: was {host.earlier} until {host.until}; its history includes that time"


def _failing(node: FailingNode) -> str:
    share = f"failed in {node.failed} of {count(node.runs, 'run')}, on {node.spells} occasions"
    return f"{node.node}: score {node.score:.2f}, {share}: {some(node.codes)}"


def _repair(repair: Repair) -> str:
    unit = repair.node if repair.unit == repair.node else f"{repair.unit} (now in {repair.node})"
    return f"{unit} {repair.code}: {count(repair.found, 'run')}, first {repair.first}, last {repair.last}"


def _step(step: FigureStep) -> str:
    where = step.series.unit or step.series.kind
    text = f"{step.series.check} {step.series.name}: {step.before:.4g} to {step.after:.4g} {step.series.measure} "
    text += f"({step.ratio - 1:+.1%}) since {step.since}, {where}{'; it is over' * step.over}"
    return f"{text}; changed then: {clauses(step.changed) or 'nothing that is recorded'}"
