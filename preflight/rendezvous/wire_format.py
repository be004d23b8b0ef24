"""The keys in the store, and what nodes write there, validated: any process may write to torch's store."""

from typing import Any

from preflight.core import node_names
from preflight.core.finding import Reported
from preflight.rendezvous.arguments import MOST_NODES
from preflight.rendezvous.judge import NodeArrival
from preflight.sdk.tcp import Connection, Reach

ROOT = "preflight/rendezvous"
HOST, TARGETS, VERDICT = f"{ROOT}/host", f"{ROOT}/targets", f"{ROOT}/verdict"
ARRIVALS, REACHED, LEFT, BYE = (f"{ROOT}/{name}" for name in ("arrivals", "reached", "left", "bye"))
LONGEST = 255
"""Characters of a host name (RFC 1035), and of an error's message."""
MOST = 64
"""Addresses of a name or a host."""
KINDS = ("", "refused", "filtered", "no_route", "reset")


def arrival(entry: dict[str, Any]) -> NodeArrival | None:
    """None if no node of this version wrote it."""
    try:
        node: NodeArrival = {
            "node_rank": _number(entry["node_rank"], 0), "nnodes": _number(entry["nnodes"], 1),
            "name": node_names.safe(_text(entry["name"])), "full_name": _text(entry["full_name"]),
            "addresses": [_text(address) for address in entry["addresses"][:MOST]], "port": _number(entry["port"], 1),
            "serves": entry["serves"] if entry["serves"] is None else bool(entry["serves"]),
            "nameless": _text(entry["nameless"]), "reach": reach(entry["reach"]),
            "looked_up_s": {_text(name): _seconds(took) for name, took in entry["looked_up_s"].items()},
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return node


def place(entry: dict[str, Any]) -> int:
    """The number of an arrival, or 0."""
    value = entry.get("place")
    return value if isinstance(value, int) else 0


def reaches(entry: dict[str, Any], of: int) -> list[Reach] | None:
    """What a node saw of this many targets; None for anything else."""
    try:
        seen = [reach(reached) for reached in entry["reached"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return seen if len(seen) == of else None


def findings(entry: dict[str, Any]) -> list[Reported]:
    """What node 0 has published. Raises KeyError or TypeError."""
    return [Reported.from_json(finding) for finding in entry["findings"]]


def reach(value: dict[str, Any]) -> Reach:
    """Raises KeyError, TypeError, ValueError or AttributeError."""
    connections = [_connection(connection) for connection in value["connections"][:MOST]]
    return {
        "resolved_s": _seconds(value["resolved_s"]), "unresolved": _text(value["unresolved"]),
        "connections": connections,
    }  # fmt: skip


def _connection(value: dict[str, object]) -> Connection:
    kind = value["kind"] if value["kind"] in KINDS else "other"
    texts = {name: _text(value[name]) for name in ("address", "source", "error")}
    return {"seconds": float(value["seconds"]), "kind": kind, **texts}  # type: ignore[typeddict-item]  # the other keys


def _number(value: object, least: int) -> int:
    if not isinstance(value, int) or not least <= value <= MOST_NODES:
        raise ValueError(value)
    return value


def _seconds(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value[:LONGEST]
