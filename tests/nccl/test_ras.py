import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from preflight.nccl import ras

STATUS = "NCCL version 2.27.5\n\nJob summary\n===========\n  Nodes  Processes\n      2          8\n"


@contextlib.contextmanager
def served(answer: Callable[[socket.socket], None], family: int = socket.AF_INET) -> Iterator[int]:
    """The port at which one connection is answered."""
    with socket.socket(family) as listener:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def as_nccl(connection: socket.socket) -> None:
    """A line of answer for each line of the question, as src/ras/client_support.cc gives them."""
    for line in connection.makefile():
        word = line.strip().upper()
        answers = {"CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n", "TIMEOUT 1": "OK\n", "VERBOSE STATUS": STATUS}
        connection.sendall(answers[word].encode())
        if word == "VERBOSE STATUS":
            return


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")])
def test_what_ras_says_of_the_job_is_heard(family: int, host: str) -> None:
    if family == socket.AF_INET6 and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    with served(as_nccl, family) as port:
        assert ras.status(f"{host}:{port}") == STATUS.strip()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_what_came_before_the_time_was_over_is_kept() -> None:
    def stalls(connection: socket.socket) -> None:
        connection.sendall(b"SERVER PROTOCOL 2\nOK\nJob summary\n")
        while connection.recv(4096):
            pass

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
        assert 0 < len(ras.status(f"127.0.0.1:{port}")) <= ras.LIMIT
    assert sum(sent) < 16 * 1024 * 1024, "it read on"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xfe\x00"])
def test_another_service_at_that_port_is_not_ras(said: bytes) -> None:
    with served(lambda connection: connection.sendall(said)) as port:
        assert ras.status(f"127.0.0.1:{port}") == ""


@pytest.mark.parametrize("address", ["", "localhost", "localhost:x", "127.0.0.1:1", "127.0.0.1:99999"])
def test_where_nothing_answers_nothing_is_said(address: str) -> None:
    assert ras.status(address, within_s=1.0) == ""
