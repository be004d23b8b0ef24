"""What is read from the store: what ranks write is taken, anything else is one exception. The messages are those that
the engine makes; the wrong ones are changed by a seeded generator, and a few are written by hand."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest

from preflight.core import facts
from preflight.core.job import Job, Node
from preflight.core.outcome import Outcome
from preflight.engine import identity, message_schema, store, store_messages
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.store_seal import BROKEN
from preflight.engine.verdict import RunVerdict, Welcome

NONCE, RUN, HASH = "0123456789abcdef" * 2, "0123456789ab", "f" * 32
HERE = identity.from_environ({"RANK": "1", "WORLD_SIZE": "3", "MASTER_PORT": "x", "SLURM_JOB_ID": "7"})
JOB = Job("env", 3, "gloo", (Node("a", 0, (0,), ("192.0.2.1",), HASH), Node("b", 1, (1, 2)))).to_json()
OF_TWO = Job("slurm", 3, "gloo", (Node("a", 0, (0,)),), (("a", (1,)), ("b", (2,)))).to_json()
"""Of three ranks, two of which never came."""
RECORDED = [{
    "ranks": "0-2", "world": True, "entered": 3, "lately": False, "sending": False,
    "calls": [{"seq": 3, "operation": "all_reduce", "sizes": [[1]], "elements": 1, "dtype": "float32", "over": True,
               "stuck": False}],
}]  # fmt: skip
OUTCOMES = (
    Outcome("measured", 0.25, facts_hash=HASH),
    Outcome("skipped", 0.0, reason="no GPU", slug="not_applicable"),
    Outcome("raised", 0.1, reason="pids.max 40 of /job", slug="no_process", measures_no_more=True),
    Outcome("crashed", 2.0, reason="ended by SIGSEGV", signal="SIGSEGV", doing="measure", stack="...", log_tail="x"),
    Outcome("timed_out", 9.5, state="D", reason="nfs_wait", aborted=True, measures_no_more=True, nccl_log="n", ras="r",
            collective={"operation": "all_reduce", "shape": "1", "number": 3, "inside": True}, recorded=RECORDED),
)  # fmt: skip
ORDER = {"check": "net.mesh", "members": "0-2", "generation": 1, "deadline_s": 9.5, "fresh": False, "level": "quick"}
EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "step", "step": 1, "order": ORDER},
    {"event": "step", "step": 7, "order": {**ORDER, "check": "plugin.my-own.check", "members": ""}},
    {"event": "abort", "step": 1, "reason": "rank 1 could not continue"},
    {"event": "tell_collectives", "step": 1},
    {"event": "verdict", "step": 0, "run": RUN, "attempt": NONCE, "job": JOB, "living": [0, 2], "strangers": 0,
     "exit_code": 1, "sentence": "preflight: FAIL: a link is cut", "command": ["run"], "proof": NONCE},
    {"event": "verdict", "step": 0, "run": RUN, "attempt": NONCE, "job": OF_TWO, "living": [0], "strangers": 0,
     "exit_code": 1, "sentence": "preflight: FAIL: rank 2 never came", "command": ["run"], "proof": NONCE},
)  # fmt: skip
ARRIVAL = {
    "nonce": NONCE, "pid": 7, "pids": "pid:[1]", "addresses": ["192.0.2.1"], "arguments": HASH,
    **HERE.to_json(),
}  # fmt: skip
MESSAGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("arrival", ARRIVAL),
    ("welcome", {"run": RUN, "place": "member", "proofs": [HASH] * 4}),
    ("welcome", {"run": RUN, "place": "foreign", "proofs": [HASH] * 4}),
    ("served-by", json.loads(store.claim(HERE))),
    ("here", {"nonce": NONCE, "rank": None}),
    ("job", {"job": JOB}),
    ("processes", {"1": {"pid": 7, "nonce": NONCE, "pids": "pid:[1]"}}),
    *(("done", {"rank": 1, "outcome": outcome.to_json()}) for outcome in OUTCOMES),
    ("collectives", {"rank": 1, "recorded": RECORDED}),
    ("collectives", {"rank": 1, "recorded": None}),
    ("left", {"rank": 1, "why": "was sent SIGTERM", "kind": "told", "dead": [2]}),
)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3.7, 1e300, 10**30, "", "x", "0", "9-1", "0-999999999", "0-1,0-1", "\x1b[2J", [], [[]], {},
    {"a": 1}, [{"rank": 1}], "../../etc", "f" * 32, "\u2028",
)  # fmt: skip


def read(kind: str, message: object) -> Any:
    """As the ranks read it: the message, and what is made of it."""
    text = json.dumps(message)
    if kind == "event":
        event = store_messages.event(text, "key")
        if event["event"] == "step":
            store_messages.members(event["order"]["members"], "key")
        return store_messages.job(event["job"], "key") if event["event"] == "verdict" else event
    known = store_messages.read(kind, text, "key")
    if kind == "job":
        return store_messages.job(known["job"], "key")
    return Outcome.from_json(known["outcome"]) if kind == "done" else known


ALL = [("event", event) for event in EVENTS] + list(MESSAGES)


@pytest.mark.parametrize(("kind", "message"), ALL, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(ALL)])
def test_what_ranks_write_is_taken(kind: str, message: dict[str, Any]) -> None:
    assert read(kind, json.loads(json.dumps(message)))
    if kind == "done":
        assert read(kind, message).to_json() == message["outcome"]


@pytest.mark.parametrize(("kind", "message"), ALL, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(ALL)])
def test_what_lacks_a_field_or_is_no_object_is_foreign(kind: str, message: dict[str, Any]) -> None:
    wrong = [{key: value for key, value in message.items() if key != name} for name in message]
    if kind == "processes":
        wrong = [{"1": {}}, {"1": [7, NONCE, ""]}]
    for each in [*wrong, *(odd for odd in ODD if not isinstance(odd, dict))]:
        with pytest.raises(ForeignWriter, match=r"^key holds "):
            read(kind, each)


def places(value: Any) -> Iterator[Callable[[Any], None]]:
    """A function for each place in a message that puts something else there."""
    if isinstance(value, dict):
        for key in value:
            yield partial(value.__setitem__, key)
            yield from places(value[key])
    if isinstance(value, list):
        for index in range(len(value)):
            yield partial(value.__setitem__, index)
            yield from places(value[index])


@pytest.mark.parametrize("seed", range(8))
def test_a_message_that_was_changed_is_taken_or_foreign_and_nothing_else(seed: int) -> None:
    """Never another exception, and never more memory or time than the message has."""
    source = random.Random(seed)
    refused = 0
    for kind, message in ALL:
        for number in range(len(list(places(message)))):
            changed = copy.deepcopy(message)
            list(places(changed))[number](copy.deepcopy(source.choice(ODD)))
            try:
                read(kind, changed)
            except ForeignWriter as why:
                refused += 1
                assert str(why).isprintable() and str(why).isascii() and len(str(why)) < 400
    assert refused > 100


def test_a_schema_is_read_as_the_package_for_it_reads_it() -> None:
    source, wrong = random.Random(3), 0
    for kind, message in (each for each in ALL if each[0] != "event"):
        schema = store_messages.MESSAGES[kind]
        checker = jsonschema.Draft202012Validator(schema)
        for number in range(len(list(places(message)))):
            changed = copy.deepcopy(message)
            list(places(changed))[number](copy.deepcopy(source.choice([odd for odd in ODD if odd != 1e300])))
            flaw = message_schema.flaw(changed, schema)
            assert (flaw == "") == checker.is_valid(changed), (kind, flaw)
            wrong += flaw != ""
    assert wrong > 50


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[" * 100_000, "null", "[]", "7", '{"event": "step"}', '{"event": "verdict", "exit_code": 0}',
        '{"event": "step", "step": 1, "order": {"source": {"kind": "file"}}}', '{"event": ["step"]}', "9" * 5000,
        json.dumps({"event": "step", "step": 1, "order": {**ORDER, "deadline_s": 1e300}}),
        json.dumps({"event": "step", "step": 1, "order": {**ORDER, "deadline_s": 9}}).replace("9", "1e999"),
        '{"event": "abort", "step": NaN, "reason": ""}', '{"event": "abort", "step": true, "reason": ""}',
        f"{BROKEN}a value that is not signed", "\ud800",
    ],
)  # fmt: skip
def test_texts_that_are_no_order(text: str) -> None:
    with pytest.raises(ForeignWriter, match=r"^key holds "):
        store_messages.event(text, "key")


@pytest.mark.parametrize("ranks", ["0-5", "1-2,1-2", "2,1", "0-999999999", "0-", "x", "0-1,3"])
def test_a_job_with_ranks_that_cannot_be_is_foreign(ranks: str) -> None:
    job = {**JOB, "nodes": [{**JOB["nodes"][0], "ranks": ranks}]}
    with pytest.raises(ForeignWriter):
        store_messages.job(job, "key")


def test_a_job_of_more_ranks_than_there_are_is_foreign() -> None:
    with pytest.raises(ForeignWriter):
        store_messages.job({**JOB, "world_size": 10**15}, "key")


def test_two_nodes_with_one_rank_are_foreign() -> None:
    with pytest.raises(ForeignWriter):
        store_messages.job({**JOB, "nodes": JOB["nodes"] * 2}, "key")


@pytest.mark.parametrize("ranks", ["0-5", "0", "2,1", "", "x", "0-999999999"])
def test_missing_ranks_that_cannot_be_are_foreign(ranks: str) -> None:
    with pytest.raises(ForeignWriter):
        store_messages.job({**OF_TWO, "missing_on": [{"node": "b", "ranks": ranks}] * 2}, "key")


@pytest.mark.parametrize("text", [None, "", "2", "null", "[]", '{"world_size": 2}', "[" * 100_000, f"{BROKEN}why"])
def test_what_is_no_claim_of_a_store_is_foreign(text: str | None) -> None:
    with pytest.raises(ForeignWriter, match=r"^preflight/served-by holds "):
        store.read_claim(text)


def test_a_claim_says_whose_store_it_is() -> None:
    assert store.read_claim(store.claim(HERE)) == (HERE.owner, 3)


def test_facts_are_those_that_their_name_says() -> None:
    text = facts.to_text({"a": [1, None], "b": "ü"})
    assert store_messages.facts_text(text, facts.content_hash(text), "key") == text
    for other in (text.replace("1", "2"), "", "[]", "{", f"{BROKEN}why", "{}" * facts.LIMIT):
        with pytest.raises(ForeignWriter):
            store_messages.facts_text(other, facts.content_hash(text), "key")
    for other in ("[]", "7", '{"a": NaN}', "{"):
        with pytest.raises(ForeignWriter):
            store_messages.facts_text(other, facts.content_hash(other), "key")


def test_signs_of_life() -> None:
    assert store_messages.beat(json.dumps({"beat": 7, "doing": None}), "key") == 7
    assert store_messages.beat(json.dumps({"beat": 12, "doing": 'a "check" of ü\n'}), "key") == 12
    for text in (
        "",
        "7",
        "{}",
        '{"beat": -1, "doing": null}',
        '{"beat": 1e9, "doing": null}',
        '{"beat": 1, "doing": 7}',
    ):
        with pytest.raises(ForeignWriter):
            store_messages.beat(text, "key")


def test_what_a_newer_preflight_adds_to_a_welcome_or_a_verdict_is_ignored() -> None:
    message = {"run": RUN, "place": "member", "proofs": [HASH] * 4, "added": 1}
    assert Welcome.read(json.dumps(message), "key") == Welcome(RUN, "member", [HASH] * 4)
    (verdict, _) = (event for event in EVENTS if event["event"] == "verdict")
    assert RunVerdict.from_message({**verdict, "added": 1}, "key").to_json() == verdict
