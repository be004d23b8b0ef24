"""What may stand in the store, as data: anybody who reaches its port can write there, so nothing is believed unread.

A text that does not fit its message raises ForeignWriter, which ends the run with one finding that blames no rank.
Where ranks share a secret, store_seal.py has looked at who wrote it before.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from preflight.core import facts, rank_ranges, words
from preflight.core.job import Job
from preflight.core.outcome import KINDS, SLUGS
from preflight.engine import message_schema
from preflight.engine.identity import MOST_RANKS
from preflight.engine.message_schema import Schema
from preflight.engine.store_seal import BROKEN, why_broken
from preflight.planning.plan import LONGEST_S
from preflight.results import fields

SHOWN = 60
"""Characters of a foreign value that a sentence quotes."""
EXIT_CODES = range(4)
"""Of a verdict."""


class ForeignWriter(Exception):  # noqa: N818 -- a state of the world
    """Something that is no rank of this run writes into its store. Its text says what is where."""


TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number", "minimum": 0}
COUNT_OR_NULL: Schema = {"type": ["integer", "null"], "minimum": 0}
NONCE: Schema = {"type": "string", "pattern": r"\A[0-9a-f]{32}\Z"}
HASH: Schema = NONCE
PAIR: Schema = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
RUN_ID: Schema = {"type": "string", "pattern": r"\A[0-9a-f]{12}\Z"}
RANKS: Schema = {"type": "string", "pattern": fields.RANKS.pattern}
CHECK_ID: Schema = {"type": "string", "pattern": r"\A[\w-]+\.[\w.-]+\Z"}
SENTENCE: Schema = {"type": "string", "pattern": r"\S\s+\S"}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _map(item: Schema) -> Schema:
    return {"type": "object", "additionalProperties": item}


def _object(_optional: Mapping[str, Schema] | None = None, **required: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**(_optional or {}), **required}}


def _event(name: str, **required: Schema) -> Schema:
    return _object(event={"const": name}, step=COUNT, **required)


NODE = _object(
    {"addresses": _list(TEXT), "machine": TEXT}, node={"type": "string", "minLength": 1}, node_rank=COUNT, ranks=RANKS
)
JOB = _object(
    {"missing_on": _list(_object(node={"type": "string", "minLength": 1}, ranks=RANKS))},
    launcher={"enum": ["torchrun", "mpi", "slurm", "env", "own", "local"]},
    world_size={"type": "integer", "minimum": 1},
    backend={"enum": ["nccl", "gloo"]}, nodes=_list(NODE),
)  # fmt: skip
CALL = _object(
    seq=INTEGER, operation=TEXT, sizes=_list(_list(INTEGER)), elements=INTEGER, dtype=TEXT, over=FLAG, stuck=FLAG
)
RECORDED = _object(ranks=RANKS, world=FLAG, entered=INTEGER, lately=FLAG, sending=FLAG, calls=_list(CALL))
OUTCOME = _object(
    {
        "seconds": NUMBER, "reason": TEXT, "slug": {"enum": list(SLUGS)}, "in_collective": FLAG,
        "aborted": FLAG, "cut_short": FLAG, "own_fault": FLAG, "signal": TEXT, "state": TEXT, "doing": TEXT,
        "stack": TEXT, "log_tail": TEXT, "recorded": _list(RECORDED), "nccl_log": TEXT, "ras": TEXT,
        "facts_hash": HASH, "measures_no_more": FLAG,
        "collective": _object(operation=TEXT, shape=TEXT, number=COUNT, inside=FLAG),
    },
    kind={"enum": list(KINDS)},
)  # fmt: skip
ORDER = _object(
    check=CHECK_ID, members=RANKS, generation=COUNT, deadline_s=NUMBER, fresh=FLAG,
    level={"enum": ["quick", "standard", "full"]},
)  # fmt: skip
OF_JOB: Mapping[str, Schema] = {
    "kind": TEXT, "id": TEXT, "rank": COUNT_OR_NULL, "pid": COUNT, "node": TEXT, "launcher": TEXT,
}  # fmt: skip
"""A JobOwner: which job a process belongs to."""
EVENTS: Mapping[str, Schema] = {
    "step": _event("step", order=ORDER),
    "abort": _event("abort", reason=TEXT),
    "tell_collectives": _event("tell_collectives"),
    "verdict": _event(
        "verdict", run=RUN_ID, attempt=NONCE, job=JOB, living=_list(COUNT), strangers=COUNT,
        exit_code={"enum": list(EXIT_CODES)}, sentence=SENTENCE, command=_list(TEXT), proof=NONCE,
    ),
}  # fmt: skip
"""What may stand under `now`."""
MESSAGES: Mapping[str, Schema] = {
    "served-by": _object(world_size=COUNT, **OF_JOB),
    "arrival": _object(
        nonce=NONCE, pid=COUNT, pids=TEXT, addresses=_list(TEXT), launcher=TEXT, rank=COUNT_OR_NULL,
        world_size=COUNT, node_rank=COUNT_OR_NULL, node_name={"type": "string", "minLength": 1},
        node_key=TEXT, machine=TEXT, restarts=COUNT, problems=_list(PAIR), environ=_map(TEXT), arguments=HASH,
        owner=_object(**OF_JOB), local_rank=COUNT_OR_NULL, local_world_size=COUNT_OR_NULL,
    ),
    "welcome": _object(
        run=RUN_ID, proofs=_list(HASH),
        place={"enum": ["member", "invalid", "outside", "duplicate", "late", "foreign"]},
    ),
    "here": _object(nonce=NONCE, rank=COUNT_OR_NULL),
    "job": _object(job=JOB),
    "processes": _map(_object(pid=COUNT, nonce=NONCE, pids=TEXT)),
    "done": _object(rank=COUNT, outcome=OUTCOME),
    "collectives": _object(
        rank=COUNT, recorded={"type": ["array", "null"], "items": RECORDED}
    ),
    "left": _object(
        rank=COUNT, why=TEXT, kind={"enum": ["told", "gave_up", "fault", "foreign"]}, dead=_list(COUNT)
    ),
    "verdict": EVENTS["verdict"],
}  # fmt: skip
"""All other messages."""
_BEAT = re.compile(r'\{"beat": ([0-9]{1,12}), "doing": (?:null|"[^\n]*")\}')


def foreign(key: str, text: str, expected: str) -> NoReturn:
    """Raises ForeignWriter."""
    if text.startswith(BROKEN):
        raise ForeignWriter(f"{key} holds {why_broken(text)}")
    shown = ascii(text[:SHOWN])
    wanted = words.printable(expected)  # it may quote a foreign key
    raise ForeignWriter(f"{key} holds {shown}{'...' * (len(text) > SHOWN)}, expected {wanted}")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _json(text: str, key: str, expected: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        foreign(key, text, expected)


def read(kind: str, text: str, key: str) -> dict[str, Any]:
    """One of MESSAGES, from under this key. Raises ForeignWriter."""
    message = _json(text, key, f"a message of preflight ({kind})")
    if flaw := message_schema.flaw(message, MESSAGES[kind]):
        foreign(key, text, f"a message of preflight ({kind}), and {flaw}")
    for group in message.get("recorded") or message.get("outcome", {}).get("recorded") or ():
        members(group["ranks"], key)
    known: dict[str, Any] = message
    return known


def event(text: str, key: str) -> dict[str, Any]:
    """What all ranks are to do. Raises ForeignWriter."""
    message = _json(text, key, "an order of rank 0")
    schema = EVENTS.get(str(message.get("event"))) if isinstance(message, dict) else None
    if schema is None:
        foreign(key, text, "an order of rank 0")
    if flaw := message_schema.flaw(message, schema):
        foreign(key, text, f"an order of rank 0, and {flaw}")
    if message["event"] == "step" and message["order"]["deadline_s"] > LONGEST_S:
        foreign(key, text, f"a deadline of at most {LONGEST_S:.0f} s")
    known: dict[str, Any] = message
    return known


def job(data: Mapping[str, Any], key: str) -> Job:
    """The job of a message that was read: each rank is on one node, or was to run on one. Raises ForeignWriter."""
    world_size, placed = data["world_size"], set[int]()
    if world_size > MOST_RANKS:
        foreign(key, str(world_size), f"at most {MOST_RANKS} ranks")
    for node in (*data["nodes"], *data.get("missing_on", ())):
        ranks = members(node["ranks"], key, world_size)
        if not ranks or not placed.isdisjoint(ranks):
            foreign(key, node["ranks"], f"the nodes of {world_size} ranks")
        placed.update(ranks)
    return Job.from_json(dict(data))


def members(text: str, key: str, below: int = MOST_RANKS) -> tuple[int, ...]:
    """Ranks, none twice, so that a short text cannot stand for billions. Raises ForeignWriter."""
    numbers = [int(digits) for digits in re.findall("[0-9]{1,9}", text)]
    try:
        if numbers == sorted(numbers) and (not numbers or numbers[-1] < below):
            return rank_ranges.from_text(text)
    except ValueError:
        pass
    foreign(key, text, f"ranks below {below}, in order")


def facts_text(text: str, name: str, key: str) -> str:
    """Facts as their name says. Raises ForeignWriter."""
    expected = "facts whose content has this name"
    if text.startswith(BROKEN) or len(text) > facts.LIMIT or facts.content_hash(text) != name:
        foreign(key, text, expected)
    if not isinstance(_json(text, key, expected), dict):
        foreign(key, text, expected)
    return text


def beat(text: str, key: str) -> int:
    """The number of a sign of life. Raises ForeignWriter."""
    found = _BEAT.fullmatch(text)
    if not found:
        foreign(key, text, "a sign of life")
    return int(found[1])


def proof_of(secret: str) -> str:
    """What is said beforehand of a secret that will be said later."""
    return hashlib.sha256(secret.encode()).hexdigest()[:32]
