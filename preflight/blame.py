"""Who is to blame when a check did not end well. Pure: outcomes in, findings out.

In a WORLD check the victims are loud (exceptions, a watchdog's SIGABRT) and the culprit is silent: a
stopped, dead, stuck or never-arrived rank explains what the others say, and they become `noticed_by`.
Only when no rank explains them do exceptions stand for themselves.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from preflight import ranges
from preflight.check import Scope, Severity
from preflight.job import Job
from preflight.outcome import Outcome

FIXES = {
    "lost": "Look at that rank's own output and at its node (ssh, dmesg); leave the node out if it is gone.",
    "crashed": "See its stack and log (--report DIR, in DIR/logs), or run it alone: --only {check}.",
    "raised": "See its stack (--report DIR, in DIR/logs), or run it alone: --only {check}.",
    "bad_facts": "Mend the check: facts are JSON's types, at most 1 MiB, without NaN.",
    "timed_out": "See its stack for where it waits (--report DIR, in DIR/logs).",
    "cut_short": "Give the run more time (--deadline), or fewer checks (--only).",
    "own_fault": "A fault of preflight, not of the machine: please report it with that rank's output.",
    "stopped": "Somebody stopped this process (SIGSTOP, a debugger, a job suspension): find out who, then run again.",
    "uninterruptible": "It waits in the kernel for a device or a file system: see dmesg on the node; reboot it.",
}


STATES = {"T": ": the process is stopped", "t": ": the process is stopped", "Z": ": the process is a zombie"}


def findings(check: str, scope: Scope, outcomes: Mapping[int, Outcome], job: Job) -> list[dict[str, Any]]:
    """The engine's findings for one check, worst first, as the report holds them."""
    bad = {rank: outcome for rank, outcome in outcomes.items() if not outcome.sound}
    dragged = {rank for rank, outcome in bad.items() if outcome.kind == "lost" and outcome.aborted}
    told: Callable[[Outcome], str] = message
    culprits = _culprits(outcomes, bad) if scope is Scope.WORLD else set(bad) - dragged
    if scope is Scope.WORLD and not culprits and (culprits := _out_of_step(bad)):
        told = _told_out_of_step(bad, culprits)
    victims = set(bad) - culprits
    if not culprits:  # nobody explains them: they stand for themselves
        culprits, victims = set(bad), set()
        if _all_wait(bad):
            return [_deadlock(check, bad, outcomes)]
    return [_finding(check, scope, rank, outcomes[rank], told, victims, job) for rank in sorted(culprits)]


def _culprits(outcomes: Mapping[int, Outcome], bad: Mapping[int, Outcome]) -> set[int]:
    """Ranks that explain the others, the surest sign first."""
    gone = {rank for rank, outcome in bad.items() if _is_gone(outcome)}
    if gone:
        return gone
    outside = {rank for rank, outcome in bad.items() if _left_the_others_waiting(outcome)}
    first = {rank for rank in outside if not bad[rank].aborted}
    first |= {rank for rank, o in outcomes.items() if o.kind == "skipped" and bad}
    return first or outside


def _is_gone(outcome: Outcome) -> bool:
    """Dead, stopped or stuck in the kernel. A SIGABRT inside a collective is its watchdog's, a victim's cry."""
    if outcome.kind == "crashed":
        return outcome.signal != "SIGABRT" or not (outcome.collective or {}).get("inside")
    if outcome.kind == "lost":
        return not outcome.aborted
    return outcome.kind == "timed_out" and outcome.state in ("T", "t", "D", "Z")


def _left_the_others_waiting(outcome: Outcome) -> bool:
    """It was not inside a collective: it raised on its own, or did something else all the time."""
    if outcome.kind == "raised":
        return not outcome.in_collective
    return outcome.kind == "timed_out" and not (outcome.collective or {}).get("inside")


def _out_of_step(bad: Mapping[int, Outcome]) -> set[int]:
    """The few ranks in an earlier collective than the others, or in another operation or shape. Where few are ahead,
    they may have left one out, or rightly be done with it (who broadcasts is): nobody is named."""
    seen = {rank: outcome.collective for rank, outcome in bad.items() if outcome.collective}
    numbers = {collective["number"] for collective in seen.values()}
    if len(numbers) > 1:
        behind = {rank for rank, collective in seen.items() if collective["number"] == min(numbers)}
        return behind if 2 * len(behind) < len(seen) else set()
    calls: dict[tuple[str, str], set[int]] = {}
    for rank, collective in seen.items():
        calls.setdefault((collective["operation"], collective["shape"]), set()).add(rank)
    few = sorted(calls.values(), key=len)
    return few[0] if len(few) == 2 and len(few[0]) < len(few[1]) else set()


def _told_out_of_step(bad: Mapping[int, Outcome], culprits: set[int]) -> Callable[[Outcome], str]:
    """The sentence for ranks that were in another collective than the others."""
    others = sorted(set(bad) - culprits)

    def told(outcome: Outcome) -> str:
        theirs = _called(bad[others[0]].collective)
        return f"was inside {_called(outcome.collective)} while {ranges.ranks(others)} waited inside {theirs}"

    return told


