"""Why NCCL's ranks could not form a group, from the logs of the ranks that failed.

Only WARN lines and the exception count, and only if the failure book knows them as a cause: "Connection closed by
remote peer", "remote process exited" and error 6 come from ranks that lost a peer. A cause that a rank names for
itself takes precedence over an address that others could not reach.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.check import Code, Finding, Outcome, Run, ranges, vote
from preflight.checks.comm.init import init_causes, unreachable
from preflight.checks.comm.init.init_causes import DUPLICATE_GPU, RDMA, VERSIONS
from preflight.failure_book.book import live_book
from preflight.failure_book.line import Line
from preflight.nccl import log_lines
from preflight.nccl.version import version_text

CODES = {f"comm.init.{name.lower()}": code for name, code in vars(init_causes).items() if isinstance(code, Code)}

WARN = re.compile(r"NCCL WARN ([^\n]{1,1000})")
RETRY = re.compile(
    r"NCCL INFO (?:\w+: )?(connect(?: to \S{1,250})? returned [^,\n]{3,60}), retrying \((?:[5-9]|\d\d+)/"
)
"""From 2.24 on. NCCL retries for a minute (34 times), maybe longer than the check waits; 5 retries take 1.5 s."""
LAST = re.compile(r"Last error:\n([^\n]{1,1000})|\b((?:CUDA error|CUDA driver error|Error \d{3}): [^\n]{1,300})")
"""In torch's exception: NCCL's last WARN, or CUDA's error."""


class ShownCause(NamedTuple):
    """What a line of a rank's log shows."""

    code: Code
    text: str
    variable: str | None
    """The environment variable that is the reason, if NCCL has read it."""
    or_victim: bool
    """Whether a rank whose peer died may say the same: counts only if no rank died or names another cause."""
    groups: Mapping[str, str]
    words: str
    """NCCL's words."""


class FailedRank(NamedTuple):
    log: str
    warnings: tuple[str, ...]
    causes: tuple[ShownCause, ...]
    """In log order."""


def findings(run: Run) -> Iterator[Finding]:
    """The causes that failed ranks name; nothing if no rank failed, or none names a cause."""
    if run.job.backend != "nccl":
        return
    bad = {rank: outcome for rank, outcome in run.outcomes.items() if not outcome.sound}
    launched = run.facts("env.launch")
    failed = {rank: _read(outcome, launched.get(rank, {}).get("environ", {})) for rank, outcome in bad.items()}
    shared = [*_versions(failed, run), *_twins(failed, run)]
    gone = any(map(_gone, bad.values()))
    causes = _sure({rank: cause for rank, failure in failed.items() if (cause := _own_cause(failure))}, bad, gone)
    victims = tuple(rank for rank in failed if rank not in causes)
    yield from shared
    yield from _of_ranks({rank: cause for rank, cause in causes.items() if cause.code is not RDMA}, victims, run)
    yield from _of_rdma({rank: cause for rank, cause in causes.items() if cause.code is RDMA}, victims, run)
    if not (shared or causes or gone):
        warnings = {rank: failure.warnings for rank, failure in failed.items()}
        yield from [*_own_versions(failed, run)] or unreachable.findings(
            warnings, {rank: failure.log for rank, failure in failed.items()}, run
        )


def _sure(causes: dict[int, ShownCause], bad: Mapping[int, Outcome], gone: bool) -> dict[int, ShownCause]:
    """The causes without those of victims, if another rank explains them."""
    own = {rank: cause for rank, cause in causes.items() if not cause.or_victim or _gone(bad[rank])}
    return own if own or gone else causes


def _of_ranks(causes: Mapping[int, ShownCause], victims: tuple[int, ...], run: Run) -> Iterator[Finding]:
    for rank, cause in causes.items():
        where = {**run.job.where(rank), "variable": cause.variable}
        yield cause.code.fail(cause.text, noticed_by=victims, evidence={"nccl": cause.words}, **where)


def _of_rdma(causes: Mapping[int, ShownCause], victims: tuple[int, ...], run: Run) -> Iterator[Finding]:
    """Both ends of a bad path report it: if several nodes do, none is named."""
    if len({run.job.node_of(rank).node for rank in causes}) < 2:
        yield from _of_ranks(causes, victims, run)
        return
    first = next(iter(causes.values()))
    text = f"{first.text}, on {ranges.ranks(sorted(causes))}"
    everybody = tuple(sorted({*causes, *victims}))
    yield RDMA.fail(text, noticed_by=everybody, evidence={"nccl": first.words})


def _read(outcome: Outcome, environ: Mapping[str, str]) -> FailedRank:
    """`environ`: what env.launch kept of the rank's variables."""
    log = outcome.nccl_log or outcome.log_tail or ""
    own = f"{outcome.reason or ''}\n{outcome.stack or ''}"
    last = [by_nccl or by_cuda for by_nccl, by_cuda in LAST.findall(own)]
    died = [f"received signal {outcome.signal}"] if outcome.kind == "crashed" and outcome.signal else []
    tried = [f"{text}, exceeded error retry count" for text in RETRY.findall(log)]
    warnings = (*WARN.findall(log), *last, *tried[-1:], *died, outcome.reason or "")
    return FailedRank(log, warnings, tuple(cause for text in warnings for cause in _causes(text, log, environ)))


