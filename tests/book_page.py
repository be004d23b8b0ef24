"""docs/book.md: all lines that preflight knows, by family, with sources. `python -m tests.check_pages` writes it."""

import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from preflight.failure_book import xids
from preflight.failure_book.book import Signature, book

PATH = Path(__file__).parent.parent / "docs" / "book.md"
ABOUT = """# The book: what preflight knows of logs

Generated from the code by `python -m tests.check_pages`; a test keeps it fresh. `preflight explain` and `debug` read
all of it, node.kernel the kernel's lines (column `live`: its finding and how bad it is), comm.init the rows with a code
of its own there. [How to add a row](writing-a-signature.md); [causes and what to do](checks/explain.md).

A row with cause `-` is no finding by itself: others need it. Groups in braces are read from the line.
"""
HEAD = "| name | what it says | cause | live | versions | source |\n" + "|---" * 6 + "|"
HEAD_OF_XIDS = (
    "| number | what it means | live | afterwards | what to do | NVIDIA's own action | GPUs, drivers | source |\n"
    + "|---" * 8 + "|"
)  # fmt: skip
WORDS = {"cause": "", "failure": " (seen)", "fallout": " (afterwards)", "slower": " (beside)", "harmless": "harmless"}


def text() -> str:
    sections = [ABOUT, *_table_of_contents(), *_xids()]
    for file, title, rows in _families():
        sections.append(f"\n## {file}\n\n{title}\n\n{HEAD}")
        sections += [_row(row) for row in rows]
    return "\n".join(sections) + "\n"


def _families() -> Iterator[tuple[str, str, list[Signature]]]:
    """(file, what it is about, its rows)."""
    folder = resources.files("preflight.failure_book") / "signatures"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            read = file.read_text(encoding="utf-8")
            names = [row["name"] for row in tomllib.loads(read).get("signature", ())]  # and not the forms of last words
            comment = re.match(r"(?:#.*\n)+", read)
            about = " ".join(line.lstrip("# ") for line in comment[0].splitlines()) if comment else ""
            if names:
                yield file.name.removesuffix(".toml"), about, [book().by_name[name] for name in names]


def _table_of_contents() -> Iterator[str]:
    yield "| family | rows |\n|---|---|"
    for file, _, rows in _families():
        yield f"| [{file}](#{file}) | {len(rows)} |"
    of = [sum(len(xids._numbers(row.number)) for row in xids._read() if row.log == log) for log in ("xid", "sxid")]
    yield f"| [Xids](#xids-and-sxids) | {of[0]} |\n| [SXids](#xids-and-sxids) | {of[1]} |"


def _row(row: Signature) -> str:
    cause = f"{row.slug}{WORDS[row.role]}" if row.slug else WORDS.get(row.role) or "-"
    live = f"{row.kernel.code} {row.kernel.severity}".strip() if row.kernel else row.live.code if row.live else ""
    return (
        "| " + " | ".join(map(_cell, (f"`{row.name}`", row.says or "-", cause, live, row.versions, row.source))) + " |"
    )


def _xids() -> Iterator[str]:
    yield "\n## Xids and SXids\n"
    yield "`live`: before a job; `afterwards`: beside a job that has ended; `graded`: by the line's own word.\n"
    yield HEAD_OF_XIDS
    for row in xids._read():
        number = f"{'SXid' if row.log == 'sxid' else 'Xid'} {row.number.replace('..', ' to ')}"
        cells = (number, row.meaning, row.severity, row.afterwards, row.action, row.nvidia, row.branch, row.source)
        yield "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("<", "&lt;")
