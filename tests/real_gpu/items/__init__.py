"""The items of `make lease`: what is done on a lent GPU, each in a process of its own.

    @item("C1", "version 23203 in the process", limit_s=5)
    def loaded_version(work: Work) -> str:
        ended = work.run([...], limit_s=4)
        return work.expect(ended.code == 0, ended.last_line)

An item returns what was seen, if it is as expected, and raises it as an `UnexpectedError` if it is not: a defect, with
its evidence in the item's folder. With LEASE=dry there is no GPU: `work.dry` says so, and an item does the same steps
with stand-ins, so that a fault in its own code shows before the lease begins.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DRY = os.environ.get("LEASE") == "dry"
MACHINE = "h200_vm"
"""What the dry run's NVML plays."""
SOON = 3 if DRY else 12
"""Seconds of silence after which `debug` looks at a job."""
PATIENCE = 4.0 if DRY else 1.0
"""Limits are for a machine of 16 cores; the rehearsal has two, and others at work on them."""
ENVIRON = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/plugins"), os.environ.get("PYTHONPATH", "")]),
    "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "NO_COLOR": "1", "COLUMNS": "160",
}  # fmt: skip


class UnexpectedError(Exception):
    """What was seen, and is not as expected."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended, or was killed at its limit (code 124)."""

    code: int
    output: str
    seconds: float

    @property
    def last_line(self) -> str:
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "(no output)"


@dataclass(frozen=True)
class Work:
    """An item at work: its own folder, and how it starts commands."""

    folder: Path
    dry: bool = DRY

    def run(
        self, words: Sequence[str], *, limit_s: float, name: str = "log", env: Mapping[str, str] | None = None
    ) -> Ended:
        """Runs a command in the item's folder, and keeps its output there as NAME.txt. Never raises for how it ends."""
        began, path = time.monotonic(), self.folder / f"{name}.txt"
        with path.open("wb") as log:
            process = subprocess.Popen(
                list(words), env={**os.environ, **ENVIRON, **(env or {})}, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            code = wait_or_kill(process, began + limit_s * PATIENCE)
        return Ended(code, path.read_text(errors="replace"), time.monotonic() - began)

    def preflight(
        self, *words: str, limit_s: float, name: str = "log", env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Ended:  # fmt: skip
        """`preflight` with these words; in the dry run before a stand-in for the driver's library."""
        return self.run(
            [*before, *self.on_card(), sys.executable, "-m", "preflight", *words], limit_s=limit_s, name=name,
            env={**self.card_environ(), **(env or {})},
        )  # fmt: skip

    def on_card(self) -> list[str]:
        """Words that give a command the stand-in's /sys and /proc; none on a real card."""
        return self._machine().command() if self.dry else []

    def card_environ(self) -> dict[str, str]:
        return self._machine().environ() if self.dry else {}

    def _machine(self) -> Any:
        return _machine(self.folder / "machine")

    def save(self, name: str, content: Any) -> None:
        """Text, or anything else as JSON."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1, default=str)
        (self.folder / name).write_text(text)

    def expect(self, right: bool, seen: str) -> str:
        """`seen`, where it is right or the run is dry; else raises UnexpectedError."""
        if not right and not self.dry:
            raise UnexpectedError(seen)
        return seen

    def findings(self, folder: str = "report") -> list[dict[str, Any]]:
        """Those above info of a report in the item's folder; raises UnexpectedError where there is none."""
        path = self.folder / folder / "report.json"
        if not path.exists():
            raise UnexpectedError(f"no report in {folder}: {self._last()}")
        checks = json.loads(path.read_text())["checks"]
        return [found for check in checks for found in check["findings"] if found["severity"] != "info"]

    def _last(self) -> str:
        logs = sorted(self.folder.glob("*.txt"), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace")[-300:] if logs else ""


@dataclass(frozen=True)
class Item:
    name: str
    expected: str
    limit_s: float
    act: Callable[[Work], str]
    rude: bool = False
    """A fault: afterwards the card is looked at."""


ITEMS: dict[str, Item] = {}


@functools.cache
def _machine(folder: Path) -> Any:
    from tests.standin import machines

    folder.mkdir(exist_ok=True)
    return machines.load(MACHINE, folder)


def item(
    name: str, expected: str, limit_s: float, *, rude: bool = False
) -> Callable[[Callable[[Work], str]], Callable[[Work], str]]:
    """Adds the function to ITEMS."""

    def add(act: Callable[[Work], str]) -> Callable[[Work], str]:
        assert name not in ITEMS, f"two items are called {name}"
        ITEMS[name] = Item(name, expected, limit_s, act, rude)
        return act

    return add


def kill_session(leader: int) -> None:
    """Kills all processes of the session that this process leads, whatever their process groups are."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if entry.isdigit():
                stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == leader:
                    os.kill(int(entry), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGKILL)


def wait_or_kill(process: "subprocess.Popen[bytes]", until: float) -> int:
    """The exit code of a leader of a session; 124 where it was killed with all of it at this time (monotonic)."""
    try:
        return process.wait(timeout=max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        kill_session(process.pid)
        process.wait(timeout=5)
        return 124


def codes(findings: Sequence[Mapping[str, Any]]) -> str:
    """ "comm.init.duplicate_gpu (rank 1), ..." """
    return ", ".join(f"{found['code']}{_culprit(found)}" for found in findings) or "no finding"


def _culprit(found: Mapping[str, Any]) -> str:
    where = found.get("where") or {}
    known = [f"{key} {where[key]}" for key in ("rank", "ranks", "variable") if where.get(key) not in (None, "")]
    return f" ({', '.join(known)})" if known else ""
