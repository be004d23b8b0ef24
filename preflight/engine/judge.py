"""Rank 0's process that judges: forked with the facts in memory, and kept for further checks while all goes well."""

from collections.abc import Mapping, Sequence
from functools import partial

from preflight.check import After
from preflight.core.answer import Failure, Returned
from preflight.core.facts import FactsStore
from preflight.core.groups import Group
from preflight.core.job import Job
from preflight.core.outcome import Outcome
from preflight.core.record import BASELINE
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.channel import Channel
from preflight.engine.child import Child
from preflight.engine.event_loop import EventLoop
from preflight.planning.registry import Source, Spec
from preflight.results import judging

MOST_RANKS, MOST_BYTES = 64, 1 << 20
"""For more ranks, or more facts that the process does not have yet, a new fork is cheaper than a message."""


class JudgeProcess:
    """Only built-in checks share a process, one after the other. A judge() that did not return what it should, is asked
    again in a fork of its own: it may have met what an earlier one has left."""

    def __init__(self, loop: EventLoop, job: Job, book: FactsStore, settings: Mapping[str, str]) -> None:
        self._loop, self._job, self._book, self._settings = loop, job, book, settings
        self._kept: Child | None = None
        self._has: dict[str, int] = {}
        """From how many ranks the kept process has facts, by check."""

    def ask(self, spec: Spec, outcomes: Mapping[int, Outcome], groups: Sequence[Group]) -> Returned | Failure:
        """What `judge_check` returns, or why it did not."""
        deadline_s = judging.deadline_s(len(outcomes))
        judge = partial(judge_check, spec.source, self._job, outcomes, self._book, self._settings, groups)
        if spec.source.kind != "builtin":
            return self._loop.ask(judge, deadline_s)
        if self._kept is not None and (order := self._order(spec, outcomes, groups)) is not None:
            self._kept.forget_log()
            self._kept.channel.send(order)
            answer = self._loop.answer_of(self._kept, deadline_s)
            if is_sound(answer):
                return answer
        return self._by_a_new_one(judge, deadline_s)

    def _by_a_new_one(self, judge: "partial[dict[str, object]]", deadline_s: float) -> Returned | Failure:
        if self._kept is not None:
            self._loop.dismiss(self._kept)
            self._kept = None
        self._has = {check: len(self._book.ranks(check)) for check in self._book.checks()}
        child = self._loop.fork(partial(self._serve, judge))
        if isinstance(child, Failure):
            return child
        self._kept = child
        answer = self._loop.answer_of(child, deadline_s)
        if not is_sound(answer):
            self._loop.dismiss(child)
            self._kept = None
        return answer

    def _order(self, spec: Spec, outcomes: Mapping[int, Outcome], groups: Sequence[Group]) -> dict[str, object] | None:
        """The question to the kept process, with the facts that it lacks; None if they are too many."""
        if len(outcomes) > MOST_RANKS:
            return None
        names = (spec.id, *spec.plan.ids(After.READS | After.USES))
        lacks = [name for name in names if len(self._book.ranks(name)) != self._has.get(name, 0)]
        facts = {name: list(self._book.groups(name)) for name in lacks}
        if sum(len(text) for known in facts.values() for _, text in known) > MOST_BYTES:
            return None
        self._has |= {name: len(self._book.ranks(name)) for name in lacks}
        return {
            "source": vars(spec.source),
            "outcomes": [[rank, outcome.to_json()] for rank, outcome in outcomes.items()],
            "groups": [vars(group) for group in groups],
            "facts": facts,
        }

    def _serve(self, first: "partial[dict[str, object]]", channel: Channel, _page: Breadcrumb) -> None:
        """In the process: judges the check that it was forked for, and then what it is sent."""
        channel.send_all({"value": first()})
        while True:
            order = channel.wait()
            for check, known in order["facts"].items():
                for ranks, text in known:
                    self._book.add(check, ranks, text)
            outcomes = {rank: Outcome.from_json(outcome) for rank, outcome in order["outcomes"]}
            groups = tuple(Group(group["name"], tuple(group["nodes"])) for group in order["groups"])
            source = Source(**order["source"])
            result = judge_check(source, self._job, outcomes, self._book, self._settings, groups)
            channel.send_all({"value": result})


def judge_check(
    source: Source, job: Job, outcomes: Mapping[int, Outcome], book: FactsStore, settings: Mapping[str, str],
    groups: Sequence[Group] = (),
) -> dict[str, object]:  # fmt: skip
    """In a child: what `judging.call_judge` returns, with `--baseline REPORT` also what is slower than there."""
    if BASELINE not in book.checks():  # most runs: the history is not even imported
        return judging.call_judge(source, job, outcomes, book, settings, groups)
    from preflight.history import compare

    return compare.judge(source, job, outcomes, book, settings, groups)


def is_sound(answer: Returned | Failure) -> bool:
    return isinstance(answer, Returned) and "error" not in answer.value
