"""The page of `preflight diff --html`: the text of the screen, all values in tables, and the speeds as a picture."""

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from preflight.core.finding import Reported
from preflight.core.words import some
from preflight.history import ratios, telling
from preflight.history.diff import worse_findings
from preflight.results import console
from preflight.results.page import frame, plotted
from preflight.results.page.marks import joined, tag

Difference = Mapping[str, Any]
MOST = 200
"""The most rows of a table; the JSON has all."""
FINDINGS = (("came", "New"), ("went", "Gone"), ("stayed", "As before"))


def html(found: Difference, old: str, new: str) -> str:
    grave = worse_findings(found["findings"])
    body = frame.render(
        "runs.html", word="Worse" if found["worse"] else "Not worse", severity="fail" if found["worse"] else "pass",
        sentence=console.plain(f"{', '.join(telling.counts(found, grave))}."), sections=[*_sections(found)],
        lines=[console.plain(line) for line in (*_first(found, grave), f"From {telling.run(old, found['old'])}",
                                                f"to {telling.run(new, found['new'])}")],
    )  # fmt: skip
    return frame.document("preflight diff", body, {})


def _first(found: Difference, grave: list[dict[str, Any]]) -> list[str]:
    """The lines for a reader who reads nothing else."""
    if telling.slower(found):
        what, *told = telling.story(found)
        return [f"Slower: {what}.", *map(_sentence, told)]
    told = [
        f"{console.culprit(Reported.from_json(finding)) or 'No known culprit'}: {finding['message']}"
        for finding in grave[:1]
    ]
    return [*told, _sentence(telling.changed_beside(found))] if grave else []


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _sections(found: Difference) -> Iterator[dict[str, Any]]:
    yield _section("findings", "Findings", _findings(found), sum(len(its) for its in found["findings"].values()))
    changes = [
        [change["kind"], change["name"], _value(change, "old"), _value(change, "new"), some(change["nodes"], 8),
         some(change["gpus"], 8)]
        for change in found["changes"]
    ]  # fmt: skip
    heads = ["kind", "name", "before", "now", "nodes", "GPUs"]
    yield _section("changes", "What changed", _table(heads, changes, "changes"), len(changes))
    yield _section("speeds", "Speeds", _speeds(found), len(found["speeds"]))
    rows = [*_moves(found)]
    yield _section("nodes", "Nodes and GPUs", _table(["", "name", "from", "to"], rows, "nodes"), len(rows))
    silent = [[its["check"], its["old"], its["new"]] for its in found["checks"]]
    left = [[what, why] for what, why in found["not_compared"].items()]
    content = (_table(["check", "before", "now"], silent, "checks") if silent else Markup("")) + (
        _table(["not compared", "why"], left, "not_compared") if left else Markup("")
    )
    if silent or left:
        yield _section("silent", "Not compared", content, None)


def _section(id_: str, title: str, content: Markup, count: int | None) -> dict[str, Any]:
    return {"id": id_, "title": title, "content": content, "count": count, "note": "", "figures": []}


def _table(heads: list[str], rows: list[list[str]], name: str) -> Markup:
    """A table, with the number of rows that did not fit below it."""
    shown = [[console.plain(cell) for cell in row] for row in rows[:MOST]]
    left = tag("p", f"{len(rows) - MOST:,} more are in --json.") if len(rows) > MOST else Markup("")
    return (plotted.table(heads, shown, name) or tag("p", "None.")) + left


def _value(change: Mapping[str, Any], which: str) -> str:
    return str(change[which]) or ("not set" if change["kind"] == "variable" else "not there")


def _findings(found: Difference) -> Markup:
    heads = ["severity", "culprit", "what was found", "fix", "code"]
    listed = [(title, found["findings"][name]) for name, title in FINDINGS if found["findings"][name]]
    tables = [tag("h3", title) + _table(heads, [_finding(its) for its in group], title) for title, group in listed]
    return joined(tables) or tag("p", "Neither run found anything.")


def _finding(its: Mapping[str, Any]) -> list[str]:
    before = its.get("severity_before", its["severity"])
    severity = its["severity"] if before == its["severity"] else f"{its['severity']}, {before} before"
    severity = "waived" if "waived" in its else severity
    who = console.culprit(Reported.from_json(its)) or "no known culprit"
    return [severity, who, its["message"], its["fix"], its["code"]]


def _speeds(found: Difference) -> Markup:
    if not found["speeds"]:
        return tag("p", "There is no speed that both runs measured.")
    heads, rows = ratios.table(found["speeds"])
    return ratios.draw(found["speeds"]) + tag(
        "details", tag("summary", "Table") + _table(heads, rows, "speeds"), open="" if len(rows) <= 12 else None
    )  # fmt: skip


def _moves(found: Difference) -> Iterator[list[str]]:
    for kind in ("nodes", "gpus"):
        word = {"nodes": "node", "gpus": "GPU"}[kind]
        yield from ([f"{word} came", name, "", ""] for name in found[kind]["came"])
        yield from ([f"{word} went", name, "", ""] for name in found[kind]["went"])
    yield from (["GPU moved", gpu, before, now] for gpu, (before, now) in found["gpus"]["moved"].items())
