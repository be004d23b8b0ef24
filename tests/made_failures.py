"""Logs of failed jobs, made up line by line, for the tests of what explain concludes."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from preflight.explain.candidates import Candidate
from preflight.explain.diagnosis import explain
from preflight.explain.timeline import Timeline
from preflight.failure_book.book import Book, Cause, Signature, signature
from preflight.failure_book.line import Line

SLUGS = (
    "app_crash", "collective_mismatch", "duplicate_gpu", "external_signal", "gpu_hw_fault", "gpu_oom", "host_oom_kill",
    "ib_fabric_error", "p2p_acs_iommu", "port_in_use", "rdzv_incomplete", "remote_peer_failure", "shm_exhausted",
    "slow_rank_timeout", "world_size_wrong",
)  # fmt: skip
CAUSES = {slug: Cause(slug, f"{slug} means this.", f"fix {slug}", "fail") for slug in SLUGS} | {
    "degraded_path": Cause("degraded_path", "It is slower.", "look", "warn")
}


def row(name: str, pattern: str, slug: str = "", role: str = "clue", **more: Any) -> Signature:
    """A signature; what it says is what it fits, where nothing is said."""
    known = {"word": pattern[:1], "says": pattern if slug else "", "versions": "all", "source": "here", "near_miss": ""}
    about = {"name": name, "pattern": pattern, "slug": slug, "role": role, "example": pattern}
    return signature({**known, **about, **more}, "a test")


WATCHDOG = (
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+)(?:, OpType=(?P<op>\w+), "
    r"NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+), Timeout\(ms\)=(?P<timeout_ms>\d+)\)"
    r" ran for (?P<ran_ms>\d+))?"
)
ROWS = (
    row("python.traceback", r"Traceback \(most recent", lines=80),
    row("watchdog.timeout", rf"(?:\[PG (?P<pg>\d+)\] )?{WATCHDOG}", "slow_rank_timeout", "failure", word="Watchdog"),
    row("watchdog.pg_status", r"[Ll]ast enqueued NCCL work: (?P<enqueued>-?\d+)", word="enqueued"),
    row("watchdog.heartbeat", "no heartbeat", "slow_rank_timeout", "failure",
        weight=14),
    row("store.timeout", r"wait timeout after (?P<timeout_ms>\d+)ms", "slow_rank_timeout", "failure", weight=30),
    row("progress.bar", r"(?P<percent>\d+)%\|.*\[(?P<elapsed>[\d:]+)<", word="%|"),
    row("epoch.end", "fit stopped"),
    row("nccl.init_complete", r"nranks (?P<nranks>\d+) .*Init COMPLETE", word="Init COMPLETE"),
    row("members.one", r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: (?P<member>\d+)/(?P<world>\d+)"),
    row("members.all", "All distributed processes registered"),
    row("any.failure", r"\b\w*Error\b", word="Error"),
    row("elastic.restart", "Restarting worker group"),
    row("elastic.exit", r"failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+)", "app_crash",
        "failure", weight=20),
    row("elastic.root_cause", r"Root Cause"),
    row("elastic.root_cause_host", r"host *: (?P<node>\S+)"),
    row("elastic.root_cause_rank", r"rank *: (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)"),
    row("elastic.root_cause_exitcode", r"exitcode *: (?P<exitcode>-?\d+) \(pid"),
    row("sigterm", "closing signal SIGTERM", "external_signal", "fallout"),
    row("lost", r"closed by remote peer (?P<peer_node>\S+)", "remote_peer_failure", "fallout", says="lost {peer_node}"),
    row("duplicate", r"rank (?P<rank>\d+) and rank (?P<peer_rank>\d+) both on (?P<bus>\w+)", "duplicate_gpu", "cause",
        weight=90, says="ranks {rank} and {peer_rank} are both on {bus}, expected one", fix="look at {bus}"),
    row("oom", "CUDA out of memory", "gpu_oom", "cause", weight=80),
    row("ecc", "uncorrectable ECC", "gpu_hw_fault", "cause", weight=90),
    row("shm", "No space left", "shm_exhausted", "cause", weight=85),
    row("port", "address already in use", "port_in_use", "cause", weight=85),
    row("vague", "internal error", "ib_fabric_error", "failure", weight=30),
    row("tcp", "Using network Socket", "degraded_path", "slower", says="TCP, although there is InfiniBand",
        needs=("ib",), unless=("ib_off",)),
    row("ib", "mlx5_0:1/IB"),
    row("ib_off", "NCCL_IB_DISABLE"),
)  # fmt: skip
BOOK = Book(CAUSES, ROWS)


def lines(
    texts: Iterable[str], file: str = "job.log", rank: int | None = None, node: str = "", **more: Any
) -> list[Line]:
    """Of one file. A text may begin with its rank: "[rank3]: "."""
    found = []
    for number, text in enumerate(texts, 1):
        label = re.match(r"\[rank(\d+)\]: ?", text)
        known = {"rank": int(label[1]) if label else rank, "node": node, **more}
        found.append(Line(text[label.end() :] if label else text, text, file, number, number, **known))
    return found


def conclude(*all_lines: Sequence[Line], artifacts: Sequence[Candidate] = (), book: Book = BOOK) -> list[Candidate]:
    """What explain concludes."""
    timeline = Timeline()
    for line in (text_line for of_file in all_lines for text_line in of_file):
        timeline.add(line, book.matches(line))
    return explain(timeline, artifacts)


def traceback(error: str, file: str = "train.py", number: int = 7, label: str = "") -> list[str]:
    """Of user code that calls into torch."""
    frames = [f'  File "{file}", line {number}, in main', "    step()", '  File "/x/site-packages/torch/nn.py", line 1']
    texts = ["Traceback (most recent call last):", *frames, "    call()", error]
    return [f"{label}{text}" for text in texts]


def timeout(
    rank: int, number: int = 12, operation: str = "ALLREDUCE", elements: int = 4096, limit: int = 600, group: str = ""
) -> str:
    """Of torch's watchdog."""
    work = f"SeqNum={number}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)={limit}000"
    return f"[rank{rank}]: {group}Watchdog caught collective operation timeout: WorkNCCL({work}) ran for {limit}031 ms"
