"""MASTER_ADDR and MASTER_PORT that lead to the wrong place: to another node, to nobody, to another job."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from preflight.engine.store_seal import SECRET
from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import Host, cluster, known, needs_hosts
from tests.on_hosts import found_as, ranks_on
from tests.running import Run

QUICK_S = 60
"""Of a run with a deadline of 300 s, which would wait 100 s for ranks; a sound machine takes 5 s."""


@needs_hosts
def test_a_master_that_is_another_node_is_said_by_all_ranks(tmp_path: Path) -> None:
    """As from a sorted list. A third of the deadline would be 100 s."""
    with cluster(3) as hosts:
        finished = ranks_on(tmp_path, hosts, "--only", "comm.init", master="host-b", deadline_s=300)
    said = found_as("master_elsewhere", finished)
    assert "MASTER_ADDR is host-b (10.77.0.2), which is not an address of host-a, where rank 0 is" in said
    assert finished.exit_codes == [1, 1, 1] and finished.report["seconds"] < QUICK_S, finished.told()
    assert (tmp_path / "bad_nodes.txt").read_text() == "", finished.told()
    assert len(finished.report["job"]["nodes"]) == 3, finished.told()


@needs_hosts
@pytest.mark.more
def test_a_master_that_is_nobody_is_said_by_rank_0_at_once(tmp_path: Path) -> None:
    """As from an earlier job's list. The others wait for it, and say in words what they have tried."""
    with cluster(2) as hosts:
        finished = ranks_on(tmp_path, hosts, "--only", "comm.init", master="10.77.0.99", deadline_s=30)
    found = finished.findings(finished.report_named("report.rank-0.json"))
    assert ELSEWHERE["master_is_nobody"].is_told_by(found), finished.told()
    (other,) = finished.findings(finished.report_named("report.rank-1.json"))
    assert other["code"] == "preflight.run.store_lost", finished.told()
    assert "no connection to port 29513 of 10.77.0.99 (no route to host after" in other["message"], finished.told()
    assert finished.exit_codes == [1, 3], finished.told()


@needs_hosts
@pytest.mark.more
def test_a_master_that_each_node_takes_for_itself(tmp_path: Path) -> None:
    with cluster(2) as hosts:
        finished = ranks_on(tmp_path, hosts, "--only", "comm.init", master="localhost", deadline_s=30)
    (lost,) = finished.findings()
    assert lost["code"] == "preflight.run.lost" and "leads to rank 0 only from rank 0's own node" in lost["fix"]
    found = finished.findings(finished.report_named("report.rank-1.json"))
    assert ELSEWHERE["master_is_loopback"].is_told_by(found), finished.told()
    assert finished.exit_codes == [1, 1], finished.told()


@needs_hosts
def test_an_address_that_is_translated_to_rank_0s_is_sound(tmp_path: Path) -> None:
    """As of a Service in Kubernetes: no interface has it."""
    with cluster(2) as hosts:
        for host in hosts:
            _translate(host, "10.77.0.200", hosts[0].address)
        finished = ranks_on(tmp_path, hosts, "--only", "comm.init", master="10.77.0.200")
    assert finished.findings() == [] and finished.exit_codes == [0, 0], finished.told()


def _translate(host: Host, address: str, to: str) -> None:
    host.run("iptables", "-t", "nat", "-A", "OUTPUT", "-d", address, "-p", "tcp", "-j", "DNAT", "--to-destination", to)


@needs_hosts
def test_a_name_that_is_loopback_on_rank_0s_node_alone_is_sound(tmp_path: Path) -> None:
    """As Debian's 127.0.1.1 of a host's own name: the other nodes come from outside."""
    with cluster(2) as hosts:
        there = [line for line in known(hosts) if not line.endswith(f" {hosts[0].name}")]
        hosts[0].etc("hosts", *there, f"127.0.1.1 {hosts[0].name}", f"::ffff:{hosts[0].address} from-outside")
        finished = ranks_on(tmp_path, hosts, "--only", "env.launch")
    assert finished.findings() == [] and finished.exit_codes == [0, 0], finished.told()


