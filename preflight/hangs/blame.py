"""Who is to blame when a check did not end well. Pure: outcomes in, findings out.

In a WORLD check the victims are loud (exceptions, a watchdog's SIGABRT) and the culprit is silent: a
stopped, dead, stuck or missing rank explains what the others report, and they become `noticed_by`.
Only if no rank explains them do exceptions become findings of their own.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from preflight.check import Scope, Severity
from preflight.core import rank_ranges, words
from preflight.core.action import Action, engine_action
from preflight.core.exceptions import is_the_authors, printed_frames
from preflight.core.finding import Reported
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.hangs import desync
from preflight.hangs.ras_evidence import with_ras

FIXES = {
    "no_process": (
        "Raise that limit, or end what uses it up (ps -eLf): a cgroup's by TasksMax or --pids-limit, the others by "
        "ulimit -u or -n in the job's script or by limits.conf."
    ),
    "lost": "Look at that rank's own output and at its node (ssh, dmesg); leave the node out if it is gone.",
    "crashed": "See its stack and log (--report DIR, in DIR/logs), or run it alone: --only {check}.",
    "raised": "See its stack (--report DIR, in DIR/logs), or run it alone: --only {check}.",
    "bad_facts": "Fix the check: facts are JSON's types, at most 1 MiB, without NaN.",
    "timed_out": "See its stack for where it waits (--report DIR, in DIR/logs).",
    "cut_short": "Give the run more time (--deadline), or fewer checks (--only).",
    "links": "Look at the links between these ranks (network, firewall, NVLink), then at the stacks (--report DIR).",
    "slow": "Nothing hangs: compare its speed with an earlier run of this job, and check what else runs on the nodes.",
    "own_fault": "A bug in preflight, not a problem of the machine: please report it with that rank's output.",
    "stopped": "Something stopped this process (SIGSTOP, a debugger, a suspended job): find out what, then run again.",
    "desync": (
        "Find where this rank goes a different way (a condition on the rank, uneven data, different code or settings "
        "on its node): its stack and last collectives are in DIR/logs (--report DIR)."
    ),
    "uninterruptible": "It waits in the kernel for a device or a file system: check dmesg on the node; reboot it.",
}


STATES = {"T": ": the process is stopped", "t": ": the process is stopped", "Z": ": the process is a zombie"}


def findings(check: str, scope: Scope, outcomes: Mapping[int, Outcome], job: Job) -> list[Reported]:
    """The engine's findings for one check, worst first."""
    parted = (
        desync.find_desyncs(outcomes) if scope is Scope.WORLD and any(not o.sound for o in outcomes.values()) else []
    )
    return with_ras(_from_outcomes(check, scope, outcomes, job, parted), outcomes, parted)


def _from_outcomes(
    check: str, scope: Scope, outcomes: Mapping[int, Outcome], job: Job, parted: Sequence[desync.Desync]
) -> list[Reported]:
    bad = {rank: outcome for rank, outcome in outcomes.items() if not outcome.sound}
    if scope is Scope.WORLD and _all_at_work(outcomes):
        return [_too_slow(check, outcomes)]
    if scope is Scope.WORLD:
        sentences, odd = _explained(outcomes, bad, parted)
    else:
        odd = set()
        dragged = {rank for rank, outcome in bad.items() if outcome.kind == "lost" and outcome.aborted}
        sentences = {rank: message(bad[rank]) for rank in set(bad) - dragged}
    victims = set(bad) - set(sentences)
    if not sentences:  # no rank explains them: each is a finding of its own
        if parted:
            return [_parted(check, bad, outcomes, parted[0])]
        if _all_wait(bad):
            return [_deadlock(check, bad, outcomes, job)]
        sentences, victims = {rank: message(outcome) for rank, outcome in bad.items()}, set()
    late = scope is Scope.WORLD and not odd and all(_was_only_late(outcomes[rank]) for rank in sentences)
    if sentences and late and not any(outcomes[rank].in_collective for rank in victims):
        return [_cut_short(check, sentences, outcomes)]
    return [
        _finding(check, scope, rank, outcomes[rank], sentences[rank], victims, job, is_odd=rank in odd)
        for rank in sorted(sentences)
    ]


