"""How fast `preflight explain` reads lines that tell nothing, on one core: `python -m benchmarks.explain [MB]`.

Goal: 200 MB/s on a job's progress lines; the ratio is to a loop over the file's lines that does nothing.
"""

import random
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from preflight.explain.read.reader import Input, Reader
from preflight.failure_book.book import book

TIMES = 5
OFTEN = ("progress.bar", "net.via_p2p")
"""Signatures of lines of which one in many is enough."""
LETTERS = string.ascii_letters + string.digits + "+/" + " " * 6


def progress(step: int) -> str:
    clock = f"{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}"
    return f"2026-04-22 {clock},{step % 1000:03} train INFO iteration {step} | lr {random.random():.3e} \n"


def bar(step: int) -> str:
    done = step % 100
    shown = "█" * (done // 3) + " " * (33 - done // 3)
    clock = f"{step // 60 % 60:02}:{step % 60:02}"
    return f"\rEpoch 1: {done:3}%|{shown}| {step}/99999 [{clock}<12:05, {random.random():.2f}it/s]"


def nccl(step: int) -> str:
    rank = step % 8
    said = f"Trees [0] {rank + 1}/-1/-1->{rank}->{rank - 1} [1] -1/-1/-1->{rank}->{rank - 1}"
    return f"node-a:{4100 + rank}:{4177 + rank} [{rank}] NCCL INFO {said}\n"


def noise(_: int) -> str:
    return "".join(random.choices(LETTERS, k=100)) + "\n"


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def plain(path: Path) -> None:
    with path.open("rb") as file:
        for _ in file:
            pass


def read(path: Path) -> int:
    often = {one.word for one in book().signatures if one.name in OFTEN}
    return sum(1 for _ in Reader([Input(str(path), path.name, "log")], book().words, rarely=often))


def main(megabytes: int) -> None:
    random.seed(1)
    book()  # takes its time once
    for name, line in (("progress lines", progress), ("a tqdm bar", bar), ("NCCL INFO", nccl), ("random text", noise)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.log"
            part = "".join(line(step) for step in range(10_000))
            times = max(1, megabytes * 1_000_000 // len(part.encode()))
            with path.open("w") as file:
                for turn in range(times):
                    file.write("".join(map(noise, range(10_000))) if line is noise and turn else part)
            told = read(path)
            pairs = [(seconds(lambda at=path: read(at)), seconds(lambda at=path: plain(at))) for _ in range(TIMES)]
            took, ratio = min(one for one, _ in pairs), statistics.median(one / other for one, other in pairs)
            speed = path.stat().st_size / took / 1e6
            print(f"  {name}: {speed:.0f} MB/s, {ratio:.1f}x a plain loop over the lines; {told:,} lines told")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2] or ["100"]))
