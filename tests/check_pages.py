"""docs/checks/: a page a check, out of its code. `python -m tests.check_pages` writes them."""

from collections.abc import Iterator
from pathlib import Path

from preflight import describe, registry
from preflight.explain import pages as explained
from preflight.rendezvous import codes

FOLDER = Path(__file__).parent.parent / "docs" / "checks"


def pages() -> Iterator[tuple[str, str]]:
    """(file name, text) of each, and of the list of all."""
    checks = [registry.load(source) for source in registry.sources().values() if source.kind == "builtin"]
    lines = ["# The checks", "", "Generated from the code by `python -m tests.check_pages`; a test keeps it fresh.", ""]
    lines += ["| check | level | measured by | what holds on a sound machine |", "|---|---|---|---|"]
    for check in checks:
        yield f"{check.id}.md", describe.markdown(check)
        row = (f"[{check.id}]({check.id}.md)", check.plan.level, describe.WHO[check.plan.scope], check.title)
        lines.append(f"| {' | '.join(row)} |")
    yield f"{codes.FAMILY}.md", codes.markdown()
    yield f"{explained.FAMILY}.md", explained.markdown()
    yield "README.md", "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages():
        (FOLDER / name).write_text(text)