def with_judged(found: list[Reported], judged: list[Reported], *, judges_failures: bool) -> list[Reported]:
    """Merges the engine's findings and judge()'s for one check. If judge() judges failures and has found a cause, that
    comes first, and engine findings without a culprit are dropped as its consequence; the outcomes still show them.
    So are limits of ranks whose cause the check has found: NCCL has said "Too many open files" to both."""
    if not judges_failures or not any(finding.severity == Severity.FAIL for finding in judged):
        return found + judged
    explained = {finding.where.get("rank") for finding in judged if finding.severity == Severity.FAIL} - {None}

    def is_left(finding: Reported) -> bool:
        of_limit = finding.code.endswith(".no_process")
        return bool(finding.where) and not (of_limit and finding.where.get("rank") in explained)

    return [*judged, *filter(is_left, found)]


def _explained(
    outcomes: Mapping[int, Outcome], bad: Mapping[int, Outcome], desyncs: Sequence[desync.Desync]
) -> tuple[dict[int, str], set[int]]:
    """(a sentence for each rank that explains the others, those of them that went a different way)."""
    culprits = _culprits(outcomes, bad)
    if culprits:
        return {rank: f"{message(outcomes[rank])}{_absent(desyncs, rank, bad)}" for rank in culprits}, set()
    if desyncs:
        places = {rank: parted for parted in desyncs for rank in parted.odd}
        sentences = {rank: parted.describe_odd(rank, outcomes[rank]) for rank, parted in places.items()}
        return sentences, {rank for rank, parted in places.items() if not parted.is_stuck(rank, outcomes[rank])}
    odd = _out_of_step(bad)
    numbers = {outcome.collective["number"] for outcome in bad.values() if outcome.collective and _is_inside(outcome)}
    return {rank: _describe_out_of_step(bad, odd, rank) for rank in odd}, odd if len(numbers) == 1 else set()


def needs_more_evidence(outcomes: Mapping[int, Outcome]) -> bool:
    """Whether ranks of a WORLD check failed without a sure sign why; the others' collectives may tell."""
    bad = {rank: outcome for rank, outcome in outcomes.items() if not outcome.sound}
    return bool(bad) and not _culprits(outcomes, bad)


def _absent(desyncs: Sequence[desync.Desync], rank: int, bad: Mapping[int, Outcome]) -> str:
    """For a rank that is known to be the cause: the collective in which the others waited for it, or ""."""
    parted = next((parted for parted in desyncs if rank in parted.calls), None)
    if parted is None:
        return ""
    waiting = {other for other, call in parted.calls.items() if call and not call["over"] and other in bad}
    if parted.calls[rank] is not None or not waiting:
        return ""
    call = parted.calls[min(waiting)]
    assert call is not None
    return f"; it never entered {parted.describe_numbered(call)}, in which {rank_ranges.ranks(waiting)} waited"


def _culprits(outcomes: Mapping[int, Outcome], bad: Mapping[int, Outcome]) -> set[int]:
    """The ranks that explain the others, by the surest sign that there is."""
    gone = {rank for rank, outcome in bad.items() if _is_gone(outcome)}
    if gone:
        return gone
    outside = {rank for rank, outcome in bad.items() if _left_the_others_waiting(outcome)}
    first = {rank for rank in outside if not bad[rank].aborted}
    return first or outside or {rank for rank, o in outcomes.items() if o.kind == "skipped" and bad}


def _is_inside(outcome: Outcome) -> bool:
    """Whether it is inside a collective that the check has marked (ctx.collective)."""
    return bool((outcome.collective or {}).get("inside"))


