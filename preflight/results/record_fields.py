"""The records of other rooms, as a saved report holds them: the job, findings, outcomes, the policy."""

import re

from preflight.check import WHERE_KEYS
from preflight.core import renamed_codes
from preflight.core.action import Action
from preflight.core.finding import Reported
from preflight.core.job import Job, Node
from preflight.core.outcome import KINDS, SLUGS, Outcome
from preflight.core.rank_ranges import MOST
from preflight.planning.config import SEVERITIES as POLICY_SEVERITIES
from preflight.planning.policy import Policy, Waiver
from preflight.results import fields
from preflight.results.fields import Fields, refuse

SEVERITIES = ("fail", "error", "warn", "info")
LAUNCHERS = ("torchrun", "mpi", "slurm", "env", "own", "local", "unknown")
BACKENDS = ("nccl", "gloo", "unknown")
_CULPRITS = ("group", *WHERE_KEYS)
_OF_TEXT = ("group", "node", "peer_node")
_NODE_NAME = re.compile(r"^(?![\s\S]*[^A-Za-z0-9_.:#-])[A-Za-z0-9_]")
_MACHINE = re.compile(r"^([0-9a-f]{32})?$")


def job(data: Fields) -> Job:
    launcher, backend = data.choice("launcher", LAUNCHERS), data.choice("backend", BACKENDS)
    world_size = data.integer("world_size", 1)
    if world_size > MOST:
        refuse(world_size, data.place_of("world_size"), f"at most {MOST:,}")
    data.ranks_text("missing_ranks")  # those that no node has
    placed = set[int]()
    nodes = tuple(_node(node, placed) for node in data.objects("nodes"))
    missing = data.objects("missing_on") if "missing_on" in data else ()
    missing_on = tuple((on.sentence("node"), _placed(on, placed)) for on in missing)
    return Job(launcher, world_size, backend, nodes, missing_on)


def _node(data: Fields, placed: set[int]) -> Node:
    return Node(
        data.text("node", _NODE_NAME), data.integer("node_rank"), _placed(data, placed),
        tuple(data.texts("addresses")), data.text("machine", _MACHINE) if "machine" in data else "",
    )  # fmt: skip


def _placed(data: Fields, placed: set[int]) -> tuple[int, ...]:
    """The ranks of one node, added to those of the others: short texts must not stand for billions of ranks."""
    ranks = data.ranks("ranks")
    if not placed.isdisjoint(ranks):
        refuse(data.data["ranks"], data.place_of("ranks"), "ranks that no other node has")
    placed.update(ranks)
    return ranks


def finding(data: Fields) -> Reported:
    """With its code's name of today."""
    return Reported(
        severity=data.choice("severity", SEVERITIES),
        code=renamed_codes.current(data.text("code")),
        message=data.sentence("message"),
        where=_where(data.object("where")),
        noticed_by=data.ranks_text("noticed_by"),
        evidence=data.any_object("evidence"),
        fix=data.sentence("fix"),
        action=data.choice("action", tuple(map(str, Action))) if "action" in data else "",
        severity_was=data.choice("severity_was", POLICY_SEVERITIES) if "severity_was" in data else "",
        waived=_waiver(data, "waived"),
        waiver_ended=_waiver(data, "waiver_ended"),
        ranks=data.ranks_text("ranks") if "ranks" in data else "",
        nodes=data.texts("nodes") if "nodes" in data else None,
        not_measured=data.true("not_measured"),
    )


def _where(data: Fields) -> dict[str, object]:
    for name, value in data.data.items():
        if name not in _CULPRITS:
            refuse(name, f"a name in {data.place}", f"one of {', '.join(_CULPRITS)}")
        if name in _OF_TEXT:
            data.text(name)
        elif name.endswith("rank"):
            if data.integer(name, 0) > MOST:
                refuse(value, data.place_of(name), f"at most {MOST:,}")
        elif not isinstance(value, int | float | str):
            refuse(value, data.place_of(name), "number or string")
    return data.data


def _waiver(data: Fields, name: str) -> dict[str, str] | None:
    if name not in data:
        return None
    waiver = data.object(name)
    return {"until": waiver.text("until"), "reason": waiver.text("reason")}


def outcome(data: Fields) -> Outcome:
    """`facts_hash` stays empty: facts stand beside the report."""
    collective, recorded = data.data.get("collective"), data.data.get("recorded")
    return Outcome(
        kind=data.choice("kind", KINDS),
        seconds=data.number("seconds"),
        reason=data.text_or_none("reason") if "reason" in data else None,
        slug=data.choice("slug", SLUGS) if "slug" in data else "",
        collective=None if collective is None else _collective(data.object("collective")),
        signal=data.text_or_none("signal"),
        state=data.text_or_none("state"),
        doing=data.text_or_none("doing"),
        stack=data.text_or_none("stack"),
        log_tail=data.text_or_none("log_tail"),
        recorded=None if recorded is None else [_recorded(group) for group in data.objects("recorded")],
        nccl_log=data.text_or_none("nccl_log") if "nccl_log" in data else None,
        ras=data.text_or_none("ras") if "ras" in data else None,
        in_collective="in_collective" in data and data.flag("in_collective"),
        aborted="aborted" in data and data.flag("aborted"),
        cut_short="cut_short" in data and data.flag("cut_short"),
        own_fault="own_fault" in data and data.flag("own_fault"),
    )


def _collective(data: Fields) -> dict[str, object]:
    for name in ("operation", "shape"):
        data.text(name)
    data.integer("number", 0)
    data.flag("inside")
    return data.data


def _recorded(data: Fields) -> dict[str, object]:
    """The last collectives of one process group (hangs/collective_recorder.py)."""
    data.ranks_text("ranks")
    data.integer("entered")
    for name in ("world", *(name for name in ("lately", "sending") if name in data)):
        data.flag(name)
    for call in data.objects("calls"):
        for name in ("seq", "elements"):
            call.integer(name)
        for name in ("operation", "dtype"):
            call.text(name)
        for name in ("over", "stuck"):
            call.flag(name)
        call.list_of("sizes", lambda value, place: fields.items(value, place, fields.integer))
    return data.data


def policy(data: Fields) -> Policy:
    """With the codes' names of today."""
    severities = data.object("severities")
    changed = {code: severities.choice(code, POLICY_SEVERITIES) for code in severities.data}
    return Policy(
        {renamed_codes.current(code): severity for code, severity in changed.items()},
        tuple(map(_waiver_of_policy, data.objects("waivers"))),
    )


def _waiver_of_policy(data: Fields) -> Waiver:
    data.all_texts()
    return Waiver(renamed_codes.current(data.text("code")), data.text("until"), data.text("reason"), data.text("node"))
