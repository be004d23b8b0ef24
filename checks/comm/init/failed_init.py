"""Why NCCL's ranks did not come together: told from the logs of the ranks that failed.

Only WARN lines and the exception count, and of them only texts that are a cause (init_causes): "Connection closed by
remote peer", "remote process exited" and error 6 come from who lost a peer. A cause that a rank tells of itself goes
before an address that others could not reach.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from preflight.check import Code, Finding, Outcome, Run, ranges, vote
from preflight.checks.comm.init import unreachable
from preflight.checks.comm.init.init_causes import KINDS, RDMA, Kind
from preflight.nccl.version import SAME_VERSION_FIX

VERSIONS = Code(
    "NCCL refused to start with ranks of another NCCL version.",
    fix=SAME_VERSION_FIX,
)
DUPLICATE_GPU = Code(
    "Two ranks use one GPU.",
    fix="Start as many ranks on a node as it has GPUs, and let each take cuda:LOCAL_RANK; see CUDA_VISIBLE_DEVICES of "
    "both (env.launch, gpu.inventory).",
)

WARN = re.compile(r"NCCL WARN ([^\n]{1,1000})")
RETRY = re.compile(
    r"NCCL INFO (?:\w+: )?(connect(?: to \S{1,250})? returned [^,\n]{3,60}), retrying \((?:[5-9]|\d\d+)/"
)
"""2.24 on. NCCL tries for a minute (34 times), which may be longer than the check waits; 5 times are 1.5 s."""
LAST = re.compile(r"Last error:\n([^\n]{1,1000})|\b(CUDA error|CUDA driver error|Error \d{3}): ([^\n]{1,300})")
"""Of torch's exception: NCCL's last WARN, or CUDA's own."""
DUPLICATE = re.compile(r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on CUDA device ([0-9a-f]+)")
SHARED_GPU = "Multiple Ranks are using the same GPU"
"""2.30 on; it names none."""
MISMATCH = re.compile(r"Mismatched NCCL version detected ?: rank (\d+) version (\d+) rank (\d+) version (\d+)")


BUS_ERROR = "SIGBUS"
"""What a process gets that writes to memory of a full /dev/shm."""


@dataclass(frozen=True)
class Cause:
    kind: Kind
    text: str
    variable: str
    words: str
    """NCCL's own."""


@dataclass(frozen=True)
class Told:
    """Of one failed rank."""

    warnings: tuple[str, ...]
    log: str


def findings(run: Run) -> Iterator[Finding]:
    """Of the ranks that failed; nothing where none did, or none tells of a cause."""
    if run.job.backend != "nccl":
        return
    bad = {rank: outcome for rank, outcome in run.outcomes.items() if not outcome.sound}
    told = {rank: _told(outcome) for rank, outcome in bad.items()}
    versions, twins = list(_versions(told, run)), list(_twins(told, run))
    gone = any(map(_gone, bad.values()))
    causes = _sure({rank: cause for rank, log in told.items() if (cause := _cause(log))}, bad, gone)
    victims = tuple(rank for rank in told if rank not in causes)
    yield from versions
    yield from twins
    yield from _of_ranks({rank: cause for rank, cause in causes.items() if cause.kind.code is not RDMA}, victims, run)
    yield from _of_rdma({rank: cause for rank, cause in causes.items() if cause.kind.code is RDMA}, victims, run)
    if not (versions or twins or causes or gone):
        warnings = {rank: log.warnings for rank, log in told.items()}
        yield from unreachable.findings(warnings, {rank: log.log for rank, log in told.items()}, run)


def _sure(causes: dict[int, Cause], bad: Mapping[int, Outcome], gone: bool) -> dict[int, Cause]:
    """Without what victims say, where somebody explains them."""
    own = {rank: cause for rank, cause in causes.items() if not cause.kind.or_victim or _gone(bad[rank])}
    return own if own or gone else causes


def _of_ranks(causes: Mapping[int, Cause], victims: tuple[int, ...], run: Run) -> Iterator[Finding]:
    for rank, cause in causes.items():
        where = {**run.job.where(rank), "variable": cause.variable or None}
        yield cause.kind.code.fail(cause.text, noticed_by=victims, evidence={"nccl": cause.words}, **where)


def _of_rdma(causes: Mapping[int, Cause], victims: tuple[int, ...], run: Run) -> Iterator[Finding]:
    """Both ends of a bad path say so: where several nodes do, nobody is named."""
    if len({run.job.node_of(rank).node for rank in causes}) < 2:
        yield from _of_ranks(causes, victims, run)
        return
    first = next(iter(causes.values()))
    text = f"{first.text}, on {ranges.ranks(sorted(causes))}"
    everybody = tuple(sorted({*causes, *victims}))
    yield RDMA.fail(text, noticed_by=everybody, evidence={"nccl": first.words})


def _told(outcome: Outcome) -> Told:
    log = outcome.nccl_log or outcome.log_tail or ""
    own = f"{outcome.reason or ''}\n{outcome.stack or ''}"
    last = [last_words[0] or f"{last_words[1]}: {last_words[2]}" for last_words in LAST.findall(own)]
    bus = [BUS_ERROR] if outcome.kind == "crashed" and outcome.signal == "SIGBUS" else []
    tried = [f"{text}, exceeded error retry count" for text in RETRY.findall(log)]
    return Told((*WARN.findall(log), *last, *tried[-1:], *bus, outcome.reason or ""), log)


def _gone(outcome: Outcome) -> bool:
    """Dead, stopped, or left for a reason of its own: then nothing is wrong with the way to it."""
    stopped = outcome.kind == "timed_out" and outcome.state in ("T", "t", "Z", "D")
    left = outcome.kind == "raised" and not outcome.in_collective
    return stopped or left or outcome.kind in ("crashed", "lost")


def _cause(told: Told) -> Cause | None:
    """The first in the log's order."""
    for warning in told.warnings:
        for kind in KINDS:
            match = kind.pattern.search(warning)
            if match:
                value = _value(told.log, kind.variable) if kind.variable else ""
                text = kind.text.format(*(part or "" for part in match.groups() or ("",)))
                text = f"{text}: {kind.variable}={value}" if value else text
                return Cause(kind, text, kind.variable if value or kind.sure else "", warning[:300])
    return None


def _value(log: str, variable: str) -> str:
    match = re.search(rf"{variable} set (?:by environment )?to ([^\n]{{1,200}})", log)
    return match[1].strip() if match else ""


def _versions(told: Mapping[int, Told], run: Run) -> Iterator[Finding]:
    """Each rank tells of the first pair that differs: together they tell who has what."""
    pairs = {match.groups() for log in told.values() for text in log.warnings if (match := MISMATCH.search(text))}
    seen: dict[int, str] = {}
    for first, its, second, others in pairs:
        seen |= {_rank(run, first): _version(int(its)), _rank(run, second): _version(int(others))}
    votes = vote(sorted(seen.items()))
    victims = tuple(sorted(told.keys() - {rank for rank, _ in votes.odd()}))
    for rank, version in votes.odd():
        text = f"has NCCL {version}, expected {votes.usual} as on {votes.share()} that are named"
        yield VERSIONS.fail(text, noticed_by=victims, **run.job.where(rank))
    if pairs and not votes.decided:
        yield VERSIONS.fail(f"NCCL is {votes.sides()}, expected one version", noticed_by=tuple(told))


def _version(code: int) -> str:
    """22703 is 2.27.3 (NCCL_VERSION in src/nccl.h.in, since 2.9)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _rank(run: Run, number: str) -> int:
    """NCCL counts the members."""
    return run.members[int(number)] if int(number) < len(run.members) else int(number)


def _twins(told: Mapping[int, Told], run: Run) -> Iterator[Finding]:
    found: dict[tuple[int, int], str] = {}
    unnamed = []
    for rank, log in told.items():
        for text in log.warnings:
            if match := DUPLICATE.search(text):
                first, second = sorted((_rank(run, match[1]), _rank(run, match[2])))
                found[first, second] = match[3]
            elif SHARED_GPU in text:
                unnamed.append(rank)
    for (first, second), bus in sorted(found.items()):
        text = f"rank {first} and rank {second} are on one GPU (PCI {bus}), expected one each"
        rest = tuple(sorted(told.keys() - {first, second}))
        yield DUPLICATE_GPU.fail(text, peer_rank=second, noticed_by=rest, **run.job.where(first))
    if unnamed and not found:
        text = f"ranks of one node are on one GPU, say {ranges.ranks(sorted(set(unnamed)))}, expected one each"
        yield DUPLICATE_GPU.fail(text, noticed_by=tuple(sorted(set(unnamed))))
