"""Opens a rank's store: the launcher's, one that rank 0 serves itself, or a dictionary for a single rank."""

import contextlib
import json
import time
from datetime import timedelta
from typing import NamedTuple

from preflight.engine import endpoint, job_owner, store_client, store_keys, store_messages
from preflight.engine.child import Child
from preflight.engine.event_loop import EventLoop
from preflight.engine.identity import LaunchIdentity
from preflight.engine.job_owner import JobOwner, PortInUse
from preflight.engine.store_client import StoreClient, StoreLost, host_store
from preflight.engine.store_messages import ForeignWriter
from preflight.engine.store_seal import Seal
from preflight.sdk import reachability, tcp

PATIENCE_S = 30.0
"""Time for one answer of the store. A lost DNS reply blocks its single thread for 5 s, several in a row longer."""
CAUSE_S = 2.0
"""Time for an answer when asking why the store was not reached."""
TAKEN = "EADDRINUSE"


class Serving(NamedTuple):
    """What a rank has found at MASTER_ADDR:MASTER_PORT before it connects."""

    host: Child | None = None
    """The process that serves the store, if this rank has started it."""
    is_guest: bool = False
    """Another process that calls itself rank 0 of this job serves it."""
    astray: str = ""
    """On rank 0: why MASTER_ADDR does not lead here."""


def serve(loop: EventLoop, launch: LaunchIdentity, window_s: float) -> Serving:
    """If the launcher serves no store: starts the process that does, on rank 0; or on a rank of the node that
    MASTER_ADDR wrongly names, so that all ranks hear of it. Raises StoreLost and PortInUse."""
    if not launch.master_addr or not launch.master_port:
        given = f"MASTER_ADDR is {launch.master_addr!r} and MASTER_PORT {launch.master_port}"
        raise StoreLost(f"there is no store to connect to: {given}")
    if launch.agent_store:
        return Serving()
    if launch.rank != 0:
        return Serving(_stand_in(loop, launch, window_s))
    if astray := endpoint.astray(loop, launch):
        return Serving(astray=astray)
    try:
        return Serving(_started(loop, launch, window_s))
    except StoreLost as why:
        if TAKEN not in str(why) or (theirs := _served_by(loop, launch)) is None:
            raise
        return Serving(is_guest=theirs["rank"] == 0)


def claim(launch: LaunchIdentity) -> str:
    """What SERVED_BY holds."""
    return json.dumps({"world_size": launch.world_size, **(launch.owner or {})})


def refuse_other_job(loop: EventLoop, launch: LaunchIdentity) -> None:
    """Called once connected, and once this process has said hello there. Raises PortInUse if the store belongs to
    another job, or is not of preflight at all, and ForeignWriter if no rank can have written whose it is; claims a
    launcher's store for this job, if nobody has yet."""
    if launch.launcher == "local":
        return
    text = loop.request("fetch", keys=[store_keys.SERVED_BY])[0]
    if text is None and launch.agent_store:
        if launch.rank == 0:
            loop.request("put", key=store_keys.SERVED_BY, value=claim(launch))
        return
    if text is None and not loop.request("await_key", key=store_keys.SERVED_BY, within_s=CAUSE_S):
        raise PortInUse(
            f"the store that answers at {launch.master_addr}, port {launch.master_port}, is not rank 0's: another job "
            "or program has the port, expected only this job there"
        )
    theirs, _ = read_claim(text or loop.request("fetch", keys=[store_keys.SERVED_BY])[0])
    if is_other_job(launch, theirs):
        raise PortInUse(shared_port(launch, theirs))


def is_other_job(launch: LaunchIdentity, theirs: JobOwner) -> bool:
    """A launcher's store outlives its ranks: there a different parent may be that of an earlier attempt."""
    if launch.owner is None:
        return False
    ours: JobOwner = {**launch.owner, "launcher": ""} if launch.agent_store else launch.owner
    return job_owner.is_other_job(ours, theirs)