def _called(collective: Mapping[str, Any] | None) -> str:
    """ "all_reduce 64 MiB #12"."""
    words = collective or {"operation": "a collective", "shape": "", "number": "?"}
    return f"{words['operation']} {words['shape']} #{words['number']}".replace("  ", " ")


def _all_wait(bad: Mapping[int, Outcome]) -> bool:
    """Several ranks, all inside a collective, none ahead of or behind the others."""
    return len(bad) > 1 and all(
        outcome.in_collective or (outcome.collective or {}).get("inside") for outcome in bad.values()
    )


def _deadlock(check: str, bad: Mapping[int, Outcome], outcomes: Mapping[int, Outcome]) -> dict[str, Any]:
    """One finding without a culprit: honest where nothing tells who it is."""
    first = next(iter(bad.values()))
    why = f" ({first.reason})" if first.reason else ""
    kind = "timed_out" if any(outcome.kind == "timed_out" for outcome in bad.values()) else "raised"
    at: dict[str, list[int]] = {}
    for rank, outcome in bad.items():
        at.setdefault(_called(outcome.collective), []).append(rank)
    inside = ", ".join(f"{ranges.ranks(ranks)} inside {call}" for call, ranks in at.items())
    where = f": {inside}" if len(at) > 1 else f" inside {next(iter(at))}"
    failed = f"{len(bad)} of {len(outcomes)} ranks failed{where}{why}"
    message = f"{failed}, expected all to leave it; none is seen to be the cause"
    fix = "Look at the stacks (--report DIR, in DIR/logs)."
    if kind == "timed_out" or re.search("time[d ]*-?out", why, re.IGNORECASE):
        fix = (
            "Look at the network between the nodes (firewall, routes, MTU), then at the stacks "
            "(--report DIR, in DIR/logs)."
        )
    return _as_json(check, Severity.FAIL, kind, message, {}, set(bad), fix)


def _finding(
    check: str,
    scope: Scope,
    rank: int,
    outcome: Outcome,
    told: Callable[[Outcome], str],
    victims: set[int],
    job: Job,
) -> dict[str, Any]:
    slug = "raised" if outcome.kind == "skipped" else (outcome.slug or outcome.kind)
    return _as_json(
        check, _severity(scope, outcome), slug, told(outcome), job.where(rank), victims,
        FIXES[_fix_for(outcome, slug)], {"doing": outcome.doing} if outcome.doing else {},
    )  # fmt: skip


def _severity(scope: Scope, outcome: Outcome) -> Severity:
    """A check's own exception is our failure to measure; one out of a collective is the job's."""
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
    """One sentence, equal for equal outcomes (so that ranks can be merged)."""
    seconds = f"{outcome.seconds:.0f} s" if outcome.seconds >= 10 else f"{outcome.seconds:.1f} s"
    doing = f"; last doing: {outcome.doing}" if outcome.doing else ""
    inside = outcome.collective or {}
    if inside.get("inside"):
        doing += f"; inside {_called(inside)}"
    if outcome.kind == "timed_out" and outcome.aborted and outcome.state not in STATES:
        return f"measure() was ended after {seconds}: {outcome.reason}{doing}"
    if outcome.kind == "timed_out":
        state = STATES.get(outcome.state or "", "")
        if outcome.state == "D":
            state = f": it is in uninterruptible sleep ({outcome.reason or 'the kernel does not say where'})"
        if outcome.cut_short:
            state = ", all that the run's deadline left it"
        return f"measure() did not end within {seconds}{state}{waits_at(outcome.stack or '')}{doing}"
    if outcome.kind == "crashed":
        return f"the worker {outcome.reason}, expected it to live{doing}"
    if outcome.kind == "lost":
        return outcome.reason or "nothing more was heard of the rank"
    if outcome.kind == "skipped":
        return f"stood aside ({outcome.reason}) while the other ranks waited for it"
    if outcome.slug == "bad_facts":
        return f"{outcome.reason}"
    return f"measure() raised {outcome.reason}{doing}"


def waits_at(stack: str) -> str:
    """ " at data.py line 12 in load": the innermost Python frame of the main thread in a faulthandler dump,
    which lists the main thread last."""
    innermost = r'\(most recent call first\):\n\s+File "([^"]+)", line (\d+) in (\S+)'
    frames = re.search(innermost, stack[stack.rfind("hread 0x") :])
    if not frames:
        return ""
    path, line, function = frames.groups()
    return f" at {os.path.basename(path)} line {line} in {function}"


def _as_json(
    check: str,
    severity: Severity,
    slug: str,
    text: str,
    where: Mapping[str, Any],
    victims: set[int],
    fix: str,
    evidence: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "severity": str(severity),
        "code": f"{check}.{slug}",
        "message": text,
        "where": dict(where),
        "noticed_by": ranges.to_text(victims),
        "evidence": dict(evidence or {}),
        "fix": fix.replace("{check}", check),
    }
