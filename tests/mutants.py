"""`make mutants`: does a test fail when the product is wrong? Each row of mutants.toml is one wrong line of the product
and the tests that should fail with it.

Every mutation is made in a copy of the tree, in a folder that is removed. A test run has a deadline; what it leaves
running is ended.
"""

import argparse
import compileall
import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from tests.sizes import PRODUCT, ROOT

DATA = ROOT / "tests" / "mutants.toml"
SOUND_S = 600.0
"""For tests without a mutation. They take seconds; on a busy machine one selection took two minutes."""
LEAST_S, TIMES = 120.0, 5.0
"""With one: at least, and so many times what they took without. A mutation that makes them hang is found by that, and a
busy machine kills none."""
KILLED, SURVIVED = "killed", "survived"
NOT_APPLIED, NOT_GREEN = "could not be applied", "its tests fail without it"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Mutant:
    """One wrong line. `before` and `after` are without indentation; `before` is one line of the file and no other."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Arguments of pytest: files, node ids, `-k` and its expression."""

    def line(self, text: str) -> int | None:
        """The number of the line, from 1; None where there is none or more than one."""
        numbers = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == self.before]
        return numbers[0] if len(numbers) == 1 else None

    def applied(self, text: str) -> str | None:
        """The whole text with the mutation; None where it cannot be applied."""
        number = self.line(text)
        if number is None:
            return None
        lines = text.splitlines(keepends=True)
        lines[number - 1] = lines[number - 1].replace(self.before, self.after)
        return "".join(lines)

    def shown(self) -> str:
        return f"{self.file}\n    - {self.before}\n    + {self.after}\n    {' '.join(self.tests)}"


def mutants() -> list[Mutant]:
    rows = tomllib.loads(DATA.read_text())["mutant"]
    return [Mutant(row["file"], row["before"], row["after"], tuple(row["tests"])) for row in rows]


def not_applicable(listed: Sequence[Mutant]) -> list[Mutant]:
    return [mutant for mutant in listed if not _is_applicable(mutant)]


def _is_applicable(mutant: Mutant) -> bool:
    path = ROOT / mutant.file
    return path.is_file() and mutant.applied(path.read_text()) is not None


def _copy(folder: Path) -> None:
    """The tree as it would be installed: `preflight.checks` and `preflight.train_smoke` are found below `preflight`,
    and not where the virtual environment has them, in the user's checkout."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", Path(sys.prefix).name)
    shutil.copytree(ROOT, folder, symlinks=True, ignore=left_out)
    for name in PRODUCT[1:]:
        (folder / "preflight" / name).symlink_to(f"../{name}")
    for name in (*PRODUCT, "tests"):
        compileall.compile_dir(folder / name, quiet=2)


def _begin_worker() -> None:
    """A worker ends with its parent, and adopts what the tests leave behind."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_worker)


def _end_worker(number: int, _frame: object) -> NoReturn:
    _end_children()
    os._exit(128 + number)


def _end_children() -> None:
    """All that this process has started or adopted. A process that the kernel does not let go is left after 5 s."""
    end = time.monotonic() + 5
    while (children := psutil.Process().children(recursive=True)) and time.monotonic() < end:
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(children, timeout=1)


def _test(
    original: Path, mutant: Mutant | None, tests: Sequence[str], deadline_s: float = SOUND_S
) -> tuple[bool, float, str]:
    """(Whether the tests pass with the mutation, seconds, their output), in a copy of the tree."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=original.parent, ignore_cleanup_errors=True) as name:
        tree, temporary = Path(name, "tree"), Path(name, "tmp")
        shutil.copytree(original, tree, symlinks=True)
        temporary.mkdir()
        if mutant is not None:
            _mutate(tree / mutant.file, mutant)
        passed, output = _run(tree, temporary, tests, deadline_s)
    return passed, time.monotonic() - start, output


def _mutate(path: Path, mutant: Mutant) -> None:
    text = mutant.applied(path.read_text())
    assert text is not None, "only mutants that can be applied are run"
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()  # Python compares whole seconds and sizes only


def _run(tree: Path, temporary: Path, tests: Sequence[str], deadline_s: float) -> tuple[bool, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environ = {**os.environ, "PYTHONPATH": str(tree), "TMPDIR": str(temporary)}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command, cwd=tree, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            passed, why = process.wait(deadline_s) == 0, ""
        except subprocess.TimeoutExpired:
            passed, why = False, f"the tests did not end within {deadline_s:.0f} s"
        finally:
            _end_children()
        log.seek(0)
        return passed, log.read() + why


def _of_all(pool: ProcessPoolExecutor, original: Path, listed: Sequence[Mutant]) -> dict[Mutant, str]:
    """What became of each. First the tests run without a mutation: where they fail, they say nothing about one."""
    selections = {mutant.tests for mutant in listed}
    sound = {pool.submit(_test, original, None, tests): tests for tests in selections}
    limits_s = {}
    for future in as_completed(sound):
        passed, seconds, output = future.result()
        print(
            f"{'pass' if passed else 'FAIL':>8} in {seconds:3.0f} s without a mutation: {' '.join(sound[future])}",
            flush=True,
        )
        if passed:
            limits_s[sound[future]] = max(LEAST_S, TIMES * seconds)
        else:
            print(output[-2000:], flush=True)
    ended = {mutant: NOT_GREEN for mutant in listed if mutant.tests not in limits_s}
    runs: dict[Future[tuple[bool, float, str]], Mutant] = {
        pool.submit(_test, original, mutant, mutant.tests, limits_s[mutant.tests]): mutant
        for mutant in listed
        if mutant not in ended
    }
    for future in as_completed(runs):
        passed, seconds, _ = future.result()
        ended[runs[future]] = SURVIVED if passed else KILLED
        print(f"{ended[runs[future]]:>8} in {seconds:3.0f} s: {runs[future].file}: {runs[future].after}", flush=True)
    return ended


def _report(ended: dict[Mutant, str]) -> int:
    """Prints what was not killed and the kill rate. 1 where something could not be tried."""
    outcomes = list(ended.values())
    for outcome in (SURVIVED, NOT_GREEN, NOT_APPLIED):
        for mutant in (mutant for mutant, of in ended.items() if of == outcome):
            print(f"{outcome}: {mutant.shown()}")
    tried = outcomes.count(KILLED) + outcomes.count(SURVIVED)
    print(
        f"{outcomes.count(KILLED)} of {tried} killed ({outcomes.count(KILLED) / max(1, tried):.1%}), "
        f"{outcomes.count(SURVIVED)} survived, {outcomes.count(NOT_APPLIED)} could not be applied, "
        f"{outcomes.count(NOT_GREEN)} have tests that fail without it"
    )
    return 1 if tried < len(outcomes) or not tried else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Does a test fail where the product is wrong?"
    )
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="test runs at once")
    parser.add_argument("files", nargs="*", help="only mutants of files whose path contains one of these")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if not options.files or any(word in mutant.file for word in options.files)]
    ended = dict.fromkeys(not_applicable(chosen), NOT_APPLIED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as name:
        original = Path(name, "tree")
        _copy(original)
        pool = ProcessPoolExecutor(options.j, multiprocessing.get_context("spawn"), _begin_worker)
        try:
            ended |= _of_all(pool, original, [mutant for mutant in chosen if mutant not in ended])
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return _report(ended)


if __name__ == "__main__":
    sys.exit(main())
