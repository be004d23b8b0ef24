"""Real torchrun on several hosts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from preflight.planning import registry
from tests import running
from tests.faults import ELSEWHERE
from tests.hosts import Host, needs_hosts
from tests.on_hosts import C10D, STATIC, ranks_on, run_on
from tests.running import Finished, Run
from tests.test_sound import is_silent

pytestmark = [pytest.mark.hosts, needs_hosts]
PLUGINS = ("--only", "plugin", "--plugin", "alone", "--plugin", "after")


def two_ranks_on_each(
    folder: Path, hosts: Sequence[Host], *arguments: str, served: bool = False, deadline_s: float = 60
) -> Finished:
    """Plain ranks: where it is not torchrun that is tested. `served`: by a store of the first host's own."""
    places = [
        {"NODE_RANK": str(node), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "2"}
        for node in range(len(hosts))
        for local in range(2)
    ]
    ranks = [host for host in hosts for _ in range(2)]
    return ranks_on(folder, ranks, *arguments, environ=places, served=served, deadline_s=deadline_s)


@pytest.mark.more
def test_three_hosts_are_sound_under_c10d(three: list[Host], tmp_path: Path) -> None:
    finished = run_on(tmp_path, three, "--only", "net,comm.init", rendezvous=C10D, ranks=1)
    net = ("net.interfaces", "net.rendezvous", "net.mesh", "net.interface_errors")
    is_silent(finished, 3, ("env.launch", *net, "comm.init"))
    assert "6 ordered pairs of 3 nodes" in finished.check("net.mesh")["summary"], finished.told()


@pytest.mark.more
def test_two_hosts_without_ipv4_and_behind_a_dead_gateway_are_sound(two: list[Host], tmp_path: Path) -> None:
    """They need no gateway to reach each other."""
    for host in two:
        host.run("ip", "addr", "flush", "dev", "eth0", "scope", "global")
    addresses = [host.has_ipv6(number) for number, host in enumerate(two, 1)]
    for host in two:
        host.run("ip", "-6", "route", "add", "default", "via", "fd00:77::99")
        names = [f"{address} {other.name}" for address, other in zip(addresses, two, strict=True)]
        host.etc("hosts", "127.0.0.1 localhost", "::1 localhost", *names)
    finished = ranks_on(tmp_path, two, "--only", "net,comm.init", master=addresses[0])
    checks = ("env.launch", "net.interfaces", "net.rendezvous", "net.mesh", "comm.init", "net.interface_errors")
    is_silent(finished, 2, checks)


@pytest.mark.more
def test_two_hosts_are_sound(two: list[Host], tmp_path: Path) -> None:
    here = (
        "train.fsdp",
        "train.fsdp2",
        "train.tp",
        "train.pp",
        "train.hybrid",
        "train.compile",
        "train.expert",
    )  # of training train.ddp shows that it works over hosts
    finished = two_ranks_on_each(tmp_path, two, "--all", *running.SMALL, "--skip", ",".join(here), deadline_s=120)
    is_silent(finished, 4, set(registry.BUILT_IN) - set(here))
    nodes = finished.report["job"]["nodes"]
    assert sorted(node["node"] for node in nodes) == ["host-a", "host-b"], finished.told()
    assert [node["ranks"] for node in nodes] == ["0-1", "2-3"]


@pytest.mark.more
def test_a_slow_link_is_waited_for(two: list[Host], tmp_path: Path) -> None:
    two[1].slow_down("200mbit")
    finished = ranks_on(tmp_path, two, "--only", "comm.all_reduce", deadline_s=120)
    is_silent(finished, 2, ("env.launch", "gpu.inventory", "comm.init", "comm.all_reduce"))
    assert ELSEWHERE["slow_link"].is_told_by(finished.findings())


def lost(finished: Finished) -> dict[int, str]:
    found = finished.findings()
    assert {f["code"].rpartition(".")[2] for f in found} == {"lost"}, finished.told()
    return {f["where"]["rank"]: f["where"]["node"] for f in found}


