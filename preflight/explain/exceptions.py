"""Python exceptions that no signature knows: the user's own, and those that only tell of another's end."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from preflight import ranges
from preflight.explain.story import TELLS_OF, Story
from preflight.explain.theory import EVIDENCE, TOLD, Theory, speaker
from preflight.explain.tracebacks import Traceback, exception

RAISED, BARE, PASSED, CUT = 40, 15, 8, 5
"""Weights: of a traceback; of an exception's line without one; of what is told at second hand; of what is cut off.
A line that names a cause outweighs them all."""
RESTARTED = "elastic.restart"
"""Row of a new attempt."""
SECOND_HAND = (
    ("external_signal", "it was interrupted", r"^(?:KeyboardInterrupt|SignalException)$", r"^\b$"),
    (
        "app_crash",
        "it passes on another's failure",
        r"^(?:ChildFailedError|Process(?:Raised|Exited)\w*|CalledProcessError|SystemExit|Ray\w*Error|Actor\w*Error|"
        r"Worker\w*Error|WorkerCrashed\w*|EngineDead\w*|BrokenExecutor|BrokenProcessPool|Full|Empty)$",
        r"terminated with|exited (?:with|unexpectedly)|[Ee]ngine ?[Cc]ore|worker (?:process|died|failed)|Worker failed|"
        r"subprocess|\bdied\b",
    ),
    (
        "remote_peer_failure",
        "it tells of another's end",
        r"^(?:BrokenPipeError|EOFError|Connection(?:Reset|Aborted)Error)$",
        r"remote process exited|ncclRemoteError|[Cc]onnection (?:reset|closed|was (?:reset|closed|aborted))|"
        r"[Bb]roken pipe|communicator was aborted",
    ),
    (
        "rdzv_incomplete",
        "it tells of a wait for others",
        r"^Rendezvous\w*$",
        r"[Rr]endezvous.*time",
    ),
    ("slow_rank_timeout", "it tells of a wait for others", r"^TimeoutError$", r"[Tt]imed? ?out|timeout"),
    (
        "app_crash",
        "its reason stands elsewhere",
        r"^(?:Dist\w*Error|NCCLError|Connection\w*Error)$",
        r"NCCL|\b[Gg]loo\b|TCPStore|[Cc]onnect(?:ion)? |[Rr]endezvous|ProcessGroup|process group",
    ),
)
"""Exceptions that are not their process's own fault: a slug, what is said of them, their type, or their text."""
_WRONG_CALL = re.compile(r"\binvalid (?:root|tensor|argument|rank|reduce|usage|size)|[Uu]nsupported|[Nn]ot supported")
"""What a process gave to a collective: its own fault."""


def theories(story: Story) -> list[Theory]:
    """Of tracebacks; of exceptions whose traceback is not there; and of a traceback whose exception is not."""
    whole = [one for one in story.tracebacks if not (one.known or one.survived)]
    return [*_of_kind(story, whole, RAISED), *_of_kind(story, _bare(story), BARE), *_cut_off(story)]


def second_hand(one: Traceback) -> tuple[str, str]:
    """A slug and what is said of it, where the exception is not its process's own fault; else empty ones."""
    if _WRONG_CALL.search(one.text):
        return "", ""
    for slug, words, of_type, of_text in SECOND_HAND:
        if re.search(of_type, one.type) or re.search(of_text, one.text):
            return slug, words
    return "", ""


def _of_kind(story: Story, all_of_them: Iterable[Traceback], weight: int) -> Iterator[Theory]:
    """One theory for each kind of exception."""
    kinds: dict[tuple[str, str], list[Traceback]] = {}
    for one in all_of_them:
        kinds.setdefault((one.type, re.sub(r"\d+", "#", one.text)), []).append(one)
    for those in kinds.values():
        ordered = sorted(those, key=lambda one: story.moment(one.line))
        slug, words = second_hand(ordered[0])
        yield _aftermath(story, ordered, slug, words) if slug else _crash(story, ordered, weight)


