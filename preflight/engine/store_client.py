"""The store client: the one child that talks to the store, so that only it can get stuck there.

Everything between ranks is one of five things: a value put under a key, values fetched, a key awaited, a line appended
to a log, and a log read. A log is a counter and numbered keys: its reader asks for what is new, however
many ranks write to it, and the order of arrival is kept. While a key is awaited, all other requests wait as well.
"""

import contextlib
import errno
import ipaddress
import os
import resource
import shutil
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from preflight.core.exceptions import in_one_line
from preflight.engine.breadcrumb import Breadcrumb
from preflight.engine.channel import Channel
from preflight.engine.child import Child
from preflight.engine.store_seal import Seal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

Serve = Callable[[Channel, Breadcrumb], None]
SERVE_S = 30.0
"""Time for the server's own client. The server looks up its name first: 10 s if no DNS server answers."""


def connect(
    host: str, port: int, timeout_s: float, *, is_master: bool = False, if_loopback: bool = False
) -> "TCPStore":
    """A client, or with `is_master` the server, which does not wait for workers. It listens on all addresses; with
    `if_loopback` on loopback only, if `host` is that. Raises torch's DistError and ConnectionError."""
    from torch import distributed as dist

    try:  # torch would retry for the whole timeout, and then not say why
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port)}
    except (socket.gaierror, UnicodeError) as error:  # the latter for what cannot be a name
        why = getattr(error, "strerror", None) or "it cannot be a name"
        raise ConnectionError(f"the name {host} does not resolve ({why})") from None
    listener = None
    if if_loopback and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        listener = _listen(min(addresses, key=lambda address: ":" in address), port)
    return dist.TCPStore(  # type: ignore[attr-defined]  # not in torch's __all__
        host,
        listener.getsockname()[1] if listener else port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach() if listener else None,
    )


def _listen(address: str, port: int) -> socket.socket:
    """torch itself listens on all addresses, whatever host it is given. Raises ConnectionError."""
    try:
        if port:
            socket.create_server(("", port)).close()  # as torch's own store will, in the training
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise ConnectionError(f"{address}:{port}: {errno.errorcode.get(error.errno or 0)}, {error.strerror}") from None


def host_store(host: str, port: int, key: str = "", value: str = "", *, if_loopback: bool = False) -> Serve:
    """What the store's process runs: it serves until its supervisor closes the channel. It sets `key` to `value` before
    any client can. `if_loopback`: as for `connect`."""

    def serve(channel: Channel, _page: Breadcrumb) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError):  # it holds a connection to each rank, and 1,024 open files are usual
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            store = connect(host, port, SERVE_S, is_master=True, if_loopback=if_loopback)
            if key:
                store.set(key, value)
        except Exception as error:
            channel.send_all({"error": in_one_line(error)})
            return
        channel.send_all({"port": store.port})
        channel.wait()

    return serve


def carry(host: str, port: int, connect_s: float, lifeline: int, seal: Seal) -> Serve:
    """What the store client runs. The supervisor holds the other end of the pipe `lifeline`."""

    def serve(channel: Channel, _page: Breadcrumb) -> None:
        wards: set[tuple[int, str]] = set()
        if lifeline >= 0:
            threading.Thread(target=_outlive, args=(lifeline, wards), daemon=True).start()
        try:
            store = connect(host, port, connect_s)
        except Exception as error:
            channel.send_all({"id": 0, "error": in_one_line(error)})
            return
        channel.send_all({"id": 0, "ok": True})
        sealed = Sealed(store, seal)
        while True:
            request = channel.wait()
            number = request.pop("id")
            if request["do"] == "ward":
                wards.add((request["pid"], request["folder"]))
                continue
            answer = sealed.answer(**request)
            if number:
                channel.send_all({"id": number, **answer})

    return serve


def _outlive(lifeline: int, wards: set[tuple[int, str]]) -> None:
    """Waits for the supervisor's death, which also ends its workers; then ends what they had started and
    removes the run's private folder."""
    os.read(lifeline, 1)
    for pid, folder in wards:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, 9)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


