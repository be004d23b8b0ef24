"""`preflight rendezvous` on hosts of their own: names, ports, routes and numbers are really wrong."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import Host, cluster, known, needs_hosts

pytestmark = [pytest.mark.hosts, needs_hosts]
FINDING = re.compile(r"^(FAIL|WARN|INFO) +(?:(.*?)  )?\[([\w.]+)\]\n((?:      .*\n)+)", re.MULTILINE)
SHORT = "27"
"""Seconds, where a node waits in vain: for importing torch on a loaded machine, and as long for all to come."""


class Meeting:
    """One `preflight rendezvous` a host, each with its own output."""

    def __init__(self, hosts: Sequence[Host], endpoint: str = "host-a:29600", timeout: str = "90") -> None:
        self.hosts, self.endpoint, self.timeout = hosts, endpoint, timeout
        self.processes: dict[str, running.Process] = {}
        self.outputs: dict[str, Path] = {}
        self.folder = Path(tempfile.mkdtemp())

    def start(
        self,
        host: Host,
        node_rank: int,
        *more: str,
        nnodes: int | None = None,
        environ: Mapping[str, str] | None = None,
        cold: bool = False,
    ) -> None:
        words = ["--endpoint", self.endpoint, "--nnodes", str(nnodes or len(self.hosts)), "--timeout", self.timeout]
        self.outputs[host.name] = self.folder / host.name
        with self.outputs[host.name].open("wb") as output:
            self.processes[host.name] = running.start_on(
                host, node_rank, ["rendezvous", *words, "--node-rank", str(node_rank), *more],
                running.environment(**environ or {}), self.folder, output.fileno(), cold=cold,
            )  # fmt: skip

    def output(self, name: str) -> str:
        return self.outputs[name].read_text()

    def told(self) -> str:
        codes = {name: process.returncode for name, process in self.processes.items()}
        return f"{codes}\n" + "\n".join(f"--- {name}\n{self.output(name)}" for name in self.outputs)

    def await_words(self, name: str, words: str) -> None:
        """Until this host's output holds them."""
        end = time.monotonic() + running.DEADLINE_S
        while words not in self.output(name):
            assert self.processes[name].poll() is None and time.monotonic() < end, self.told()
            time.sleep(0.05)  # a file tells nobody that it grows

    def finish(self) -> dict[str, int]:
        """Exit codes by host."""
        try:
            for process in self.processes.values():
                process.wait(float(self.timeout) + running.PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running\n{self.told()}") from None
        finally:
            for process in self.processes.values():
                process.kill()
        return {name: process.wait(running.PATIENCE_S) for name, process in self.processes.items()}

    def findings(self, name: str) -> list[dict[str, Any]]:
        """As this host's screen shows them."""
        return [
            {"severity": word.lower(), "code": code, "where": _where(who), "message": " ".join(text.split())}
            for word, who, code, text in FINDING.findall(self.output(name))
        ]


def _where(who: str) -> dict[str, str]:
    """Of "host-b, peer node host-a"."""
    parts = [part for part in who.split(", ") if part]
    named = [re.fullmatch(r"(peer node|variable) (\S+)", part) for part in parts]
    return {
        (match[1].replace(" ", "_") if match else "node"): (match[2] if match else part)
        for match, part in zip(named, parts, strict=True)
    }


def meet(hosts: Sequence[Host], *more: str, **settings: str) -> Meeting:
    meeting = Meeting(hosts, **settings)
    for rank, host in enumerate(hosts):
        meeting.start(host, rank, *more)
    return meeting


def held_against(row: str, meeting: Meeting, codes: Mapping[str, int], teller: str) -> None:
    """What one host has on its screen is what the fault table says; nobody else is blamed on any."""
    fault, told = ELSEWHERE[f"meet_{row}"], meeting.told()
    assert fault.deadline_s == float(meeting.timeout)
    found = meeting.findings(teller)
    assert fault.is_told_by(found) and len(found) == len(fault.finds), told
    assert fault.says in found[0]["message"] and "{" not in meeting.output(teller), told
    assert codes[teller] == fault.exit_code, told
    for finding in found:
        assert fault.culprit.items() <= finding["where"].items(), told


@pytest.mark.parametrize("backend", ["c10d", pytest.param("static", marks=pytest.mark.more)])
def test_hosts_that_meet_are_told_so(backend: str, three: list[Host]) -> None:
    """Also with IPv6 addresses that work, and with node 0 as the last to start."""
    for number, host in enumerate(three, 1):
        host.has_ipv6(number)
        host.etc("hosts", *known(three), *(f"fd00:77::{i} {other.name}" for i, other in enumerate(three, 1)))
    meeting = Meeting(three)
    for rank in (1, 2):
        meeting.start(three[rank], rank, "--rdzv-backend", backend)
    meeting.await_words("host-b", "is node 0 started?")
    meeting.start(three[0], 0, "--rdzv-backend", backend)
    assert meeting.finish() == {"host-a": 0, "host-b": 0, "host-c": 0}, meeting.told()
    for name in meeting.outputs:
        assert "verdict: PASS (all 3 nodes meet at host-a:29600)" in meeting.output(name), meeting.told()
        assert meeting.findings(name) == [], meeting.told()


def test_hosts_meet_at_an_address(two: list[Host]) -> None:
    meeting = meet(two, endpoint="10.77.0.1:29600")
    assert set(meeting.finish().values()) == {0}, meeting.told()
    assert "[" not in meeting.output("host-a"), meeting.told()


def test_a_node_alone_meets_itself(two: list[Host]) -> None:
    meeting = meet(two[:1])
    assert meeting.finish() == {"host-a": 0}, meeting.told()


# What a node finds by itself


def forget_host_a(host: Host, *, loopback: bool = False) -> None:
    host.etc("nsswitch.conf", "hosts: files")
    host.etc("hosts", "127.0.0.1 localhost", f"10.77.0.2 {host.name}", *(["127.0.1.1 host-a"] if loopback else []))


def cut_route(host: Host) -> None:
    host.run("ip", "route", "add", "unreachable", "10.77.0.1")


def switch_off(host: Host) -> None:
    host.run("ip", "link", "set", "eth0", "down")


def drop(host: Host) -> None:
    host.firewall("OUTPUT", "-p", "tcp", "-d", "10.77.0.1", "--dport", "29600", "-j", "DROP")


UNREACHED: dict[str, Callable[[Host], None]] = {
    "name_unknown": forget_host_a,
    "name_is_loopback": lambda host: forget_host_a(host, loopback=True),
    "no_route": cut_route,
    "network_down": switch_off,
    "filtered": drop,
    "nobody_serves": lambda _: None,
}


def test_a_host_that_does_not_reach_the_endpoint_says_why() -> None:
    """It needs no node 0 for that, and no torch. All of them wait at once, each on hosts of its own."""
    with contextlib.ExitStack() as clusters:
        meetings = {}
        for row, deed in UNREACHED.items():
            hosts = clusters.enter_context(cluster(2))
            deed(hosts[1])
            meetings[row] = Meeting(hosts, timeout="3")
        for meeting in meetings.values():
            meeting.start(meeting.hosts[1], 1, cold=True)
        codes = {row: meeting.finish() for row, meeting in meetings.items()}
    for row, meeting in meetings.items():
        held_against(row, meeting, codes[row], "host-b")


# Who has the port


@contextlib.contextmanager
def serving(host: Host, code: str, port: int = 29600, lines: int = 1) -> Iterator[None]:
    """A process of this host that has the port; `s` is its listening socket in `code`. It is ready when it has printed
    so many lines, of which the first one is not the code's."""
    begin = f"import socket; s = socket.create_server(('', {port})); print(flush=True)\n"
    words = [sys.executable, "-W", "ignore", "-c", begin + code]
    with subprocess.Popen(host.command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout
        for _ in range(lines):
            server.stdout.readline()
        try:
            yield
        finally:
            server.kill()


ANSWERS = "while True:\n c = s.accept()[0]; c.recv(99); c.sendall(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n'); c.close()"
SILENT = "kept = []\nwhile True: kept.append(s.accept())"
STORE = (
    "s.close(); import torch.distributed as d;"
    "t = d.TCPStore('127.0.0.1', 29602, is_master=True, wait_for_workers=False); print(flush=True); input()"
)


def test_the_process_that_has_the_port_is_named(two: list[Host]) -> None:
    with serving(two[0], "input()"):
        meeting = meet(two[:1])
        codes = meeting.finish()
    held_against("port_taken", meeting, codes, "host-a")


def test_what_is_no_store_and_what_is_another_jobs_are_told_apart(two: list[Host]) -> None:
    """It answers in another protocol, says nothing, or is a store, as a guest sees it and a node 0 whose endpoint leads
    to it; or the endpoint is another host. All of them wait in vain, so they wait at once."""
    ends = ("host-a:29600", "host-a:29601", "host-a:29602", "host-a:29602")
    talks, silent, guest, other = meetings = [Meeting(two, timeout=SHORT, endpoint=end) for end in ends]
    elsewhere = Meeting(two, timeout=SHORT, endpoint="host-b:29603")
    with (
        serving(two[0], ANSWERS), serving(two[0], SILENT, 29601), serving(two[0], STORE, 29602, lines=2),
    ):  # fmt: skip
        for meeting in (talks, silent, guest):
            meeting.start(two[1], 1)
        other.start(two[1], 0)
        elsewhere.start(two[0], 0)
        codes = [meeting.finish() for meeting in (*meetings, elsewhere)]
    held_against("other_listener", talks, codes[0], "host-b")
    (found,) = silent.findings("host-b")
    assert found["code"].endswith(".other_listener") and codes[1] == {"host-b": 1}, silent.told()
    held_against("other_store", guest, codes[2], "host-b")
    (found,) = other.findings("host-b")
    assert found["code"].endswith(".not_here") and codes[3] == {"host-b": 1}, other.told()
    assert "another store answers at 10.77.0.1, port 29602, and not this node's" in found["message"], other.told()
    held_against("not_here", elsewhere, codes[4], "host-a")


def test_a_port_that_a_user_may_not_have(two: list[Host]) -> None:
    two[0].run("sh", "-c", "echo 1024 > /proc/sys/net/ipv4/ip_unprivileged_port_start")
    meeting = Meeting(two[:1], endpoint="host-a:80")
    words = ["--endpoint", "host-a:80", "--nnodes", "1", "--node-rank", "0"]
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    command = two[0].command([*drop, *running.preflight("rendezvous", *words)])
    meeting.outputs["host-a"] = meeting.folder / "host-a"
    with meeting.outputs["host-a"].open("wb") as output:
        meeting.processes["host-a"] = subprocess.Popen(command, env=running.environment(), stdout=output)
    held_against("port_refused", meeting, meeting.finish(), "host-a")


# Who comes


@pytest.mark.more
def test_the_number_of_a_node_that_never_came_is_told(three: list[Host]) -> None:
    meeting = Meeting(three, timeout="36")
    for rank, host in zip((0, 1, 3), three, strict=True):
        meeting.start(host, rank, nnodes=4)
    codes = meeting.finish()
    for name in meeting.outputs:
        held_against("never_came", meeting, codes, name)


def test_two_hosts_with_one_rank_are_both_told(three: list[Host]) -> None:
    meeting = Meeting(three)
    for rank, host in zip((0, 1, 1), three, strict=True):
        meeting.start(host, rank)
    held_against("two_with_one_rank", meeting, meeting.finish(), "host-a")


def test_a_host_that_expects_fewer_is_named(three: list[Host]) -> None:
    meeting = Meeting(three)
    for rank, host in enumerate(three):
        meeting.start(host, rank, nnodes=2 if rank == 1 else 3)
    held_against("other_nnodes", meeting, meeting.finish(), "host-a")


def test_a_node_that_is_killed_is_named(three: list[Host]) -> None:
    meeting = Meeting(three)
    for rank in (0, 1):
        meeting.start(three[rank], rank)
    meeting.await_words("host-a", "node 1 joined")
    meeting.processes["host-b"].kill()
    meeting.start(three[2], 2)
    held_against("node_went", meeting, meeting.finish(), "host-a")


@pytest.mark.more
def test_a_node_that_was_started_again_is_no_second_one(three: list[Host]) -> None:
    meeting = Meeting(three)
    meeting.start(three[0], 0)
    meeting.start(three[1], 1)
    meeting.await_words("host-a", "node 1 joined")
    meeting.processes["host-b"].send_signal(signal.SIGINT)
    meeting.processes["host-b"].wait(running.PATIENCE_S)
    assert "this process was sent SIGINT" in meeting.output("host-b"), meeting.told()
    meeting.start(three[1], 1)
    meeting.start(three[2], 2)
    assert meeting.finish() == {"host-a": 0, "host-b": 0, "host-c": 0}, meeting.told()


# What all together find


def test_one_host_that_knows_another_address_is_named() -> None:
    with cluster(4) as hosts:
        hosts[0].run("ip", "addr", "add", "10.77.0.101/24", "dev", "eth0")
        hosts[3].etc("hosts", *known(hosts[1:]), "10.77.0.101 host-a", "::ffff:10.77.0.101 host-a")
        meeting = meet(hosts)
        held_against("other_address", meeting, meeting.finish(), "host-a")


@pytest.mark.parametrize(("row", "first"), [("silent_ipv6", "IPv4"), ("silent_ipv6_first", "IPv6")])
def test_an_ipv6_address_that_does_not_answer(row: str, first: str, two: list[Host]) -> None:
    """torch tries the addresses in the system's order, and waits on each for its whole timeout."""
    for number, host in enumerate(two, 1):
        host.has_ipv6(number)
        host.etc("hosts", *known(two), "fd00:77::1 host-a")
        host.etc("gai.conf", f"precedence ::ffff:0:0/96 {100 if first == 'IPv4' else 10}")
    two[1].run("ip6tables", "-A", "OUTPUT", "-d", "fd00:77::1", "-p", "tcp", "-j", "DROP")
    meeting = meet(two, timeout=SHORT)
    held_against(row, meeting, meeting.finish(), "host-b")


@pytest.mark.more
def test_a_dns_server_that_never_answers(two: list[Host]) -> None:
    two[0].etc("hosts", *known(two, mapped=False))
    two[0].has_no_dns("timeout:2", "attempts:1")
    meeting = meet(two)
    held_against("slow_reverse", meeting, meeting.finish(), "host-a")


def test_a_firewall_that_lets_only_the_endpoint_through(three: list[Host]) -> None:
    three[0].firewall("INPUT", "-p", "tcp", "--syn", "-i", "eth0", "!", "--dport", "29600", "-j", "DROP")
    meeting = meet(three)
    codes = meeting.finish()
    held_against("ephemeral_filtered", meeting, codes, "host-a")
    assert set(codes.values()) == {1} and "1 finding on other nodes" in meeting.output("host-b"), meeting.told()


@pytest.mark.parametrize("backend", ["c10d", pytest.param("static", marks=pytest.mark.more)])
def test_a_full_name_that_only_its_own_host_knows(backend: str, three: list[Host]) -> None:
    """It is what c10d gives to the workers; with --master-addr nobody asks for it."""
    three[0].etc("hosts", "10.77.0.1 host-a.cluster host-a", "::ffff:10.77.0.1 host-a", *known(three))
    for host in three[1:]:
        host.etc("nsswitch.conf", "hosts: files")
    meeting = meet(three if backend == "c10d" else three[:2], "--rdzv-backend", backend)
    codes = meeting.finish()
    if backend == "c10d":
        held_against("full_name_unknown", meeting, codes, "host-a")
    else:
        assert set(codes.values()) == {0}, meeting.told()


def test_a_host_that_does_not_know_its_own_name(two: list[Host]) -> None:
    two[1].etc("nsswitch.conf", "hosts: files")
    two[1].etc("hosts", "127.0.0.1 localhost", "10.77.0.1 host-a", "::ffff:10.77.0.1 host-a")
    meeting = meet(two)
    held_against("nameless", meeting, meeting.finish(), "host-b")


def test_what_somebody_else_writes_into_the_store_is_told(two: list[Host]) -> None:
    meeting = Meeting(two)
    meeting.start(two[0], 0)
    meeting.await_words("host-a", "waiting for node 1")
    write = (
        "import torch.distributed as d; s = d.TCPStore('10.77.0.1', 29600, is_master=False, wait_for_workers=False);"
        "s.set('preflight/rendezvous/arrivals/' + str(s.add('preflight/rendezvous/arrivals', 1)), 'garbage')"
    )
    subprocess.run(
        two[1].command([sys.executable, "-W", "ignore", "-c", write]), check=True, timeout=running.DEADLINE_S
    )
    held_against("store_garbage", meeting, meeting.finish(), "host-a")


def test_a_node_0_whose_dns_is_dead_is_told_itself(two: list[Host]) -> None:
    two[0].etc("hosts", "127.0.0.1 localhost", "10.77.0.1 host-a", "10.77.0.2 host-b")
    two[0].has_no_dns("timeout:30", "attempts:1")
    meeting = Meeting(two, timeout="16")
    meeting.start(two[0], 0)
    held_against("dead_dns", meeting, meeting.finish(), "host-a")


def test_a_host_that_takes_itself_for_node_0(two: list[Host]) -> None:
    two[1].etc("hosts", *known(two[:1]), "10.77.0.1 host-b", "10.77.0.2 host-b", "::ffff:10.77.0.2 host-b")
    meeting = meet(two, endpoint="10.77.0.1:29600")
    held_against("two_servers", meeting, meeting.finish(), "host-b")


def test_node_0_that_does_not_know_itself_by_the_endpoint(two: list[Host]) -> None:
    two[0].run("ip", "addr", "add", "10.77.0.101/24", "dev", "eth0")
    for host in two:
        host.etc("hosts", *known(two), "::ffff:10.77.0.101 host-a")
    meeting = meet(two, endpoint="10.77.0.101:29600")
    held_against("no_server", meeting, meeting.finish(), "host-a")


BROKEN, HANGING = "raise ImportError('no torch here')", "import time; time.sleep(600)"


@pytest.mark.parametrize(
    ("torch", "says"),
    [(BROKEN, "no torch here"), (HANGING, "import torch did not end within")],
    ids=["broken", "hangs"],
)
def test_a_torch_that_cannot_be_imported_is_told_at_once(
    torch: str, says: str, two: list[Host], tmp_path: Path
) -> None:
    """What hangs, hangs this process too: another one says so, and ends it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(torch)
    meeting = Meeting(two, timeout="4")
    meeting.start(two[0], 0, environ={"PYTHONPATH": f"{tmp_path}{os.pathsep}{running.environment()['PYTHONPATH']}"})
    code = meeting.finish()["host-a"]
    assert code == (-signal.SIGKILL if torch == HANGING else 1), meeting.told()
    slug = "no_time" if torch == HANGING else "broken_torch"  # in 4 s a sound one may not be imported, either
    assert f"FAIL  host-a  [preflight.rendezvous.{slug}]" in meeting.output("host-a"), meeting.told()
    assert says in meeting.output("host-a") and "Traceback" not in meeting.output("host-a"), meeting.told()