def _gone(outcome: Outcome) -> bool:
    """Whether the rank died, stopped, or left for its own reason: then the path to it is not at fault."""
    stopped = outcome.kind == "timed_out" and outcome.state in ("T", "t", "Z", "D")
    left = outcome.kind == "raised" and not outcome.in_collective
    return stopped or left or outcome.kind in ("crashed", "lost")


def _causes(warning: str, log: str, environ: Mapping[str, str]) -> Iterator[ShownCause]:
    """The most direct cause that the failure book finds, if any."""
    matches = live_book().matches(Line(text=warning, level="WARN"))
    for match in sorted(matches, key=lambda match: -match.signature.weight)[:1]:
        if live := match.signature.live:
            value = _value(log, environ, live.variable) if live.variable else ""
            text = match.fill(match.signature.says) + (f": {live.variable}={value}" if value else "")
            variable = live.variable if value or live.sure else None
            yield ShownCause(CODES[live.code], text, variable, live.or_victim, match.groups, warning[:300])


def _own_cause(failed: FailedRank) -> ShownCause | None:
    """The first cause that concerns only this rank, or None."""
    return next((cause for cause in failed.causes if cause.code not in (VERSIONS, DUPLICATE_GPU)), None)


def _groups(failed: Mapping[int, FailedRank], code: Code) -> dict[int, list[Mapping[str, str]]]:
    """The groups matched in all lines that show this code, by rank."""
    return {rank: [cause.groups for cause in failure.causes if cause.code is code] for rank, failure in failed.items()}


def _value(log: str, environ: Mapping[str, str], variable: str) -> str:
    match = re.search(rf"{variable} set (?:by environment )?to ([^\n]{{1,200}})", log)
    return match[1].strip() if match else environ.get(variable, "")


def _versions(failed: Mapping[int, FailedRank], run: Run) -> Iterator[Finding]:
    """Each rank reports the first pair that differs: together these tell which rank has which version."""
    seen: dict[int, str] = {}
    for pair in [pair for lines in _groups(failed, VERSIONS).values() for pair in lines]:
        seen[_rank(run, pair["rank"])] = version_text(int(pair["version"]))
        seen[_rank(run, pair["peer_rank"])] = version_text(int(pair["peer_version"]))
    yield from _of_versions(seen, failed, run)


def _own_versions(failed: Mapping[int, FailedRank], run: Run) -> Iterator[Finding]:
    """Versions too far apart do not understand each other's first message (2.28 and 2.32: "Message truncated"), and
    report no pair. But each rank's log begins with its own version."""
    seen = {rank: version for rank, failure in failed.items() if (version := log_lines.parse(failure.log)["version"])}
    yield from _of_versions(seen, failed, run)


def _of_versions(seen: Mapping[int, str], failed: Mapping[int, FailedRank], run: Run) -> Iterator[Finding]:
    votes = vote(sorted(seen.items()))
    victims = tuple(sorted(failed.keys() - {rank for rank, _ in votes.odd()}))
    for rank, version in votes.odd():
        text = f"has NCCL {version}, expected {votes.usual} as on {votes.share()} named"
        yield VERSIONS.fail(text, noticed_by=victims, **run.job.where(rank))
    if seen and not votes.decided:
        yield VERSIONS.fail(f"NCCL is {votes.sides()}, expected one version", noticed_by=tuple(failed))


def _rank(run: Run, number: str) -> int:
    """The job's rank for NCCL's number, which counts members."""
    return run.members[int(number)] if int(number) < len(run.members) else int(number)


def _twins(failed: Mapping[int, FailedRank], run: Run) -> Iterator[Finding]:
    lines = _groups(failed, DUPLICATE_GPU)
    named: set[tuple[int, int, str]] = set()
    for pair in (pair for pairs in lines.values() for pair in pairs if pair):  # NCCL 2.30 does not name ranks
        first, second = sorted((_rank(run, pair["rank"]), _rank(run, pair["peer_rank"])))
        named.add((first, second, pair["bus"]))
    for first, second, bus in sorted(named):
        text = f"rank {first} and rank {second} share one GPU (PCI {bus}), expected one each"
        rest = tuple(sorted(failed.keys() - {first, second}))
        yield DUPLICATE_GPU.fail(text, peer_rank=second, noticed_by=rest, **run.job.where(first))
    unnamed = tuple(rank for rank in sorted(failed) if lines[rank])
    if unnamed and not named:
        text = f"ranks of one node share a GPU, say {ranges.ranks(unnamed)}, expected one each"
        yield DUPLICATE_GPU.fail(text, noticed_by=unnamed)
