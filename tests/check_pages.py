"""docs/checks/: a page per check, out of its code; and the list of all, for `preflight list`. `python -m
tests.check_pages` writes them, docs/options.md and docs/book.md."""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from preflight.check import Code
from preflight.core.finding import OWN_SLUGS
from preflight.explain import pages as explained
from preflight.failure_book.book import book
from preflight.planning import built_in, describe, levels, registry
from preflight.rendezvous import codes
from tests import book_page, option_page

FOLDER = Path(__file__).parent.parent / "docs" / "checks"
ABOUT = """A check's page says what it measures, what each finding means, what to do, and which options there are.
Around every check the engine finds ranks that never come, hang, crash or are lost: [faults](../faults.md) lists what
the tests make for real. Before torchrun: [{before}]({before}.md). After a failure: [{after}]({after}.md)."""


def pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of each, and of the list of all."""
    checks = [registry.load(source) for source in registry.sources().values() if source.kind == "builtin"]
    lines = ["# The checks", "", "Generated from the code by `python -m tests.check_pages`; a test keeps it fresh.", ""]
    lines += [ABOUT.format(before=codes.FAMILY, after=explained.FAMILY), ""]
    lines += ["| check | level | measured by | what holds on a sound machine | findings |", "|---|---|---|---|---|"]
    for check in checks:
        yield f"{check.id}.md", _page(check)
        row = (levels.of(check).level, describe.WHO[check.plan.scope], check.title, _findings(check))
        lines.append(f"| [{check.id}]({check.id}.md) | {' | '.join(row)} |")
    yield f"{codes.FAMILY}.md", _page_of_rendezvous()
    yield f"{explained.FAMILY}.md", _page_of_explain()
    yield "README.md", "\n".join(lines) + "\n"


def catalog() -> str:
    """preflight/planning/built_in.tsv."""
    checks = [registry.load(source) for source in registry.sources().values() if source.kind == "builtin"]
    return "".join(f"{built_in.of(check).to_text()}\n" for check in checks)


def _page_of_rendezvous() -> str:
    about = "What the command `preflight rendezvous` finds before a launch ([how](../rendezvous.md))."
    lines = [f"# {codes.FAMILY}", "", about, "", *_rows(codes.by_slug())]
    return "\n".join(lines) + "\n"


def _page_of_explain() -> str:
    about = "What the command `preflight explain` finds ([how](../explain.md))."
    lines = [f"# {explained.FAMILY}", "", about, ""]
    lines += ["| code | meaning | what to do | [action](../actions.md) | signatures |", "|---|---|---|---|---|"]
    counts = Counter(signature.slug for signature in book().signatures)
    for slug, cause in book().causes.items():
        fix = cause.fix.replace("|", "\\|")
        lines.append(f"| `{slug}` | {cause.meaning} | {fix} | `{cause.action}` | {counts[slug]} |")
    lines += [f"| `{slug}` | {meaning} | see the evidence | `none` | |" for slug, meaning in explained.OWN.items()]
    return "\n".join(lines) + "\n"


def _findings(check: registry.Check) -> str:
    return ", ".join(f"`{slug}`" for slug in check.codes)


def _page(check: registry.Check) -> str:
    about = inspect.cleandoc(check.module.__doc__ or check.title)
    lines = [
        f"# {check.id}",
        "",
        about,
        "",
        f"{describe.cost(check)[0].upper()}{describe.cost(check)[1:]}.",
        "",
        "## Findings",
        "",
    ]
    lines += _rows(check.codes)
    lines += ["", "Under every check also the engine's: " + ", ".join(f"`{slug}`" for slug in OWN_SLUGS) + "."]
    if check.options:
        lines += ["", "## Options", "", "| `--set` | default | meaning |", "|---|---|---|"]
    for name, option in check.options.items():
        lines.append(f"| `{check.id}.{name}` | {describe.default_text(option.default)} | {_cell(option.help)} |")
    return "\n".join(lines) + "\n"


def _rows(known: Mapping[str, Code]) -> list[str]:
    lines = ["| code | meaning | what to do | [action](../actions.md) |", "|---|---|---|---|"]
    rows = ((slug, _cell(code.meaning), _cell(code.fix), code.action) for slug, code in known.items())
    return lines + [f"| `{slug}` | {meaning} | {fix} | `{action}` |" for slug, meaning, fix, action in rows]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    Path(built_in.PATH).write_text(catalog())
    for name, text in pages():
        (FOLDER / name).write_text(text)
    option_page.PATH.write_text(option_page.text())
    book_page.PATH.write_text(book_page.text())
