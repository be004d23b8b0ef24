import socket
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from preflight.sdk import reachability, tcp
from tests import running


@pytest.mark.parametrize("backend", ["libuv", "poll"])
def test_a_store_takes_a_probe_without_a_word(backend: str) -> None:
    """Neither of torch's two servers says anything on the screen, and both go on serving."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in __all__

    serve = (
        "import sys, torch.distributed as d;"
        f"s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv={backend == 'libuv'});"
        "print(s.port, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", serve], env=running.environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as server:  # fmt: skip
        assert server.stdin and server.stdout and server.stderr
        port = int(server.stdout.readline())
        for _ in range(5):
            assert tcp.connect((socket.AF_INET, ("127.0.0.1", port)), 5.0)["error"] == ""
        client = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10))
        client.set("key", "value")
        assert client.get("key") == b"value"
        assert tcp.clients_of(port, 16) == ["::ffff:127.0.0.1"]
        server.stdin.close()
        said = [line for line in server.stderr if "hostname of the client socket" not in line]  # that is of its DNS
        assert said == []


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_is_made_timed_and_seen_by_the_server(family: int, address: str) -> None:
    with socket.create_server((address, 0), family=socket.AddressFamily(family)) as server:
        place = server.getsockname()
        made = tcp.connect((family, place), 5.0)
        assert made["error"] == "" and made["address"] == made["source"] == address
        assert 0 < made["seconds"] < 5.0
        with socket.create_connection(place[:2]):
            assert tcp.clients_of(place[1], 16) == [address]
    assert tcp.clients_of(place[1], 16) == []
    assert tcp.interface_of(address) == "lo"


def test_of_many_clients_some_are_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        clients = [
            socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.0.{number}", 0))
            for number in range(10, 20)
        ]
        assert len(tcp.clients_of(port, 10)) == 10
        assert tcp.clients_of(port, 4) == ["127.0.0.10", "127.0.0.13", "127.0.0.16", "127.0.0.19"]
        for client in clients:
            client.close()


def test_a_refusal_is_told() -> None:
    made = tcp.connect((socket.AF_INET, ("127.0.0.1", running.free_port())), 5.0)
    assert made["error"] == "connection refused" and made["source"] == "" and made["seconds"] < 5.0


def test_silence_ends_with_patience() -> None:
    """A listener whose queue is full answers nobody."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        place = server.getsockname()
        held = [socket.socket() for _ in range(4)]
        for client in held:
            client.setblocking(False)
            client.connect_ex(place)
        made = tcp.connect((socket.AF_INET, place), 0.2)
        for client in held:
            client.close()
    assert made["error"] == "timed out" and made["seconds"] >= 0.2


def test_an_address_stays_one_when_its_connection_is_told_of_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a loaded host, where the thread that connects wakes late."""
    never = threading.Event()
    monkeypatch.setattr(tcp, "connect", lambda *_: never.wait(60))
    reach = tcp.reach("127.0.0.1", 80, 0.2)
    never.set()
    assert [(connection["address"], connection["error"]) for connection in reach["connections"]] == [
        ("127.0.0.1", "timed out")
    ]
    assert reachability.why(reach, "host-a", 80).startswith("no connection to port 80 of 127.0.0.1 (timed out")


def test_who_does_not_answer_in_time_is_left_behind() -> None:
    never = threading.Event()
    answers = tcp.in_time({"hangs": lambda: never.wait(60), "answers": lambda: True}, 0.2)
    assert answers == {"answers": True}
    never.set()


def test_a_name_has_each_address_once() -> None:
    seconds, targets, why = tcp.resolve("127.0.0.1", 80)
    assert seconds > 0 and why == ""
    assert targets == {"127.0.0.1": (socket.AF_INET, ("127.0.0.1", 80))}
    assert list(tcp.resolve("::ffff:127.0.0.1", 80)[1]) == ["127.0.0.1"]


def test_a_name_without_an_address_says_why() -> None:
    _, targets, why = tcp.resolve("x" * 64, 80)  # longer than a name may be: no DNS is asked
    assert targets == {} and why


def test_addresses_as_torch_knows_them() -> None:
    assert tcp.mapped("10.0.0.1") == "::ffff:10.0.0.1" and tcp.plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert tcp.mapped("fd00::1") == tcp.plain("fd00::1") == "fd00::1"
    loopback = [address for address in ("127.0.1.1", "::1", "::ffff:127.0.0.1", "10.0.0.1") if tcp.is_loopback(address)]
    assert loopback == ["127.0.1.1", "::1", "::ffff:127.0.0.1"]


def test_where_gloo_listens() -> None:
    assert tcp.gloo_address("127.0.1.1") == "127.0.1.1"
    assert tcp.gloo_address("192.0.2.1") == "127.0.0.1"  # no address of this host: gloo falls back