def _is_gone(outcome: Outcome) -> bool:
    """Whether it is dead, stopped or stuck in the kernel. A SIGABRT in a collective is its watchdog's: a victim."""
    if outcome.kind == "crashed":
        is_inside = _is_inside(outcome) or desync.is_waiting(outcome)
        return outcome.signal != "SIGABRT" or not (is_inside or desync.got_too_much(outcome))
    if outcome.kind == "lost":
        return not outcome.aborted
    return outcome.kind == "timed_out" and outcome.could_not_run


def _left_the_others_waiting(outcome: Outcome) -> bool:
    """Whether it was not inside a collective: it raised on its own, or was busy with something else."""
    if outcome.kind == "raised":
        return not outcome.in_collective
    return outcome.kind == "timed_out" and not (_is_inside(outcome) or desync.is_waiting(outcome))


def _out_of_step(bad: Mapping[int, Outcome]) -> set[int]:
    """The minority of ranks in an earlier collective than the others, or with a different operation or shape. If a
    minority is ahead, it may have skipped one or be done with it (a broadcast's root is): then no rank is named."""
    seen = {rank: outcome.collective for rank, outcome in bad.items() if outcome.collective and _is_inside(outcome)}
    numbers = {collective["number"] for collective in seen.values()}
    if len(numbers) > 1:
        behind = {rank for rank, collective in seen.items() if collective["number"] == min(numbers)}
        return behind if 2 * len(behind) < len(seen) else set()
    calls: dict[tuple[str, str], set[int]] = {}
    for rank, collective in seen.items():
        calls.setdefault((collective["operation"], collective["shape"]), set()).add(rank)
    few = sorted(calls.values(), key=len)
    return few[0] if len(few) == 2 and len(few[0]) < len(few[1]) else set()


def _describe_out_of_step(bad: Mapping[int, Outcome], culprits: set[int], rank: int) -> str:
    """The sentence for a rank that was in a different collective from the others, by the marks of the check."""
    others = sorted(set(bad) - culprits)
    theirs = _describe_call(bad[others[0]].collective)
    return f"was inside {_describe_call(bad[rank].collective)} while {rank_ranges.ranks(others)} waited inside {theirs}"


def _describe_call(collective: Mapping[str, Any] | None) -> str:
    """ "all_reduce 64 MiB #12"."""
    if collective is None:
        return "a collective"
    return f"{collective['operation']} {collective['shape']} #{collective['number']}".replace("  ", " ")


def _all_wait(bad: Mapping[int, Outcome]) -> bool:
    """Whether several ranks failed, all of them inside a collective."""
    return len(bad) > 1 and all(
        outcome.in_collective or _is_inside(outcome) or desync.is_waiting(outcome) for outcome in bad.values()
    )


def _all_at_work(outcomes: Mapping[int, Outcome]) -> bool:
    """Whether all ranks were still working at the deadline, and none had waited long for another: a rank that seems to
    be behind was only recorded earlier."""
    ended = [outcome.seconds for outcome in outcomes.values() if outcome.kind == "timed_out" and not outcome.aborted]
    return bool(ended) and all(
        outcome.seconds >= 0.9 * max(ended)
        and (outcome.in_collective if outcome.kind == "raised" else outcome.state in ("R", "S", None))
        and outcome.kind in ("timed_out", "raised")
        and desync.is_at_work(outcome)
        for outcome in outcomes.values()
    )


def _too_slow(check: str, outcomes: Mapping[int, Outcome]) -> Reported:
    """One finding without a culprit: all ranks were still working."""
    first = next(iter(outcomes.values()))
    entered = [group["entered"] for outcome in outcomes.values() for group in outcome.recorded or () if group["world"]]
    message = (
        f"all {len(outcomes)} ranks were still at work after {_seconds(first)}, expected measure() to end: they had "
        f"entered {max(entered, default=0):,} collectives, and none waited long for another"
    )
    severity = Severity.ERROR if first.cut_short else Severity.FAIL
    return _reported(check, severity, "timed_out", message, set(), FIXES["cut_short" if first.cut_short else "slow"])


