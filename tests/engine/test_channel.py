import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from preflight.engine.channel import MESSAGE_LIMIT, Channel, Closed

MESSAGES: list[dict[str, Any]] = [{"a": 1}, {}, {"text": "日本\n" * 50, "list": [1, None, {"b": 2.5}]}, {"last": True}]
PATIENCE_S = 20.0
LARGE = {"text": "x" * 4_000_000}
"""Larger than what a socket pair holds."""


def as_bytes(message: object) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack("!I", len(data)) + data


def channel_and_socket() -> tuple[Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


@pytest.fixture(autouse=True)
def a_call_that_blocks_fails() -> Iterator[None]:
    """Instead of hanging the tests."""

    def too_late(*_: object) -> None:
        pytest.fail(f"blocked for {PATIENCE_S:.0f} s")  # no OSError, which a channel would take for its peer's end

    held = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, held)


def all_received(channel: Channel) -> list[dict[str, Any]]:
    return list(iter(channel.receive, None))


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 64, 10_000])
def test_messages_may_be_split_at_any_byte(step: int) -> None:
    channel, peer = channel_and_socket()
    stream = b"".join(as_bytes(message) for message in MESSAGES)
    received = []
    for start in range(0, len(stream), step):
        peer.send(stream[start : start + step])
        received += all_received(channel)
    assert received == MESSAGES
    assert not channel.closed


def test_an_unfinished_message_is_no_message() -> None:
    channel, peer = channel_and_socket()
    peer.send(as_bytes({"a": 1})[:-1])
    assert channel.receive() is None
    peer.send(as_bytes({"a": 1})[-1:])
    assert channel.receive() == {"a": 1}


@pytest.mark.parametrize(
    "garbage",
    [struct.pack("!I", MESSAGE_LIMIT + 1), b"\xff\xff\xff\xff", b"HTTP/1.1 200 OK\r\n", struct.pack("!I", 3) + b"{a}"],
    ids=["too long", "largest", "http", "no JSON"],
)
def test_what_is_no_message_closes_the_channel(garbage: bytes) -> None:
    channel, peer = channel_and_socket()
    peer.send(as_bytes({"a": 1}) + garbage)
    assert channel.receive() == {"a": 1}
    assert channel.closed
    assert channel.receive() is None


def test_a_message_of_the_largest_size_is_awaited() -> None:
    channel, peer = channel_and_socket()
    peer.send(struct.pack("!I", MESSAGE_LIMIT))
    assert channel.receive() is None
    assert not channel.closed


def test_what_a_peer_said_before_it_went_is_heard() -> None:
    here, there = Channel.pair()
    there.send({"a": 1})
    there.close()
    assert here.wait() == {"a": 1}
    with pytest.raises(Closed):
        here.wait()
    assert here.closed


def test_sending_to_a_peer_that_is_gone_closes_the_channel() -> None:
    here, there = Channel.pair()
    there.close()
    here.send({"a": 1})
    assert here.closed
    assert not here.wants_to_write
    with pytest.raises(Closed):
        here.send_all(LARGE)


def test_sending_never_waits_for_a_reader_that_has_stopped() -> None:
    here, there = Channel.pair()
    for number in range(4):
        here.send({**LARGE, "number": number})
    here.flush()
    assert here.wants_to_write
    received = []
    while here.wants_to_write:
        here.flush()
        received += all_received(there)
    received += all_received(there)
    assert received == [{**LARGE, "number": number} for number in range(4)]


def test_receiving_never_waits() -> None:
    here, _there = Channel.pair()
    assert here.receive() is None


def test_a_child_may_wait_until_all_is_written() -> None:
    here, there = Channel.pair()
    pid = os.fork()
    if pid == 0:
        try:
            here.close()
            there.send_all(LARGE)
        finally:
            os._exit(0)
    there.close()
    assert here.wait() == LARGE
    with pytest.raises(Closed):
        here.wait()
    os.waitpid(pid, 0)


def test_both_ends_may_talk_at_once() -> None:
    here, there = Channel.pair()
    here.send({"from": "here"})
    there.send({"from": "there"})
    assert (here.wait(), there.wait()) == ({"from": "there"}, {"from": "here"})