@needs_hosts
@pytest.mark.more
def test_containers_on_one_host_that_each_have_a_rank_0_of_their_own(tmp_path: Path) -> None:
    """LOCAL_RANK is 0 in each, so the first to come may think that rank 0 is elsewhere, and serves the store."""
    run = running.Run(tmp_path)
    ranks = running.plain_ranks(2)
    words = ["--only", "comm.init", "--report", str(tmp_path), "--deadline", "60"]
    with cluster(1) as (host,):
        for rank in (1, 0):
            place = {"MASTER_ADDR": host.name, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": str(rank)}
            run.start_rank(rank, words, {**ranks[rank], **place}, host=host)
            _served(host, ranks[rank]["MASTER_PORT"])
        finished = run.finish()
    assert finished.findings() == [] and finished.exit_codes == [0, 0], finished.told()


def _served(host: Host, port: str) -> None:
    end = time.monotonic() + 60
    while f":{port} " not in host.run("ss", "-ltn"):
        assert time.monotonic() < end, "nobody listens"
        time.sleep(0.1)  # nobody tells of a socket


@pytest.mark.parametrize(
    "host", ["a..b", *(pytest.param(host, marks=pytest.mark.more) for host in ("[::1]", "127.0.0.1:1"))]
)
def test_a_master_that_cannot_be_a_host_is_said_at_once(host: str, tmp_path: Path) -> None:
    (env,) = running.plain_ranks(1)
    finished = running.run_ranks(tmp_path, [{**env, "MASTER_ADDR": host}], "--only", "env.launch")
    found = finished.findings(finished.report_named("report.rank-0.json"))
    assert ELSEWHERE["master_malformed"].is_told_by(found) and repr(host) in found[0]["message"], finished.told()
    assert finished.exit_codes == [1], finished.told()


def test_spaces_around_a_master_are_said_though_preflight_comes_together(tmp_path: Path) -> None:
    """torch does not: with them it looks up a name that nobody has."""
    (env,) = running.plain_ranks(1)
    finished = running.run_ranks(tmp_path, [{**env, "MASTER_ADDR": " 127.0.0.1"}], "--only", "env.launch")
    (found,) = finished.findings()
    assert found["code"] == "env.launch.invalid" and found["where"]["variable"] == "MASTER_ADDR", finished.told()
    assert finished.exit_codes == [1], finished.told()


JOBS = ({"SLURM_JOB_ID": "77"}, {"SLURM_JOB_ID": "78"})
PORT_SHARED = "is in use by Slurm job {} (process "


def _start(run: Run, rank: int, env: dict[str, str], folder: Path, *words: str, **more: Any) -> None:
    folder.mkdir(exist_ok=True)
    run.start_rank(rank, [*words, "--report", str(folder), "--deadline", "60"], env, **more)


def _await(path: Path) -> None:
    end = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.05)  # nobody tells of a file


BOTH_SECRET = ("0123456789abcdef" * 2, "fedcba9876543210" * 2)