def _was_only_late(outcome: Outcome) -> bool:
    """Whether the run had no more time for it, and it was still computing: a rank that hangs sleeps, or spins until
    the others' patience in a collective is over, and they raise."""
    return outcome.cut_short and outcome.kind == "timed_out" and outcome.state == "R"


def _cut_short(check: str, sentences: Mapping[int, str], outcomes: Mapping[int, Outcome]) -> Reported:
    """One finding without a culprit: which rank is met at work at such a moment is chance."""
    at: dict[str, list[int]] = {}
    for rank, sentence in sentences.items():
        at.setdefault(sentence, []).append(rank)
    message = words.clauses((f"{rank_ranges.ranks(ranks)}: {text}" for text, ranks in at.items()), 2)
    return _reported(check, Severity.ERROR, "timed_out", message, set(outcomes), FIXES["cut_short"])


def _seconds(outcome: Outcome) -> str:
    return f"{outcome.seconds:.0f} s" if outcome.seconds >= 10 else f"{outcome.seconds:.1f} s"


def _parted(check: str, bad: Mapping[int, Outcome], outcomes: Mapping[int, Outcome], parted: desync.Desync) -> Reported:
    """One finding with both sides, if no majority shows which is right."""
    if parted.held:
        kind = "timed_out" if any(outcome.kind == "timed_out" for outcome in bad.values()) else "raised"
        message = f"{parted.describe_held()}; expected all to leave it"
        return _reported(check, Severity.FAIL, kind, message, set(bad), FIXES["links"])
    message = (
        f"the ranks are out of step: {parted.describe_sides(outcomes)}; expected the same calls on all ranks; "
        "no majority shows which side is wrong"
    )
    fix = (
        "Compare both sides' stacks and last collectives (--report DIR, in DIR/logs): a condition on the rank, uneven "
        "data, different code or settings on one node."
    )
    return _reported(check, Severity.FAIL, "desync", message, set(bad), fix)


SEE = ["net.mesh", "comm.paths"]
WITHIN = {
    "nccl": "ways between the GPUs of this node (P2P: IOMMU, ACS, driver; /dev/shm)",
    "gloo": "node's own firewall and load",
}
"""Where one node has all ranks, by backend."""


def _deadlock(check: str, bad: Mapping[int, Outcome], outcomes: Mapping[int, Outcome], job: Job) -> Reported:
    """One finding without a culprit: nothing shows which rank it is."""
    first = next(iter(bad.values()))
    why = f" ({first.reason})" if first.reason else ""
    kind = "timed_out" if any(outcome.kind == "timed_out" for outcome in bad.values()) else "raised"
    at: dict[str, list[int]] = {}
    for rank, outcome in bad.items():
        marked = outcome.collective if _is_inside(outcome) else None
        at.setdefault(f"inside {desync.waits_inside(outcome) or _describe_call(marked)}", []).append(rank)
    where = f": {desync.describe_by_rank(at)}" if len(at) > 1 else f" {next(iter(at))}"
    failed = f"{len(bad)} of {len(outcomes)} ranks failed{where}{why}"
    if all(outcome.cut_short for outcome in bad.values()):  # what takes a minute on a sound machine may look like this
        message = f"{failed} in the {_seconds(first)} that the run's deadline left, expected all to leave it"
        return replace(_reported(check, Severity.ERROR, kind, message, set(bad), FIXES["cut_short"]), see=SEE)
    message = f"{failed}, expected all to leave it; no rank is known to be the cause"
    fix = "Check the stacks (--report DIR, in DIR/logs)."
    if kind == "timed_out" or re.search("time[d ]*-?out", why, re.IGNORECASE):
        nodes = {job.node_of(rank).node for rank in outcomes}
        between = "network between the nodes (firewall, routes, MTU)" if len(nodes) > 1 else WITHIN[job.backend]
        fix = f"Look at the {between}, then at the stacks (--report DIR, in DIR/logs)."
    return replace(_reported(check, Severity.FAIL, kind, message, set(bad), fix), see=SEE)