def shared_port(launch: LaunchIdentity, theirs: JobOwner) -> str:
    """ "port 29755 on node0 is in use by Slurm step 78.0 (...), expected ..."."""
    ours = job_owner.described(launch.owner) if launch.owner else "this job"
    by = job_owner.described(theirs)
    return f"port {launch.master_port} on {launch.master_addr} is in use by {by}, expected only this job there, {ours}"


def _stand_in(loop: EventLoop, launch: LaunchIdentity, window_s: float) -> Child | None:
    if not endpoint.is_left_to_us(loop, launch):
        return None
    with contextlib.suppress(StoreLost):  # then another rank of this node does
        return _started(loop, launch, window_s)
    return None


def _started(loop: EventLoop, launch: LaunchIdentity, window_s: float) -> Child:
    """It listens on loopback only where MASTER_ADDR is loopback on every node: a host's own name may be that only on
    the host itself (Debian's 127.0.1.1), while other nodes reach it by another address."""
    host, port, if_loopback = launch.master_addr, launch.master_port or 0, endpoint.is_everywhere(launch.master_addr)
    serve = host_store(host, port, store_keys.SERVED_BY, claim(launch), if_loopback=if_loopback)
    child = Child(serve, output=False)
    try:
        _await_start(loop, child, port, window_s)
    except BaseException:
        child.end()
        raise
    return child


def _served_by(loop: EventLoop, launch: LaunchIdentity) -> JobOwner | None:
    """The job whose rank serves a store of preflight at the port; None if none does, or one of this job with another
    world size."""

    def look() -> dict[str, str]:
        store = store_client.connect(launch.master_addr, launch.master_port or 0, CAUSE_S)
        store.wait([store_keys.SERVED_BY], timedelta(seconds=CAUSE_S))
        return {"claim": store.get(store_keys.SERVED_BY).decode()}

    try:
        theirs, world_size = read_claim(loop.ask(look, 3 * CAUSE_S).value_or({}).get("claim"))
    except ForeignWriter:  # no store of preflight
        return None
    is_other = bool(launch.owner and job_owner.is_other_job(launch.owner, theirs))
    return theirs if is_other or world_size == launch.world_size else None


def read_claim(text: str | None) -> tuple[JobOwner, int]:
    """(whose store it is, the size of its world), of what SERVED_BY holds. Raises ForeignWriter."""
    claim = store_messages.read("served-by", text or "", store_keys.SERVED_BY)
    theirs = job_owner.from_json(claim)
    assert theirs, "the schema has checked"
    return theirs, claim["world_size"]


def _await_start(loop: EventLoop, child: Child, port: int, window_s: float) -> None:
    start, end = time.monotonic(), loop.until(window_s)
    while (message := child.channel.receive()) is None:
        if child.channel.closed or time.monotonic() >= end:
            raise StoreLost(f"the store's own process did not start within {time.monotonic() - start:.0f} s")
        loop.pump(0.05)
    if "error" in message:
        raise StoreLost(f"the store cannot be served at port {port}: {message['error']}")


def connect(loop: EventLoop, launch: LaunchIdentity, window_s: float, seal: Seal) -> None:
    """Sets `loop.store` to a client of the store, which signs with `seal`. Raises StoreLost."""
    host, port = launch.master_addr, launch.master_port
    assert host and port, "serve() has checked"
    patience_s = min(PATIENCE_S, max(5.0, loop.deadline_s / 4))
    store_client = StoreClient(host, port, loop.pump, window_s, patience_s, seal)
    loop.store = store_client
    began = time.monotonic()
    try:
        store_client.connected()
    except StoreLost as why:
        cause = _cause(loop, host, port)
        if cause and "does not resolve" not in str(why):  # torch's own text may hold what was never an address
            why = StoreLost(f"the store at {host}:{port} was not reached in {time.monotonic() - began:.0f} s: {cause}")
        raise why from None


def _cause(loop: EventLoop, host: str, port: int) -> str:
    """Why the store was not reached; "" if it can be now. torch does not say."""
    found = loop.ask(lambda: {**tcp.reach(host, port, CAUSE_S)}, 3 * CAUSE_S).value_or({})
    return reachability.why(found, host, port) if found else ""  # type: ignore[arg-type]  # a Reach, through JSON
