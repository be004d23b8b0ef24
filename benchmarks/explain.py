"""How fast `preflight explain` is, on one core: `python -m benchmarks.explain [MB]`.

Goals: 20 MB per second of the processor, from start to end, on each of five logs: one failure repeated, two failures'
lines mixed, sixteen jobs in one file, healthy progress and progress bars. 200 MB/s on a job's progress lines of one
kind (the ratio is to a loop over the file's lines that does nothing). The figure in processor seconds depends on what
else runs here: the ratio to the searches of one regular expression, a line at a time, in the same run, depends less on
it.
"""

import random
import re
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import failed_job
from preflight.explain.command import explain_paths
from preflight.explain.read.reader import Input, Reader
from preflight.failure_book.book import book
from tests import explained_logs
from tests.explain import healthy

TIMES = 5
TRAINERS = (
    "transformers", "lightning", "deepspeed", "megatron", "nemo", "torchtitan", "fairseq", "mlperf", "nanoGPT",
    "imagenet",
)  # fmt: skip
CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
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
    return sum(1 for _ in Reader([Input(str(path), path.name, "log")], book().words, rarely=book().rarely))


def mixed(megabytes: int) -> str:
    """The start of a job of 64 ranks, then progress of ten trainers, with new digits in each line."""
    lines = [line for kind in TRAINERS for _ in range(400) for line in healthy.KINDS[kind].splitlines()]
    lines = [line for line in lines if "stopped" not in line]  # a job ends once
    part = "".join(f"{''.join(map(_redrawn, line))}\n" for line in lines)
    return healthy.KINDS["nccl, 64 ranks"] + part * max(1, megabytes * 1_000_000 // len(part.encode()))


def _redrawn(char: str) -> str:
    return random.choice(string.digits) if char.isdigit() else char


def excerpts(megabytes: float) -> Iterator[str]:
    """Jobs whose ranks all write one of the real excerpts that lie beside the project."""
    for log in sorted(explained_logs.LOGS.glob("*.log")):
        yield failed_job.log(failed_job.of_excerpt(log.read_text().splitlines()), megabytes)


def tries(_: int) -> str:
    """A connection that 64 ranks try again and again."""
    clock = f"1125 10:{random.randrange(60):02}:{random.randrange(60):02}.{random.randrange(10**9):09}"
    said = "The client socket has failed to connect to [node-0]:29500 (errno: 110 - Connection timed out)."
    return f"[rank{random.randrange(64)}]:[W{clock} socket.cpp:752] [c10d] {said}\n"


def unconnected(turn: int) -> list[str]:
    """What rank 3 says of a peer that does not answer, and how it ends."""
    at = f"node-7:4103:4177 [3] 2026-04-22 10:{turn // 60 % 60:02}:{turn % 60:02}"
    return [
        f"{at} NCCL INFO Call to connect to 10.0.0.4<{random.randrange(30_000, 60_000)}> failed: Connection refused",
        f"{at} misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.4<49211> failed : Connection refused",
        *(f"[rank3]: {line}" for line in failed_job.TRACEBACK),
        f"srun: error: node-7: task 3: Exited with exit code {1 + turn % 2}",
    ]  # fmt: skip


def repeated(jobs: Sequence[Callable[[int], Sequence[str]]], megabytes: int) -> str:
    """The lines of all jobs in turn: each writes a few before the next one does."""
    lines: list[str] = []
    size = turn = written = 0
    while size < megabytes * 1_000_000:
        left = [list(job(turn)) for job in jobs]
        while any(left):
            for job in left:
                lines += job[: failed_job.BURST]
                del job[: failed_job.BURST]
        size += sum(len(line) + 1 for line in lines[written:])
        turn, written = turn + 1, len(lines)
    return "\n".join(lines) + "\n"


def of_job(number: int) -> Callable[[int], list[str]]:
    """One of several in a file: its node's name stands before each line."""
    make = unconnected if number % 2 else lambda turn: failed_job.of_torch(number, turn)
    return lambda turn: [f"job{number:02}-node: {line}" for line in make(turn)]


def five(megabytes: int) -> dict[str, str]:
    """Logs of which each must be read at 20 MB per second of the processor."""

    def torch(turn: int) -> list[str]:
        return failed_job.of_torch(3, turn)

    return {
        "one failure, repeated": repeated([torch], megabytes),
        "two failures, mixed": repeated([torch, unconnected], megabytes),
        "sixteen jobs in one file": repeated([of_job(number) for number in range(16)], megabytes),
        "healthy progress": mixed(megabytes),
        "progress bars": "".join(map(bar, range(megabytes * 8000))),
    }


def processor_seconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def searched(path: Path) -> None:
    """What the others are compared with."""
    with path.open("rb") as file:
        for line in file:
            CLOCK.search(line)


def whole(name: str, *texts: str) -> None:
    """Each text from start to end, in seconds of the processor."""
    took = took_reference = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        for text in texts:
            path.write_text(text)
            turns = range(TIMES if len(texts) < TIMES else 1)
            took += min(processor_seconds(lambda: explain_paths([str(path)])) for _ in turns)
            took_reference += min(processor_seconds(lambda: searched(path)) for _ in turns)
    speed = sum(len(text.encode()) for text in texts) / took / 1e6
    print(f"  {name}: {speed:.1f} MB per CPU s from start to end, {took / took_reference:.1f}x a search of each line")


def main(megabytes: int) -> None:
    random.seed(1)
    book()  # takes its time once
    for name, text in five(megabytes).items():
        whole(name, text)
    whole("64 ranks' failures", failed_job.log(failed_job.of_torch, megabytes / 2))
    if jobs := list(excerpts(megabytes / 50)):
        whole(f"{len(jobs)} jobs, each of one real excerpt", *jobs)
    whole("one failure, again and again", "".join(map(tries, range(20_000))))
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
