"""Imports run one way, and what must start quickly imports no torch (docs/design.md)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from preflight import registry

ROOT = Path(__file__).parent.parent
CHECKS = sorted((ROOT / "checks").rglob("*.py"))


def imported(text: str) -> Iterator[str]:
    """Full names of all that is imported anywhere in it: `from a import b` is a.b."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def forbidden(name: str, family: str) -> bool:
    """Whether a check of this family may not import it: it may import preflight.check, its family's helpers, for net
    what it shares with the command `rendezvous`, and for train the smoke trainer."""
    if name.partition(".")[0] != "preflight":
        return name.startswith(".") or name.partition(".")[0] in ("rich", "tests")
    if name.startswith("preflight.check."):
        return False
    if name.startswith("preflight.train_smoke"):
        return family != "train"
    if name.startswith("preflight.rendezvous"):
        return family != "net"
    own = f"preflight.checks.{family}."
    return not name.startswith(own) or any(
        f"{name}.".startswith(f"preflight.checks.{id_}.") for id_ in registry.BUILT_IN
    )


@pytest.mark.parametrize("path", CHECKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_check_imports_no_other_check_and_nothing_of_the_engine(path: Path) -> None:
    family = path.relative_to(ROOT / "checks").parts[0]
    assert [name for name in imported(path.read_text()) if forbidden(name, family)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from preflight.check import Plan", False),
        ("from preflight.checks.env.installed import versions", False),
        ("import torch", False),
        ("def f():\n    from preflight.checks.env import launch", True),
        ("from preflight.checks.env.launch import Facts", True),
        ("from preflight.checks.comm.helper import f", True),
        ("from preflight import supervisor", True),
        ("import preflight.supervisor", True),
        ("from preflight.train_smoke import train", True),
        ("from preflight.rendezvous import tcp", True),
        ("from . import launch", True),
        ("import rich", True),
        ("from rich.console import Console", True),
    ],
)
def test_a_forbidden_import_is_seen(line: str, wrong: bool) -> None:
    assert any(forbidden(name, "env") for name in imported(line)) is wrong


@pytest.mark.parametrize("path", sorted((ROOT / "preflight").rglob("*.py")), ids=lambda path: path.name)
def test_the_engine_imports_no_check(path: Path) -> None:
    assert [name for name in imported(path.read_text()) if name.startswith("preflight.checks")] == []


def modules_after(code: str) -> set[str]:
    """Top-level names of what a fresh interpreter has imported after it."""
    told = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_line_and_all_quick_checks_import_no_torch() -> None:
    seen = modules_after(
        "import preflight.cli\n"
        "from preflight import registry\n"
        "from preflight.check import Level\n"
        "checks = [registry.load(registry.sources()[id_]) for id_ in registry.BUILT_IN]\n"
        "assert any(check.plan.level is Level.QUICK for check in checks)"
    )
    assert "preflight" in seen
    assert not seen & {"torch", "numpy", "rich", "pynvml", "psutil"}
