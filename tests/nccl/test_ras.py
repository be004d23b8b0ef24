import json
import socket
import threading
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest

from preflight.nccl import ras, ras_snapshot
from preflight.nccl.ras import Watch
from tests.nccl import ras_standin
from tests.nccl.ras_standin import answer, as_nccl, communicator, event, missing, rank, served

SOUND = answer([rank(number, launched={"AllReduce": 5}) for number in range(3)])
HUNG = answer([rank(0, launched={"AllReduce": 5}), rank(2, launched={"AllReduce": 5}, error=6)], [missing(1)])


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
@pytest.mark.parametrize(("knows", "said"), [((), ras_standin.TEXT), (("SET",), SOUND)])
def test_what_ras_says_of_the_job_is_heard(family: int, host: str, knows: tuple[str, ...], said: str) -> None:
    if family == socket.AF_INET6 and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    with served(as_nccl(repeat(SOUND), knows=knows), family) as port:
        assert ras.status(f"{host}:{port}") == said.strip()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def stalls(connection: socket.socket) -> None:
    connection.sendall(b"SERVER PROTOCOL 2\nOK\nERROR: Unknown command set format json\nJob summary\n")
    while connection.recv(4096):
        pass


def test_what_came_before_the_time_was_over_is_kept() -> None:
    with served(stalls) as port:
        assert ras.status(f"127.0.0.1:{port}", within_s=0.2) == "Job summary"


def test_an_endless_answer_is_cut() -> None:
    sent = []

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"SERVER PROTOCOL 2\n")
        while True:
            connection.sendall(b"x" * 65536)
            sent.append(65536)

    with served(endless) as port:
        assert 0 < len(Watch(f"127.0.0.1:{port}").ask()) <= ras.LIMIT
    assert sum(sent) < 2 * ras.LARGEST, "it read on"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xfe\x00"])
def test_another_service_at_that_port_is_not_ras(said: bytes) -> None:
    with served(lambda connection: connection.sendall(said)) as port:
        assert ras.status(f"127.0.0.1:{port}") == ""


@pytest.mark.parametrize("address", ["", "localhost", "localhost:x", "127.0.0.1:1", "127.0.0.1:99999"])
def test_where_nothing_answers_nothing_is_said(address: str) -> None:
    assert Watch(address, within_s=1.0).ask() == ""


# More than once


def asked(*statuses: str, events: str = "", listens: bool = False) -> list[ras_snapshot.Snapshot]:
    said: list[ras_snapshot.Snapshot] = []
    monitored = threading.Event()
    with served(as_nccl(iter(statuses), events, monitored=monitored)) as port:
        watch = Watch(f"127.0.0.1:{port}")
        for _ in statuses:
            assert not (said and listens) or monitored.wait(60), "it does not listen"
            snapshot = ras_snapshot.read(watch.ask())
            assert snapshot
            said.append(snapshot)
        watch.close()
    return said


def test_ranks_that_say_the_same_stand_together_and_the_missing_are_told() -> None:
    first, second = asked(HUNG, HUNG)
    (comm,) = first["communicators"]
    assert (comm["size"], comm["counts"]) == (3, {"AllReduce": {"0,2": 5}})
    assert (comm["missing"], comm["unresponsive"], comm["dead"]) == ("1", "1", "")
    assert comm["failed"] == {"remote error": "2"}
    assert (first["still"], second["still"]) == (None, True)


def test_a_job_that_goes_on_does_not_stand_still() -> None:
    later = answer([rank(number, launched={"AllReduce": 6}) for number in range(3)])
    assert [snapshot["still"] for snapshot in asked(SOUND, later)] == [None, False]


def test_what_happens_between_two_questions_is_told_from_2_29_on() -> None:
    events = event("PEER_UNRESPONSIVE", 1, "no answer for 5s") + "{ broken\n" + event("PEER_DEAD", 1)
    assert asked(SOUND, HUNG, events=events, listens=True)[1]["events"] == [
        "PEER_UNRESPONSIVE process 4001 on 10.0.0.2, GPU 0: no answer for 5s",
        "PEER_DEAD process 4001 on 10.0.0.2, GPU 0",
    ]
    old = answer([rank(0, launched={})], version="2.28.9")
    assert asked(old, old, events=events)[1]["events"] == []


def closes(_connection: socket.socket) -> None:
    pass


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"SERVER PROTOCOL 2\nOK\nOK\n" + SOUND.encode()[:300])


@pytest.mark.parametrize(("sick", "kept"), [(stalls, True), (closes, False), (garbage, True)])
def test_what_is_no_answer_is_no_snapshot(sick: Callable[[socket.socket], None], kept: bool) -> None:
    with served(sick) as port:
        watch = Watch(f"127.0.0.1:{port}", within_s=0.2)
        for said in (watch.ask(), watch.ask()):
            assert (bool(said), ras_snapshot.read(said)) == (kept, None)


@pytest.mark.parametrize(
    "text", ["", "17", "[]", "{}", "[" * 100_000, HUNG[:-20], HUNG.replace('"size": 3', '"size": null'),
             HUNG.replace('"rank": 2', '"rank": "two"'), HUNG.replace('"ranks": [', '"ranks": [3, ')],
)  # fmt: skip
def test_another_form_is_none(text: str) -> None:
    assert ras_snapshot.parse(text) is None


def test_of_a_large_job_the_largest_communicators_are_kept() -> None:
    unlike = [rank(number, launched={"AllReduce": number}) for number in range(2000)]
    text = answer(unlike, more=[communicator(unlike[:-place]) for place in range(1, 20)])
    snapshot = ras_snapshot.parse(text)
    assert snapshot and len(snapshot["communicators"]) == ras_snapshot.COMMUNICATORS
    kept = json.loads(ras_snapshot.to_text(snapshot, ras.LIMIT))
    assert 0 < len(kept["communicators"]) < ras_snapshot.COMMUNICATORS and kept["communicators"][0]["size"] == 2000


def test_a_real_answer_is_understood() -> None:
    """Of NCCL 2.28.9, also with the replies that a plain socket shows."""
    real = (Path(__file__).parents[1] / "explain" / "nccl_logs" / "ras.json").read_text()
    snapshot = ras_snapshot.parse(real)
    assert snapshot is not None and snapshot == ras_snapshot.parse(f"SERVER PROTOCOL 2\nOK\nOK\n{real}")
    assert (snapshot["version"], snapshot["timeouts"]) == ("2.28.9", 0)
    assert snapshot["communicators"] == [
        {"hash": "0x4ff0458c4fd6fd6a", "size": 3, "counts": {"AllReduce": {"0,2": 6, "1": 5}}, "missing": "",
         "unresponsive": "", "dead": "", "failed": {}, "starting": "", "aborted": ""}
    ]  # fmt: skip


def test_listening_to_a_nccl_that_knows_no_events_gives_none() -> None:
    """What 2.28.9 says to MONITOR."""
    assert ras_snapshot.events("SERVER PROTOCOL 2\nOK\nERROR: Unknown command MONITOR\n") == []
