"""What `preflight history` prints."""

from collections.abc import Iterator, Mapping
from typing import Any

from preflight.core.rank_ranges import count
from preflight.core.words import clauses, some
from preflight.results import console

MOST = 10
"""How many of each kind are on the screen."""


def lines(found: Mapping[str, Any], path: str, width: int = console.WIDTH) -> list[str]:
    since = f", from {found['first']} to {found['last']}" if found["runs"] else ""
    told = [f"preflight history: {path}: {count(found['runs'], 'run')}{since}"]
    for title, texts in (
        ("nodes that fail again and again, of the last 30 days", [_failing(node) for node in found["failing"]]),
        ("repaired, and came back", [_spell(spell) for spell in found["came_back"]]),
        ("repaired", [_spell(spell) for spell in found["repaired"]]),
        ("figures that became worse", [_step(step) for step in found["steps"]]),
    ):
        told += _section(title, texts, width)
    if found["renamed"]:
        told += _section("renamed hosts, by their machine ids", [_rename(host) for host in found["renamed"]], width)
    return [console.plain(line) for line in told]


def _section(title: str, texts: list[str], width: int) -> Iterator[str]:
    yield from ("", f"{title}: {'none' if not texts else ''}".rstrip())
    for text in texts[:MOST]:
        yield from console.indented(text, width)
    if len(texts) > MOST:
        yield from console.indented(f"{len(texts) - MOST:,} more, see --json", width)


def _rename(host: Mapping[str, Any]) -> str:
    return f"{host['node']}: was {host['earlier']} until {host['until']}; its history includes that time"


def _failing(node: Mapping[str, Any]) -> str:
    share = f"failed in {node['failed']} of {count(node['runs'], 'run')}, on {node['spells']} occasions"
    return f"{node['node']}: score {node['score']:.2f}, {share}: {some(node['codes'])}"


def _spell(spell: Mapping[str, Any]) -> str:
    unit = spell["node"] if spell["unit"] == spell["node"] else f"{spell['unit']} (now in {spell['node']})"
    return f"{unit} {spell['code']}: {count(spell['found'], 'run')}, first {spell['first']}, last {spell['last']}"


def _step(step: Mapping[str, Any]) -> str:
    where = step["unit"] or step["kind"]
    text = f"{step['check']} {step['name']}: {step['before']:.4g} to {step['after']:.4g} {step['measure']} "
    text += f"({step['ratio'] - 1:+.1%}) since {step['since']}, {where}{'; it is over' * step['over']}"
    return f"{text}; changed then: {clauses(step['changed']) or 'nothing that is recorded'}"
