"""On which addresses a run of this machine's ranks listens: anybody on the network can reach what is not loopback."""

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import running


def listening(run: running.Run) -> set[str]:
    """The addresses on which processes of the run listen."""
    found = set()
    for process in run.marked():
        try:
            sockets = process.net_connections("tcp")
        except psutil.Error:  # it has ended
            continue
        found |= {end.laddr.ip for end in sockets if end.status == psutil.CONN_LISTEN}
    return found


def held(folder: Path, start: Callable[[running.Run, list[str], dict[str, str]], None]) -> tuple[set[str], list[int]]:
    """(on which addresses a run listens while its second check measures, the exit codes). No check makes a process
    group: where gloo listens is the job's own choice."""
    begun, end = folder / "begun", folder / "end"
    deed = {"TEST_DEED": "wait_for_file", "TEST_BEGUN": str(begun), "TEST_AWAITED": str(end)}
    run = running.Run(folder)
    words = ["run", "--only", "env.launch,plugin.alone", "--plugin", str(running.PLUGINS / "alone.py")]
    start(run, [*words, "--level", "standard"], {**deed, "TEST_CHECK_DEADLINE_S": "30"})
    running.await_file(begun)
    addresses = listening(run)
    end.touch()
    return addresses, run.finish().exit_codes


def start_own_ranks(run: running.Run, words: list[str], environ: dict[str, str]) -> None:
    run.start(running.preflight(*words), running.environment(**environ))


def start_plain_ranks(host: str) -> Callable[[running.Run, list[str], dict[str, str]], None]:
    def start(run: running.Run, words: list[str], environ: dict[str, str]) -> None:
        for rank, env in enumerate(running.plain_ranks(2, None, **environ)):
            run.start_rank(rank, words, {**env, "MASTER_ADDR": host})

    return start


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost", "::1"], ids=["own ranks", "plain", "name", "IPv6"])
def test_a_run_of_this_machine_listens_on_loopback_only(host: str, tmp_path: Path) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no ::1")
    addresses, codes = held(tmp_path, start_plain_ranks(host) if host else start_own_ranks)
    assert set(codes) == {0}
    assert len(addresses) == 1 and all(ipaddress.ip_address(each).is_loopback for each in addresses)


def test_a_store_for_other_nodes_listens_where_they_can_reach_it(tmp_path: Path) -> None:
    """Rank 0 cannot tell which of its addresses they use: MASTER_ADDR may be a forwarded one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks the kernel for the address it would send from
        except OSError:
            pytest.skip("this machine has loopback only")
        own = probe.getsockname()[0]
    addresses, codes = held(tmp_path, start_plain_ranks(own))
    assert set(codes) == {0} and addresses & {"::", "0.0.0.0"}


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
