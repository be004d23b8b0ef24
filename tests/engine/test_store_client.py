"""What serves the store, with real clients."""

import sys

from tests import running

MANY_CLIENTS = """
import resource
from preflight.engine.child import Child
from preflight.engine.process_group import import_torch
from preflight.engine.store_client import connect, host_store

import_torch()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
server = Child(host_store("127.0.0.1", 0), output=False)
port = server.channel.wait()["port"]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
clients = [connect("127.0.0.1", port, 20.0) for _ in range(100)]
clients[-1].set("key", "seen")
print(clients[0].get("key").decode())
server.end()
"""


def test_the_store_serves_more_ranks_than_a_process_may_usually_open_files() -> None:
    """1,024 files are usual, and so are jobs of more ranks: sound ranks would never come."""
    finished = running.run_to_end([sys.executable, "-W", "ignore", "-c", MANY_CLIENTS])
    assert finished.stdout == "seen\n", finished


AWAITED = """
import threading
from preflight.engine.child import Child
from preflight.engine.event_loop import EventLoop
from preflight.engine.process_group import import_torch
from preflight.engine.store_client import StoreClient, StoreLost, connect, host_store

import_torch()
server = Child(host_store("127.0.0.1", 0), output=False)
port = server.channel.wait()["port"]
other = connect("127.0.0.1", port, 20.0)
loop = EventLoop(100.0)
loop.store = StoreClient("127.0.0.1", port, loop.pump, 20.0, 20.0)
loop.store.connected()
absent = [loop.has_come("key"), loop.has_come("key", 0.01)]
setter = threading.Timer(0.1, lambda: other.set("key", "there"))
setter.start()
came = any(loop.has_come("key") for _ in range(100))
setter.join()
server.end()
try:
    print(absent, came, loop.has_come("other"))
except StoreLost as why:
    print(absent, came, "lost")
loop.end_children()
"""


def test_a_key_that_is_awaited_is_heard_of_when_it_comes() -> None:
    """And a rank that waits for one notices that the store is gone."""
    finished = running.run_to_end([sys.executable, "-W", "ignore", "-c", AWAITED])
    assert finished.stdout == "[False, False] True lost\n", finished