@pytest.mark.parametrize(
    ("launched", "secrets"),
    [
        ("by_slurm", ("", "")),
        ("by_slurm", BOTH_SECRET),
        pytest.param("by_slurm", (BOTH_SECRET[0], ""), marks=pytest.mark.more),
        pytest.param("by_slurm", ("", BOTH_SECRET[1]), marks=pytest.mark.more),
        pytest.param("by_hand", ("", ""), marks=pytest.mark.more),
        pytest.param("by_hand", BOTH_SECRET, marks=pytest.mark.more),
    ],
    ids=["Slurm", "Slurm, two secrets", "first has a secret", "second has a secret", "by hand", "by hand, two secrets"],
)
def test_two_jobs_on_one_port_both_say_so(launched: str, secrets: tuple[str, str], tmp_path: Path) -> None:
    """The second one comes while the first one measures. By hand, other shells have started it. Neither can read what
    the other has signed."""
    first, second, begun, go = (tmp_path / name for name in ("first", "second", "begun", "go"))
    port = running.free_port()
    jobs = [{**(JOBS[job] if launched == "by_slurm" else {}), SECRET: secrets[job]} for job in (0, 1)]
    by_another = {} if launched == "by_slurm" else {"wrap": ["sh", "-c", '"$@"; exit $?', "sh"]}
    deed = {"TEST_DEED": "wait_for_file", "TEST_BEGUN": str(begun), "TEST_AWAITED": str(go)}
    words = ["--only", "env.launch,plugin.alone", "--plugin", "alone"]
    run, other = Run(tmp_path), Run(tmp_path)
    for rank, env in enumerate(running.plain_ranks(2, port, **deed, TEST_CHECK_DEADLINE_S="50", **jobs[0])):
        _start(run, rank, env, first, *words)
    _await(begun)
    for rank, env in enumerate(running.plain_ranks(2, port, **jobs[1])[: 2 if launched == "by_slurm" else 1]):
        _start(other, rank, env, second, *words, **by_another)
    came = other.finish()
    go.touch()
    finished = run.finish()
    told = finished.told() + came.told()
    (found,) = finished.findings(running.load(first / "report.json"))
    (seen,) = finished.findings(running.load(second / "report.rank-0.json"))
    assert ELSEWHERE["port_shared"].is_told_by([found]) and ELSEWHERE["port_shared"].is_told_by([seen]), told
    assert finished.exit_codes == [1, 1] and set(came.exit_codes) == {1}, told
    assert found["where"] == seen["where"] == {"variable": "MASTER_PORT"}, told
    assert "[preflight.run.rendezvous]" in came.output and finished.left_over == came.left_over == [], told
    if launched == "by_slurm":
        assert f"port {port} on 127.0.0.1 {PORT_SHARED.format(78)}" in found["message"], told
        assert f"port {port} on 127.0.0.1 {PORT_SHARED.format(77)}" in seen["message"], told
        (of_rank_1,) = finished.findings(running.load(second / "report.rank-1.json"))
        assert of_rank_1["code"] == seen["code"], told


def test_the_training_of_another_job_has_the_port(tmp_path: Path) -> None:
    """Its store is torch's: rank 1 reaches it, and preflight's rank 0 is not there."""
    port = running.free_port()
    serve = (
        "import sys, torch.distributed as d;"
        f"s = d.TCPStore('127.0.0.1', {port}, is_master=True, wait_for_workers=False);"
        "print(flush=True); sys.stdin.read()"
    )
    env = running.plain_ranks(1, port, **JOBS[0])[0]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as training:
        assert training.stdin and training.stdout
        training.stdout.readline()
        finished = running.run_ranks(tmp_path, running.plain_ranks(2, port, **JOBS[1]), "--only", "env.launch")
        training.kill()
    said = f"{PORT_SHARED.format(77)}{training.pid} on ", "is not rank 0's: another job or program has the port"
    for rank, words in enumerate(said):
        (found,) = finished.findings(finished.report_named(f"report.rank-{rank}.json"))
        assert ELSEWHERE["port_shared"].is_told_by([found]) and words in found["message"], finished.told()
    assert finished.exit_codes == [1, 1] and finished.left_over == [], finished.told()


@pytest.mark.more
def test_two_jobs_on_one_agents_store(tmp_path: Path) -> None:
    """As where two agents of torchrun share an endpoint, each with a run id of its own."""
    folder = tmp_path / "second"
    with running.store_server() as (port, _):
        first, second = (
            running.plain_ranks(1, port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID=run)[0]
            for run in ("one", "two")
        )
        one = running.run_ranks(tmp_path, [first], "--only", "env.launch")
        run = Run(tmp_path)
        _start(run, 0, second, folder, "--only", "env.launch")
        two = run.finish()
        again = running.run_ranks(tmp_path, [first], "--only", "env.launch")
    assert one.exit_codes == again.exit_codes == [0], one.told() + again.told()
    (found,) = two.findings(running.load(folder / "report.rank-0.json"))
    assert ELSEWHERE["port_shared"].is_told_by([found]), two.told()
    assert "is in use by torchrun run one" in found["message"] and two.exit_codes == [1], two.told()
