"""`make lease`: the use of a GPU that is lent for minutes. LEASE=dry rehearses it on a CPU.

    python -m tests.real_gpu.lease FOLDER [STAGE...]    all stages, or these: 'C5|F3|F1 F6' is one of three lanes
    LEASE=dry python -m tests.real_gpu.lease FOLDER

Stages run one after the other, the lanes of a stage side by side, an item in a process session of its own with a
deadline. Whatever an item does, the next one starts. At PACK_S no item starts any more: what is left is reported as
dropped, and what was seen is packed, at most eight files of 16 MiB.
"""

import importlib
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.real_gpu import items
from tests.real_gpu.items import DRY, ITEMS, PATIENCE, ROOT, Item, UnexpectedError, Work, kill_session

for module in ("facts", "figures", "one_node", "hangs", "cuda_faults", "training"):
    importlib.import_module(f"{items.__name__}.{module}")  # each adds its items

PACK_S = float(os.environ.get("LEASE_S", "3600" if DRY else "430"))
"""Seconds: of the 15 minutes of a lease two starts of the machine take three, and what has failed through our own fault
is to be run again."""
GRACE_S = 25.0
"""An item that has started may go on so much longer."""
LARGEST = 15 << 20
MOST_OF_A_FILE = 2 << 20
LOOK_S = 15.0
STAGES: tuple[tuple[str, ...], ...] = (
    ("A1 A2", "C0 C1"),
    ("B1 B2 B3 B4",),
    ("C5", "C2 C3 C4"),
    ("C6a C6b C6c", "C6d C6e C7a C7b", "C7c C8 C9a", "C9b", "E1 E2 E3 E7 E9", "E5 E6", "E8a E8b E8c E4c"),
    ("D1a D1b", "D2a D2b D2c", "D2d D2e D2f", "D2g D2h D2i", "D3 D5", "D4", "F5", "F1 F2 F4", "F3 F6", "F7 F8 F9"),
    ("E4a E4b",),
    ("G1", "E10a E10b"),
    ("D6",),
    ("G2",),
    ("E11",),
)
"""Of each stage its lanes. Sound runs come before faults, and what writes into the kernel log comes last: later checks
read the log of the last two hours."""


@dataclass
class Told:
    """What became of the items, as lines."""

    folder: Path
    began: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: dict[str, str] = field(default_factory=dict)

    @property
    def clock(self) -> float:
        return time.monotonic() - self.began

    def line(self, item: Item, how: str, seen: str, seconds: float) -> None:
        with self.lock:
            self.seen[item.name] = how
            words = [item.name, how, f"{seconds:.1f}", item.expected, " ".join(seen.split())[:700]]
            with (self.folder / "results.tsv").open("a") as file:
                file.write("\t".join(words) + "\n")
            clock = f"{int(self.clock) // 60}:{int(self.clock) % 60:02d}"
            print(f"{clock} {item.name:4} {how:7} {seconds:5.1f} s | {item.expected} | {words[-1]}", flush=True)


def run_item(item: Item, told: Told) -> None:
    """Starts it, waits for it, and tells what it said last."""
    if (left := PACK_S - told.clock) <= 0:
        told.line(item, "dropped", "no time was left", 0.0)
        return
    folder, began = told.folder / "items" / item.name, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    limit_s = min(item.limit_s * PATIENCE, left + GRACE_S)
    words = [sys.executable, "-m", "tests.real_gpu.lease", "--item", item.name, str(folder)]
    with (folder / "item.log").open("wb") as log:
        process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "LEASE_ITEM": item.name},
        )  # fmt: skip
        try:
            process.wait(timeout=limit_s)
            how, seen = _ending(folder, process.returncode)
        except subprocess.TimeoutExpired:
            how, seen = "timeout", f"not done after {limit_s:.0f} s"
        _end_all_of(item.name, process.pid)
    if item.rude:
        seen += f"; afterwards the card: {_look(folder)}"
    told.line(item, how, seen, time.monotonic() - began)


