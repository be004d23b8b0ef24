"""The page of `preflight diff --html`: the text of the screen, all values in tables, and the speeds as a picture."""

from collections.abc import Iterator

from markupsafe import Markup

from preflight.core.words import some
from preflight.history import ratios, telling
from preflight.history.difference import ComparedFinding, RunDifference
from preflight.results import console
from preflight.results.page import frame, plotted
from preflight.results.page.marks import joined, tag

MOST = 200
"""The most rows of a table; the JSON has all."""


def html(found: RunDifference, old: str, new: str) -> str:
    body = frame.render(
        "runs.html", word="Worse" if found.is_worse else "Not worse", severity="fail" if found.is_worse else "pass",
        sentence=console.plain(f"{', '.join(telling.counts(found))}."), sections=[*_sections(found)],
        lines=[console.plain(line) for line in (*_first(found), f"From {telling.run(old, found.old)}",
                                                f"to {telling.run(new, found.new)}")],
    )  # fmt: skip
    return frame.document("preflight diff", body, {})


def _first(found: RunDifference) -> list[str]:
    """The lines for a reader who reads nothing else."""
    if found.slower:
        what, *sentences = telling.story(found)
        return [f"Slower: {what}.", *map(_sentence, sentences)]
    grave = [each.finding for each in found.findings.worse[:1]]
    listed = [f"{console.culprit(finding) or 'No known culprit'}: {finding.message}" for finding in grave]
    return [*listed, _sentence(telling.changed_beside(found))] if grave else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _sections(found: RunDifference) -> Iterator[dict[str, object]]:
    groups = (("New", found.findings.came), ("Gone", found.findings.went), ("As before", found.findings.stayed))
    heads = ["severity", "culprit", "what was found", "fix", "code"]
    tables = [tag("h3", title) + _table(heads, [_finding(each) for each in group], title)
              for title, group in groups if group]  # fmt: skip
    content = joined(tables) or tag("p", "Neither run found anything.")
    yield _section("findings", "Findings", content, sum(len(group) for _, group in groups))
    changes = [
        [change.kind, change.name, change.shown(change.old), change.shown(change.new), some(change.nodes, 8),
         some(change.gpus, 8)]
        for change in found.changes
    ]  # fmt: skip
    heads = ["kind", "name", "before", "now", "nodes", "GPUs"]
    yield _section("changes", "What changed", _table(heads, changes, "changes"), len(changes))
    yield _section("speeds", "Speeds", _speeds(found), len(found.speeds))
    rows = [*_moves(found)]
    yield _section("nodes", "Nodes and GPUs", _table(["", "name", "from", "to"], rows, "nodes"), len(rows))
    silent = [[change.check, change.old, change.new] for change in found.checks]
    left = [[what, why] for what, why in found.not_compared.items()]
    content = (_table(["check", "before", "now"], silent, "checks") if silent else Markup("")) + (
        _table(["not compared", "why"], left, "not_compared") if left else Markup("")
    )
    if silent or left:
        yield _section("silent", "Not compared", content, None)


def _section(id_: str, title: str, content: Markup, count: int | None) -> dict[str, object]:
    return {"id": id_, "title": title, "content": content, "count": count, "note": "", "figures": []}


def _table(heads: list[str], rows: list[list[str]], name: str) -> Markup:
    """A table, with the number of rows that did not fit below it."""
    shown = [[console.plain(cell) for cell in row] for row in rows[:MOST]]
    left = tag("p", f"{len(rows) - MOST:,} more are in --json.") if len(rows) > MOST else Markup("")
    return (plotted.table(heads, shown, name) or tag("p", "None.")) + left


def _finding(compared: ComparedFinding) -> list[str]:
    finding, before = compared.finding, compared.severity_before
    severity = f"{finding.severity}, {before} before" if before not in (None, finding.severity) else finding.severity
    severity = "waived" if finding.waived is not None else severity
    who = console.culprit(finding) or "no known culprit"
    return [severity, who, finding.message, finding.fix, finding.code]


def _speeds(found: RunDifference) -> Markup:
    if not found.speeds:
        return tag("p", "There is no speed that both runs measured.")
    heads, rows = ratios.table(found.speeds)
    return ratios.draw(found.speeds) + tag(
        "details", tag("summary", "Table") + _table(heads, rows, "speeds"), open="" if len(rows) <= 12 else None
    )  # fmt: skip


def _moves(found: RunDifference) -> Iterator[list[str]]:
    for word, members in (("node", found.nodes), ("GPU", found.gpus)):
        yield from ([f"{word} came", name, "", ""] for name in members.came)
        yield from ([f"{word} went", name, "", ""] for name in members.went)
    yield from (["GPU moved", gpu, before, now] for gpu, (before, now) in found.moved.items())