def _crash(story: Story, those: Sequence[Traceback], weight: int) -> Theory:
    first, ranks = those[0], _ranks(those)
    everywhere = len(ranks) > 1 and ranks == story.ranks
    many = not ranks and _processes(those) > 1
    who = (
        f"all {len(ranks)} ranks"
        if everywhere
        else f"{_processes(those)} processes"
        if many
        else _speakers(those, ranks)
    )
    again = _times(those) if len(ranks) < 2 or everywhere else 1
    if RESTARTED in story.seen:
        again = max([again, *(_in_one_file([one for one in those if one.line.rank == rank]) for rank in ranks)])
    more = f", {again} times: torchrun started it again" if again > 1 else ""
    at = f" ({first.file}:{first.number})" if first.file else ""
    where = {**({} if everywhere or many else speaker(first.line)), **_place(first)}
    sure = "high" if len(ranks) == 1 or everywhere else "medium"
    return Theory(
        "app_crash", "cause" if weight == RAISED else "failure", weight,
        f"{who} failed in {'its' if len(ranks) < 2 and not many else 'their'} own code: {_raised(first)}{at}{more}",
        story.moment(first.line), where, ranks, tuple(one.line for one in those[:EVIDENCE]),
        confidence=sure if weight == RAISED else "low", count=len(those), rows=frozenset({"python.traceback"}),
    )  # fmt: skip


def _aftermath(story: Story, those: Sequence[Traceback], slug: str, words: str) -> Theory:
    first, ranks = those[0], _ranks(those)
    text = f"{_speakers(those, ranks)} raised {_raised(first)}: {words}"
    return Theory(
        slug, "fallout", PASSED, text, story.moment(first.line), {}, ranks,
        tuple(one.line for one in those[:EVIDENCE]), count=len(those),
        rows=frozenset({"python.traceback"}),
    )  # fmt: skip


def _bare(story: Story) -> Iterator[Traceback]:
    """Lines that look like the end of a traceback, in an excerpt that does not hold the rest."""
    told = {(one.line.file, one.line.number) for one in story.tracebacks.all()}
    for name, kept in story.seen.items():
        known = kept.matches() if name != "any.failure" else []
        told |= {(one.line.file, one.line.number) for one in known if one.signature.role in TELLS_OF}
    for match in story.matches("any.failure"):
        raised = exception(match.line.text, indented=False)
        if raised and (match.line.file, match.line.number) not in told:
            yield Traceback(match.line, {}, raised[0], raised[1], "", 0, known=False)


def _cut_off(story: Story) -> Iterator[Theory]:
    """A traceback at the end of an excerpt."""
    for line in story.tracebacks.cut_off()[:1]:
        yield Theory(
            "app_crash", "failure", CUT, "a process raised an exception, which is not visible in this log",
            story.moment(line), speaker(line), frozenset() if line.rank is None else frozenset({line.rank}), (line,),
            confidence="low", rows=frozenset({"python.traceback"}),
        )  # fmt: skip


def _times(those: Sequence[Traceback]) -> int:
    """The attempts that torchrun's folders name."""
    return len({found[0] for one in those if (found := re.search(r"attempt_\d+", one.line.file))})


def _in_one_file(of_rank: Sequence[Traceback]) -> int:
    """A second file may be a copy."""
    return max(Counter(one.line.file for one in of_rank).values(), default=0)


def _processes(those: Sequence[Traceback]) -> int:
    """As far as the lines tell them apart; a file may be a copy of others."""
    return len({(one.line.node, one.line.local_rank, one.line.pid) for one in those} - {("", None, None)})


def _ranks(those: Iterable[Traceback]) -> frozenset[int]:
    return frozenset(one.line.rank for one in those if one.line.rank is not None)


def _place(one: Traceback) -> dict[str, str | int]:
    return {"file": one.file, "line": one.number} if one.file else {}


def _raised(one: Traceback) -> str:
    return f"{one.type}: {one.text}" if one.text else one.type


def _speakers(those: Sequence[Traceback], ranks: frozenset[int]) -> str:
    nodes = sorted({one.line.node for one in those if one.line.node})
    on = f" on {', '.join(nodes[:TOLD])}{' and others' if len(nodes) > TOLD else ''}" if nodes else ""
    return f"{ranges.ranks(ranks) if ranks else 'a process'}{on}"
