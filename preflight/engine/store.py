"""Opens a rank's store: the launcher's, one that rank 0 serves itself, or a dictionary for a single rank."""

import time
from datetime import timedelta

from preflight.engine import store_client, store_keys
from preflight.engine.child import Child
from preflight.engine.event_loop import EventLoop
from preflight.engine.identity import LaunchIdentity
from preflight.engine.store_client import StoreClient, StoreLost, host_store
from preflight.engine.store_seal import Seal
from preflight.sdk import reachability, tcp

PATIENCE_S = 30.0
"""Time for one answer of the store. A lost DNS reply blocks its single thread for 5 s, several in a row longer."""
CAUSE_S = 2.0
"""Time for an answer when asking why the store was not reached."""
TAKEN = "EADDRINUSE"


def serve(loop: EventLoop, here: LaunchIdentity, window_s: float) -> Child | None:
    """On rank 0, if the launcher serves no store: starts the process that does. None on the other ranks, and if another
    process that calls itself rank 0 already serves it. Raises StoreLost."""
    host, port = here.master_addr, here.master_port
    if not host or not port:
        raise StoreLost(f"there is no store to connect to: MASTER_ADDR is {host!r} and MASTER_PORT {port}")
    if here.agent_store or here.rank != 0:
        return None
    world_size = str(here.world_size)
    child = Child(host_store(host, port, store_keys.SERVED_BY, world_size, if_loopback=True), output=False)
    try:
        _await_start(loop, child, port, window_s)
    except StoreLost as why:
        child.end()
        if TAKEN in str(why) and _is_served(loop, here):
            return None
        raise
    except BaseException:
        child.end()
        raise
    return child


def _is_served(loop: EventLoop, here: LaunchIdentity) -> bool:
    """Whether another rank 0 of a job with this world size serves a store at the port."""

    def look() -> dict[str, str]:
        store = store_client.connect(here.master_addr, here.master_port or 0, CAUSE_S)
        store.wait([store_keys.SERVED_BY], timedelta(seconds=CAUSE_S))
        return {"world_size": store.get(store_keys.SERVED_BY).decode()}

    return loop.ask(look, 3 * CAUSE_S).value_or({}) == {"world_size": str(here.world_size)}


def _await_start(loop: EventLoop, child: Child, port: int, window_s: float) -> None:
    start, end = time.monotonic(), loop.until(window_s)
    while (message := child.channel.receive()) is None:
        if child.channel.closed or time.monotonic() >= end:
            raise StoreLost(f"the store's own process did not start within {time.monotonic() - start:.0f} s")
        loop.pump(0.05)
    if "error" in message:
        raise StoreLost(f"the store cannot be served at port {port}: {message['error']}")


def connect(loop: EventLoop, here: LaunchIdentity, window_s: float, seal: Seal) -> None:
    """Sets `loop.store` to a client of the store, which signs with `seal`. Raises StoreLost."""
    host, port = here.master_addr, here.master_port
    assert host and port, "serve() has checked"
    patience_s = min(PATIENCE_S, max(5.0, loop.deadline_s / 4))
    store_client = StoreClient(host, port, loop.pump, window_s, patience_s, seal)
    loop.store = store_client
    try:
        store_client.connected()
    except StoreLost as why:
        raise StoreLost(f"{why}{_cause(loop, host, port)}") from None


def _cause(loop: EventLoop, host: str, port: int) -> str:
    """Why the store was not reached, as " (...)" or "": torch does not say."""
    found = loop.ask(lambda: {**tcp.reach(host, port, CAUSE_S)}, 3 * CAUSE_S).value_or({})
    why = reachability.why(found, host, port) if found else ""  # type: ignore[arg-type]  # a Reach, through JSON
    return f" ({why})" if why else ""