def test_a_host_that_is_cut_off_is_named_by_both_sides(two: list[Host], tmp_path: Path) -> None:
    """Rank 2 takes its own host's interface down; the rest goes on without that host."""
    deed = ("--set", "plugin.alone.deed=cut_link", "--set", "plugin.alone.by=2")
    finished = two_ranks_on_each(tmp_path, two, *PLUGINS, *deed, served=True)
    told = finished.told()
    assert ELSEWHERE["host_cut_off"].is_told_by(finished.findings()), told
    assert lost(finished) == {2: "host-b", 3: "host-b"}, told
    assert finished.check("plugin.after")["summary"] == "2 members, sum 2", told
    own = finished.report_named("report.rank-2.json")
    assert [f["code"] for f in finished.findings(own)] == ["preflight.run.store_lost"], told
    assert "the store at host-a:29513" in finished.findings(own)[0]["message"], told
    assert finished.left_over == [], told


@pytest.mark.more
def test_a_host_whose_launcher_dies_is_named(two: list[Host], tmp_path: Path) -> None:
    deed = ("--set", "plugin.alone.deed=kill_launcher", "--set", "plugin.alone.by=2")
    finished = run_on(tmp_path, two, *PLUGINS, *deed)
    told = finished.told()
    assert ELSEWHERE["launcher_dies"].is_told_by(finished.findings()), told
    assert lost(finished) == {2: "host-b", 3: "host-b"}, told
    assert "its launcher" in finished.findings()[0]["message"], told
    assert finished.check("plugin.after")["summary"] == "2 members, sum 2", told
    assert finished.left_over == [], told


BOTH = [pytest.param(STATIC, id="static", marks=pytest.mark.more), pytest.param(C10D, id="c10d")]


@pytest.mark.parametrize("rendezvous", BOTH)
def test_a_supervisor_that_dies_on_another_host_is_named(
    rendezvous: Sequence[str], two: list[Host], tmp_path: Path
) -> None:
    """torchrun then ends its node: rank 2 goes, too, and is not to blame."""
    deed = ("--set", "plugin.alone.deed=kill_supervisor", "--set", "plugin.alone.by=3")
    finished = run_on(tmp_path, two, *PLUGINS, *deed, rendezvous=rendezvous)
    told = finished.told()
    assert ELSEWHERE["supervisor_dies_elsewhere"].is_told_by(finished.findings()), told
    assert lost(finished) == {3: "host-b"}, told
    assert finished.check("plugin.after")["summary"].startswith(("2 members", "3 members")), told


@pytest.mark.more
def test_rank_0_that_dies_is_named_by_each_node(two: list[Host], tmp_path: Path) -> None:
    deed = ("--set", "plugin.alone.deed=kill_supervisor", "--set", "plugin.alone.by=0")
    finished = two_ranks_on_each(tmp_path, two, *PLUGINS, *deed, served=True)
    told = finished.told()
    for name in ("report.rank-1.json", "report.rank-2.json"):
        found = finished.findings(finished.report_named(name))
        assert len(found) == 1 and found[0]["code"].startswith("preflight.run."), told
    beside = finished.findings(finished.report_named("report.rank-1.json"))
    assert ELSEWHERE["rank_0_dies"].is_told_by(beside), told
    assert finished.left_over == [], told


@pytest.mark.parametrize("rendezvous", BOTH)
@pytest.mark.more
def test_a_failure_ends_both_hosts_with_the_verdict(rendezvous: Sequence[str], two: list[Host], tmp_path: Path) -> None:
    finished = run_on(tmp_path, two, *PLUGINS, "--set", "plugin.alone.deed=raise", rendezvous=rendezvous, ranks=1)
    told = finished.told()
    assert finished.exit_codes == [1, 1], told
    assert finished.output.count("verdict: ERROR") == 1, told
    assert "Signal 9" not in finished.output and "StoreLost" not in finished.output, told
    assert finished.left_over == [], told


def test_hosts_with_one_stale_node_number_are_two_nodes(two: list[Host], tmp_path: Path) -> None:
    """NODE_RANK, carried from a batch script's environment to another host: each host's limits are its own."""
    run = Run(tmp_path)
    words = ["--only", "env.launch,node.limits", "--report", str(tmp_path), "--deadline", "60"]
    for rank, host in enumerate(two):
        env = running.environment(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=two[0].address, MASTER_PORT="29513", NODE_RANK="0"
        )
        run.start_rank(rank, words, env, host=host, before="prlimit --pid $PPID --nofile=40" if rank else "")
    finished = run.finish()
    told = finished.told()
    assert [node["node"] for node in finished.report["job"]["nodes"]] == ["host-a", "host-b"], told
    assert [(f["code"], f["where"]["node"]) for f in finished.findings()] == [("node.limits.nofile", "host-b")], told