def _finding(
    check: str, scope: Scope, rank: int, outcome: Outcome, sentence: str, victims: set[int], job: Job, *, is_odd: bool
) -> Reported:
    slug = "raised" if outcome.kind == "skipped" else (outcome.slug or outcome.kind)
    slug, fix = ("desync", "desync") if is_odd else (slug, _fix_for(outcome, slug))
    severity = Severity.FAIL if is_odd else _severity(scope, outcome)
    evidence = {"doing": outcome.doing} if outcome.doing else {}
    reported = _reported(check, severity, slug, sentence, victims, FIXES[fix])
    action = Action.REBOOT if fix == "uninterruptible" else reported.action
    return replace(reported, where=job.where(rank), evidence=evidence, action=action)


def _severity(scope: Scope, outcome: Outcome) -> Severity:
    """A check's own exception means that preflight failed to measure; one from a collective is the job's failure, and
    a limit of the node will stop the job as well."""
    if outcome.slug == "no_process":
        return Severity.FAIL
    if outcome.kind in ("raised", "skipped"):
        return Severity.FAIL if scope is Scope.WORLD and outcome.in_collective else Severity.ERROR
    return Severity.ERROR if outcome.cut_short or outcome.own_fault else Severity.FAIL


def _fix_for(outcome: Outcome, slug: str) -> str:
    if outcome.cut_short or outcome.own_fault:
        return "cut_short" if outcome.cut_short else "own_fault"
    if outcome.kind == "timed_out" and outcome.state in ("T", "t"):
        return "stopped"
    if outcome.kind == "timed_out" and outcome.state == "D":
        return "uninterruptible"
    return slug


def message(outcome: Outcome) -> str:
    """One sentence about an outcome; equal outcomes give equal sentences, so that ranks can be merged."""
    seconds = _seconds(outcome)
    doing = f"; last doing: {outcome.doing}" if outcome.doing else ""
    if _is_inside(outcome):
        doing += f"; inside {_describe_call(outcome.collective)}"
    if outcome.kind == "timed_out" and outcome.aborted and outcome.state not in STATES:
        return f"measure() was ended after {seconds}: {outcome.reason}{doing}"
    if outcome.kind == "timed_out":
        state = STATES.get(outcome.state or "", "")
        if outcome.state == "D":
            state = f": it is in uninterruptible sleep ({outcome.reason or 'the kernel does not say where'})"
        if outcome.cut_short:
            state = ", all the time that the run's deadline left"
        return f"measure() did not end within {seconds}{state}{waits_at(outcome.stack or '')}{doing}"
    if outcome.kind == "crashed":
        return f"the worker {outcome.reason}, expected it to live{doing}"
    if outcome.kind == "lost":
        return outcome.reason or "the rank stopped responding"
    if outcome.kind == "skipped":
        return f"was skipped ({outcome.reason}) while the other ranks waited for it"
    if outcome.slug == "no_process":
        return f"a process or a thread could not be started, or a file not opened: {outcome.reason}"
    if outcome.slug == "bad_facts":
        return f"{outcome.reason}"
    return f"measure() raised {outcome.reason}{doing}"


def waits_at(stack: str) -> str:
    """ " at data.py line 12 in load": the author's innermost line in the main thread of a faulthandler dump, which
    lists the main thread last; the innermost line of all if there is none."""
    frames = printed_frames(stack[max(stack.rfind("hread 0x"), 0) :])
    if not frames:
        return ""
    path, line, function, _ = next((frame for frame in frames if is_the_authors(frame[0])), frames[0])
    return f" at {os.path.basename(path)} line {line} in {function}"


def _reported(check: str, severity: Severity, slug: str, text: str, victims: set[int], fix: str) -> Reported:
    noticed_by, fix = rank_ranges.to_text(victims), fix.replace("{check}", check)
    return Reported(
        severity=severity,
        code=f"{check}.{slug}",
        message=text,
        noticed_by=noticed_by,
        fix=fix,
        action=engine_action(severity, slug),
    )