class Sealed:
    """The store's operations, in the store client. What it writes is signed, if there is a secret; what it reads and
    nobody of this run has signed begins with store_seal.BROKEN."""

    def __init__(self, store: "TCPStore", seal: Seal) -> None:
        self._store, self._seal = store, seal

    def answer(self, do: str, **arguments: Any) -> dict[str, object]:
        operation: Callable[..., object] = getattr(self, do)
        try:
            return {"value": operation(**arguments)}
        except Exception as error:
            return {"error": in_one_line(error)}

    def put(self, key: str, value: str) -> None:
        self._store.set(key, self._seal.close(key, value))

    def put_once(self, key: str, value: str) -> None:
        if not self._store.check([key]):
            self.put(key, value)

    def append(self, key: str, value: str) -> int:
        index = int(self._store.add(key, 1))
        self.put(f"{key}/{index}", value)
        return index

    def count(self, key: str) -> int:
        return int(self._store.add(key, 0))

    def fetch(self, keys: list[str]) -> list[str | None]:
        if len(keys) > 1 and self._store.check(keys):
            return [self._seal.open(key, value) for key, value in zip(keys, self._store.multi_get(keys), strict=True)]
        # A single absent key would block multi_get for all.
        return [self._seal.open(key, self._store.get(key)) if self._store.check([key]) else None for key in keys]

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._store.delete_key(key)

    def await_key(self, key: str, within_s: float) -> bool:
        from torch.distributed import DistStoreError

        try:
            self._store.wait([key], timedelta(seconds=within_s))
        except DistStoreError:  # the time is over
            return False
        return True


class StoreLost(Exception):  # noqa: N818 -- a state of the world
    """The store refused, went away, or did not answer in time. Its text says which."""


class StoreClient:
    """The supervisor's side: requests with a deadline. Once it has raised StoreLost it always does."""

    def __init__(
        self,
        host: str,
        port: int,
        pump: Callable[[float], None],
        connect_s: float,
        patience_s: float,
        seal: Seal | None = None,
    ) -> None:
        """`pump` lets the supervisor do its other work for at most that many seconds, and returns early when
        something comes. `connect_s` and `patience_s`: limits for the connection, and for one answer."""
        lifeline, self._hold = os.pipe()
        self.endpoint = f"{host}:{port}"
        self.patience_s = patience_s
        self._connect_s = connect_s
        serve = carry(host, port, connect_s, lifeline, seal or Seal())
        self.child = Child(serve, output=False, keep=(lifeline,), outlives=True)
        os.close(lifeline)
        self._pump = pump
        self._next = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.lost: str | None = None

    def connected(self) -> None:
        self._await(0, self._connect_s + 1.0, "could not be reached")

    def request(self, do: str, **arguments: Any) -> Any:
        """The answer to one request (see `Sealed`)."""
        if self.lost:
            raise StoreLost(self.lost)
        self._next += 1
        self.child.channel.send({"id": self._next, "do": do, **arguments})
        return self._await(self._next, self.patience_s, "did not answer").get("value")

    def tell(self, do: str, **arguments: Any) -> None:
        """A request without an answer."""
        if not self.lost:
            self.child.channel.send({"id": 0, "do": do, **arguments})

    def _await(self, number: int, within_s: float, failed: str) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while number not in self._answers:
            self._read()
            if number in self._answers:
                break
            if self.child.channel.closed:
                self._lose("closed the connection")
            if (left := end - time.monotonic()) <= 0:
                self._lose(f"{failed} within {within_s:.0f} s")
            self._pump(left)
        answer = self._answers.pop(number)
        if "error" in answer:
            self._lose(f"failed: {answer['error']}")
        return answer

    def _read(self) -> None:
        while (message := self.child.channel.receive()) is not None:
            self._answers[message["id"]] = message

    def _lose(self, how: str) -> None:
        self.lost = f"the store at {self.endpoint} {how}"
        raise StoreLost(self.lost)

    def end(self) -> None:
        self.child.end()
        os.close(self._hold)
