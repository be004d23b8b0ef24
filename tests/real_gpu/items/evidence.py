"""What a failing job leaves: its log, the kernel's lines, the card; and what `preflight explain` makes of it."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.checks.node.kernel import kernel_log
from tests.real_gpu.items import ENVIRON, Ended, Work, codes
from tests.real_gpu.items.launch import HERE, ON_ONE_GPU, command

QUICK_END = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "4000"}
"""For how long torch's watchdog waits for its dumps before it ends the process; its default is 15 s."""


@contextlib.contextmanager
def beside(work: Work, job: str, says: str) -> Iterator["subprocess.Popen[str]"]:
    """A job in the background from when it has said so, 15 s at most; killed at the end."""
    with (work.folder / f"{job}.txt").open("w") as errors:
        process = subprocess.Popen(
            command(job), env={**os.environ, **ENVIRON, **ON_ONE_GPU}, cwd=work.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        timer = threading.Timer(15, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            if not any(says in line for line in process.stdout):
                raise RuntimeError(f"{job} ended before it said {says!r}: see {job}.txt")
            timer.cancel()
            yield process
        finally:
            timer.cancel()
            process.kill()
            process.wait(timeout=10)


# What is left


def kernel_since(work: Work, since: float, *logs: str) -> str:
    """Saves the kernel's lines since then; says its Xids, and which are of other lanes' processes."""
    try:
        found = [
            record for record in kernel_log.records(kernel_log.chunks(kernel_log.PATH)) if record.at_s > since - 0.5
        ]
    except kernel_log.KernelLogUnreadable as why:
        return f"kernel log: {why}"
    work.save("kernel.txt", "\n".join(f"{record.at_s:.6f} {record.text}" for record in found))
    own = {pid for log in logs for pid in re.findall(r"^pid (\d+)$", log, re.MULTILINE)}
    xids = []
    for record in found:
        if xid := re.search(r"NVRM: Xid \([^)]*\): (\d+)(?:, pid='?(\d+))?", record.text):
            whose = "" if xid[2] in own else " (no pid)" if not xid[2] else " (another's)"
            xids.append(f"{xid[1]}{whose}")
    return f"Xid {', '.join(xids)}" if xids else "no Xid"


def card(work: Work, name: str = "smi") -> str:
    """Saves nvidia-smi; says its memory, utilization and processes."""
    if not shutil.which("nvidia-smi"):
        return "no nvidia-smi"
    work.run(["nvidia-smi"], limit_s=5, name=name)
    query = "--query-gpu=memory.used,utilization.gpu,ecc.errors.uncorrected.volatile.total"
    asked = work.run(["nvidia-smi", query, "--format=csv,noheader"], limit_s=5, name=f"{name}-query")
    return f"card: {asked.last_line}"


# What is told


def explain(work: Work, *paths: str, name: str = "explain") -> list[dict[str, Any]]:
    """The findings above info; none where nothing was found."""
    work.preflight("explain", *paths, "--json", f"{name}.json", limit_s=20, name=name, env=HERE)
    path = work.folder / f"{name}.json"
    if not path.exists():
        raise RuntimeError(f"explain wrote no report: see {name}.txt")
    (check,) = json.loads(path.read_text())["checks"]
    return [found for found in check["findings"] if found["severity"] != "info"]


def is_told(
    work: Work,
    ended: Ended,
    paths: Sequence[str],
    expected: Sequence[str],
    *,
    rank: int | None = None,
    name: str = "log",
) -> tuple[bool, str]:
    """Whether explain's first finding has one of these codes and blames this rank; and what it said."""
    found = explain(work, *paths, name=f"explain-{name}")
    right, text = False, "explain found nothing"
    if found:
        right = found[0]["code"] in expected and (rank is None or (found[0]["where"] or {}).get("rank") == rank)
        text = f"{codes(found[:2])}: {found[0]['message'][:160]}"
    return right, f"exit {ended.code} after {ended.seconds:.0f} s; {text}"


def fault(
    work: Work, job: str, expected: Sequence[str], *, limit_s: float, ranks: int = 1, rank: int | None = None,
    env: Mapping[str, str] | None = None, before: Sequence[str] = (), words: Sequence[str] = (),
    paths: Sequence[str] = (), name: str = "log",
) -> tuple[bool, str]:  # fmt: skip
    """Runs the job, keeps what it leaves, and lets explain read it: (as expected, what was seen)."""
    since = time.monotonic()
    ended = work.run(
        [*before, *(words or command(job, ranks))],
        limit_s=limit_s,
        name=name,
        env={**ON_ONE_GPU, **QUICK_END, **(env or {})},
    )
    left = f"{kernel_since(work, since, ended.output)}; {card(work)}"
    right, text = is_told(work, ended, [f"{name}.txt", *paths], expected, rank=rank, name=name)
    return right and ended.code not in (0, 124), f"{job}: {text}; {left}"


def one(work: Work, job: str, expected: Sequence[str], **more: Any) -> str:
    right, seen = fault(work, job, expected, **more)
    return work.expect(right, seen)
