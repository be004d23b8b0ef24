"""Screens as they must look, at fixed widths: tests/golden/*.txt. `python -m tests.golden` writes them."""

from collections.abc import Iterator
from pathlib import Path

from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.results import console
from preflight.results.result import Result
from tests import made

FOLDER = Path(__file__).parent / "golden"
WIDTHS = (80, 200)


def _sound(job: Job) -> list[Result]:
    ranks = range(job.world_size)
    return [
        made.result(check="env.launch", summary=f"{job.world_size} ranks", outcomes=made.measured(*ranks)),
        made.result(check="env.variables", summary="7 variables set", outcomes=made.measured(*ranks)),
        made.result(check="comm.all_reduce", summary="16 MiB: busbw 1.20 GB/s", outcomes=made.measured(*ranks)),
    ]


def _alone() -> tuple[Job, list[Result]]:
    return made.job(1), _sound(made.job(1))


def _large_and_sound() -> tuple[Job, list[Result]]:
    job = made.job(*[8] * 1024)
    return job, _sound(job)


def _large_and_sick() -> tuple[Job, list[Result]]:
    """Every node short of shared memory, each by its own figure; one node with another variable; one rank dead."""
    job = made.job(*[8] * 1024)
    unlike = [
        made.finding(
            message="NCCL_IB_HCA is 'mlx5_0', expected 'mlx5_1' as on 8184 of 8192 ranks",
            code="env.variables.differs", fix="Set NCCL_IB_HCA once for all nodes, in the job's script.",
            variable="NCCL_IB_HCA",
            **job.where(rank),
        )
        for rank in range(808, 816)
    ]  # fmt: skip
    small = [
        made.finding(
            "warn", f"/dev/shm has {rank / 10000:.4f} GiB free, expected 1 GiB for each of 8 ranks",
            code="node.limits.shm", fix="Start the container with --shm-size=16g or --ipc=host.",
            node=job.node_of(rank).node,
        )
        for rank in range(0, 8192, 8)
    ]  # fmt: skip
    dead = made.finding(
        message="the worker ended by SIGKILL, expected it to live; inside all_reduce x20 16 MiB #13",
        code="comm.all_reduce.crashed", fix="See its stack and log (--report DIR, in DIR/logs).",
        noticed_by="0-4711,4713-8191", **job.where(4712),
    )  # fmt: skip
    results = _sound(job)
    skipped = Result("node.clock", "Clock: made up.", skipped="needs comm.init, which failed")
    return job, [
        results[0],
        Result("env.variables", "Variables: made up.", findings=unlike),
        Result("node.limits", "Limits: made up.", findings=small),
        skipped,
        Result("comm.all_reduce", "All-reduce: made up.", findings=[dead], outcomes={4712: Outcome("crashed")}),
    ]


def screens() -> Iterator[tuple[str, str]]:
    """(name, text) of each."""
    for name, (job, results) in (
        ("alone", _alone()), ("large_and_sound", _large_and_sound()), ("large_and_sick", _large_and_sick()),
    ):  # fmt: skip
        report = made.made_report(*results, on=job)
        for width in WIDTHS:
            checks = [console.check_line(check, width) for check in report.checks]
            lines = [console.header(job, "full", 900.0), *checks, *console.ending(report, ["report: out"], width)]
            yield f"{name}_{width}", "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in screens():
        (FOLDER / f"{name}.txt").write_text(text)
