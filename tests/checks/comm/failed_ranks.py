"""Ranks whose start of NCCL failed, with logs in the wordings of its versions."""

from collections.abc import Mapping
from typing import Any

from preflight.check import Job, Node, Outcome
from preflight.core import facts
from preflight.core.facts import FactsStore
from preflight.planning import registry
from preflight.results import judging

NODES = {"node-0": (0, 1), "node-1": (2, 3), "node-2": (4, 5), "node-3": (6, 7)}
LOST = "misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer gpu02<41234>"
TIMESTAMP = "[2026-01-31 12:00:00] "


def warn(text: str, *, stamp: str = "", where: str = "init.cc:700") -> str:
    return f"\n{stamp}gpu01:1234:1301 [0] {where} NCCL WARN {text}\n"


def info(text: str) -> str:
    return f"gpu01:1234:1301 [0] NCCL INFO {text}\n"


def failed(log: str = "", *, kind: str = "raised", stack: str = "", reason: str = "", **more: Any) -> Outcome:
    text = reason or "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system error"
    return Outcome(kind, 1.0, reason=text, in_collective=True, log_tail=log, stack=stack, **more)


def judged(
    logs: Mapping[int, str | Outcome], nodes: Mapping[str, Any] | None = None, world: int = 8,
    environ: Mapping[str, str] | None = None,
) -> list[Any]:  # fmt: skip
    """All other ranks have lost a peer. The addresses are 10.0.0.1 and on. `environ`: what env.launch has of all."""
    outcomes = {rank: logs.get(rank, "") for rank in range(world)}
    ended = {
        rank: outcome
        if isinstance(outcome, Outcome)
        else failed(outcome or f"{info('Using network IB')}gpu01:1:1 [0] {LOST}\n")
        for rank, outcome in outcomes.items()
    }
    placed = tuple(
        Node(name, at, tuple(ranks), (f"10.0.0.{at + 1}",)) for at, (name, ranks) in enumerate((nodes or NODES).items())
    )
    source = registry.sources()["comm.init"]
    store = FactsStore()
    store.add("env.launch", range(world), facts.to_text({"environ": environ or {}, "local_rank": 0}))
    answer = judging.call_judge(source, Job("torchrun", world, "nccl", placed), ended, store, {})
    assert "error" not in answer, answer
    return list(answer["findings"])


EXTENDED = "Error: failed to extend /dev/shm/nccl-KWfVyt to 5967876 bytes"
IFNAME = info("NCCL_SOCKET_IFNAME set by environment to eth9")
