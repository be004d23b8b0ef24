"""What docs, docstrings, messages and the Makefile name is there: commands of preflight, files of this repository."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight.cli.arguments import COMMANDS
from tests.sizes import ROOT, product_files, relative

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROSE = {
    "and", "before", "command", "could", "cuts", "found", "has", "import", "is", "itself", "on", "report", "runs",
    "that",
}  # fmt: skip
"""Words that follow the name of the program in a sentence. A command that is still to come is none of them."""
ELSEWHERE = ("torch/", "cuda/nccl.py", "rich.py", "platform.py", "data_connector.py", "signal_handling.py")
"""Files of torch, by their path in it, of the user, and of Lightning."""
OF_OTHERS = ("book.md",)
"""Pages whose files are other projects': the sources of the lines in the failure book."""
EXAMPLES = ("FILE.py", "data.py", "shm.py", "nvlink.py")
"""Files that an example has."""


def strings(path: Path, *, docstrings: bool) -> Iterator[str]:
    """The docstrings and comments of a module, or all its other strings."""
    text = path.read_text()
    tree = ast.parse(text)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in alone) == docstrings:
            yield node.value
    if docstrings:
        yield from re.findall(r"(?:^|\s)# .*", text)


def messages(path: Path) -> Iterator[str]:
    """All that a file of the product may say to its user."""
    yield from strings(path, docstrings=False) if path.suffix == ".py" else [path.read_text()]


def code_of(page: str) -> Iterator[str]:
    return (found[0] for found in re.finditer(r"```.*?```|`[^`]+`", page, re.DOTALL))


def commands(text: str) -> set[str]:
    """What follows `preflight` where a command does."""
    return {word for word in re.findall(r"(?<![\w./-])preflight +([a-z]+)\b(?!/)", text) if word not in PROSE}


def files_named(text: str) -> set[str]:
    """`name.py` and `path/name.py` in prose; fenced code is the user's, tables of public code name others' files."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = re.sub(r"^\|[^\n]*\bglue \|.*?\n\n", "", prose, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(?<![\w.<>*/-])(?:[\w.]+/)*\w+\.py\b", prose))
    named = {re.sub(r"^(\.\./)+", "", name) for name in named}
    return {name for name in named if not name.startswith(ELSEWHERE) and name not in EXAMPLES}


def missing_files(texts: Iterator[tuple[str, str]], there: set[str]) -> set[tuple[str, str]]:
    """(where, name) of all that is named and not there; a name may leave out the folders in front of it."""
    known = {path.split("/", up)[-1] for path in there for up in range(path.count("/") + 1)}
    return {(where, name) for where, text in texts for name in files_named(text) if name not in known}


def test_every_command_that_a_message_or_a_page_gives_is_there() -> None:
    rows = [*product_files(), *sorted((ROOT / "preflight" / "failure_book").rglob("*.toml"))]
    said = {(relative(path), word) for path in rows for text in messages(path) for word in commands(text)}
    pages = {relative(page): page.read_text() for page in PAGES}
    said |= {(path, word) for path, page in pages.items() for code in code_of(page) for word in commands(code)}
    said |= {(path, word) for path, page in pages.items() if "/checks/" in path for word in commands(page)}
    assert {word for _, word in said} >= {"run", "show", "describe", "explain"}
    assert {(where, word) for where, word in said if word not in COMMANDS} == set()


@pytest.mark.parametrize("text", ["Run preflight compare OLD NEW", "`preflight compare`", "first, preflight  compare"])
def test_a_command_that_is_not_there_is_seen(text: str) -> None:
    assert commands(text) == {"compare"}


def test_every_file_that_a_page_or_a_docstring_names_is_there() -> None:
    folders = ("preflight", "checks", "train_smoke", "tests", "examples", "benchmarks")
    there = {relative(path) for folder in folders for path in (ROOT / folder).rglob("*.py")} | {"setup.py"}
    texts = [(relative(page), page.read_text()) for page in PAGES if page.name not in OF_OTHERS]
    texts += [(relative(path), text) for path in product_files() for text in strings(path, docstrings=True)]
    assert missing_files(iter(texts), there) == set()


def test_a_file_that_is_not_there_is_seen() -> None:
    there = {"preflight/engine/worker.py"}
    sound = "`worker.py`, engine/worker.py, preflight/engine/worker.py and torch/worker_of.py\n```\nmine.py\n```\n"
    assert missing_files(iter([("a.md", sound)]), there) == set()
    assert missing_files(iter([("a.md", "`seat.py`, cli/worker.py")]), there) == {
        ("a.md", "seat.py"),
        ("a.md", "cli/worker.py"),
    }


@pytest.mark.parametrize("target", ["coverage", "test-floor"])
def test_every_test_that_the_makefile_names_is_there(target: str) -> None:
    printed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {word.partition("::")[0].rstrip(".") for word in printed.split() if word.startswith("tests/")}
    assert len(named) > 10
    assert {name for name in named if not (ROOT / name).exists()} == set()


def anchors(page: str) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Links in the prose of a page to files and headings of this repository that are not there."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^()\s]+)\)", prose):
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if name.startswith(("http:", "https:")):
            continue
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text())):
            yield f"{page.name}: {target}"


def test_every_link_leads_to_a_page_and_a_heading_that_are_there() -> None:
    pages = [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
    assert [link for page in pages for link in broken_links(page)] == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# N nodes out of N + k\n")
    page = tmp_path / "a.md"
    page.write_text("[1](b.md#n-nodes-out-of-n--k) [2](https://example.org/x) `[3](c.md)`\n")
    assert list(broken_links(page)) == []
    page.write_text("[1](b.md#n-nodes) [2](c.md)\n")
    assert len(list(broken_links(page))) == 2


RELEASE_FILES = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"])


def make_targets(text: str) -> set[str]:
    """Those of all commands `make TARGET ...`, without what comments say."""
    code = re.sub(r"#.*", "", text)
    return {word for words in re.findall(r"\bmake((?: +[a-z][\w-]*(?=[\s`]|$))+)", code) for word in words.split()}


def test_every_target_of_make_that_a_page_or_a_workflow_names_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    there = {word for line in re.findall(r"^([a-z][\w -]*):", makefile, re.MULTILINE) for word in line.split()}
    named = {target for page in PAGES for code in code_of(page.read_text()) for target in make_targets(code)}
    named |= {target for path in RELEASE_FILES for line in commands_of(path) for target in make_targets(line)}
    assert len(RELEASE_FILES) > 5 and len(named) > 10
    assert named - there == set()


def commands_of(path: Path) -> Iterator[str]:
    """Lines of a workflow or of a hook that run a command."""
    return (line for line in path.read_text().splitlines() if re.search(r"\b(?:run|entry): ", line))


def test_the_readme_begins_with_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 100
    first = re.findall(r"```bash\n(.*?)```", readme, re.DOTALL)[0]
    assert [line.partition("#")[0].strip() for line in first.splitlines()] == ["make preflight", "make test"]