def _ending(folder: Path, code: int) -> tuple[str, str]:
    lines = (folder / "item.log").read_text(errors="replace").strip().splitlines() or [""]
    how, _, seen = lines[-1].partition("\t")
    return (how, seen) if how in ("ok", "ODD", "ERROR") else ("ERROR", f"exit code {code}: {lines[-1]}")


def _end_all_of(name: str, leader: int) -> None:
    """Also what has left the session: all that have the item's name in their environment."""
    kill_session(leader)
    mark = f"LEASE_ITEM={name}\0".encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if mark in Path("/proc", entry, "environ").read_bytes() + b"\0":
                    os.kill(int(entry), 9)
            except OSError:
                continue


def _look(folder: Path) -> str:
    """Does a quick look at the card still pass?"""
    work = Work(folder / "afterwards")
    work.folder.mkdir(exist_ok=True)
    ended = work.preflight("run", "--level", "quick", "--only", "gpu", "--report", "report", limit_s=LOOK_S)
    return "pass" if ended.code == 0 else f"exit {ended.code}, {_found(work)}"


def _found(work: Work) -> str:
    try:
        return items.codes(work.findings())
    except UnexpectedError as odd:
        return str(odd)


def run_lane(names: str, told: Told) -> None:
    for name in names.split():
        run_item(ITEMS[name], told)


def run(folder: Path, stages: Sequence[Sequence[str]]) -> int:
    """Runs the stages, then packs. Returns how many items were not as expected."""
    folder.mkdir(parents=True, exist_ok=True)
    told = Told(folder)
    for stage in stages:
        threads = [threading.Thread(target=run_lane, args=(lane, told)) for lane in stage]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    pack(folder)
    how = list(told.seen.values())
    print(", ".join(f"{how.count(kind)} {kind}" for kind in ("ok", "ODD", "ERROR", "timeout", "dropped")), flush=True)
    return len(how) - how.count("ok")


def pack(folder: Path) -> None:
    """All folders of the items as one archive for each letter; of a large file its end."""
    for letter in sorted({path.name[0] for path in (folder / "items").iterdir()}):
        archive = folder / f"items-{letter}.tar.xz"
        with tarfile.open(archive, "w:xz", preset=1) as tar:
            for path in sorted((folder / "items").glob(f"{letter}*/**/*")):
                if path.is_file() and "machine" not in path.parts:
                    _add(tar, path, str(path.relative_to(folder / "items")))
        if archive.stat().st_size > LARGEST:
            print(f"{archive.name} has {archive.stat().st_size} bytes: it will not come back", flush=True)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    if path.stat().st_size > MOST_OF_A_FILE:
        path.write_bytes(path.read_bytes()[-MOST_OF_A_FILE:])
    tar.add(path, name)


def act(name: str, folder: Path) -> None:
    """Runs one item in this process; its last line says how it ended."""
    try:
        how, seen = "ok", ITEMS[name].act(Work(folder))
    except UnexpectedError as odd:
        how, seen = "ODD", str(odd)
    except Exception as error:
        how, seen = "ERROR", f"{type(error).__name__}: {error}"
    print(f"\n{how}\t{' '.join(seen.split())}", flush=True)
    os._exit(0)  # a thread that hangs in the driver does not hold it


def commit() -> str:
    """The commit that is tried: on a lent machine, whose copy of the tree has another history or none, LEASE_COMMIT."""
    if given := os.environ.get("LEASE_COMMIT"):
        return given
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def main() -> None:
    if sys.argv[1:2] == ["--item"]:
        act(sys.argv[2], Path(sys.argv[3]))
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print(f"commit {commit()}{', dry' if DRY else ''}", flush=True)
    stages = [stage.split("|") for stage in sys.argv[2:]] or STAGES
    unknown = {name for stage in stages for lane in stage for name in lane.split()} - ITEMS.keys()
    if unknown:
        raise SystemExit(f"no such item: {', '.join(sorted(unknown))}; there are {', '.join(ITEMS)}")
    run(Path(sys.argv[1]).resolve(), stages)


if __name__ == "__main__":
    main()
