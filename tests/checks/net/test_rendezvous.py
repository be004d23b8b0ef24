from collections.abc import Mapping
from typing import Any

import pytest

from preflight import testing
from preflight.check import Context, Skip
from preflight.checks.net import rendezvous
from preflight.checks.net.rendezvous import Facts
from preflight.core.job import Job, Node
from preflight.sdk import tcp
from tests import running
from tests.faults import ELSEWHERE


def to(address: str, source: str, seconds: float = 0.0002, error: str = "") -> tcp.Connection:
    kind = {"timed out": "filtered", "connection refused": "refused"}.get(error, "other") if error else ""
    return {"address": address, "seconds": seconds, "source": "" if error else source, "error": error, "kind": kind}


def facts_of(*connections: tcp.Connection, **more: Any) -> Facts:
    facts: Facts = {
        "name": "node-0", "port": 29500, "resolved_s": 0.001, "unresolved": "", "connections": list(connections),
        "interface": "eth0", "looked_up_s": {"::ffff:10.0.0.1": 0.001}, "patience_s": 4.0,
        "gloo_address": "10.0.0.9",
    }  # fmt: skip
    return {**facts, **more}  # type: ignore[typeddict-item]  # its own keys


def cluster(size: int, **of_one: Any) -> dict[int, Facts]:
    """A rank a node; node 0 has the store. Node 1 has what is given."""
    facts = {rank: facts_of(to("10.0.0.1", f"10.0.{1 + rank // 256}.{rank % 256}")) for rank in range(size)}
    facts[0] = facts_of(to("10.0.0.1", "10.0.0.1"))
    return {**facts, 1: {**facts[1], **of_one}} if of_one else facts  # type: ignore[typeddict-item]  # its own keys


def judged(facts: Mapping[int, Facts], **more: Any) -> list[dict[str, Any]]:
    return testing.judge(rendezvous, facts, nodes={f"node-{rank}": (rank,) for rank in facts}, **more)


def named(facts: Mapping[int, Facts], **more: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (finding["severity"], finding["code"].rpartition(".")[2], finding["where"]) for finding in judged(facts, **more)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 1024])
def test_a_sound_cluster_gives_no_finding(size: int) -> None:
    assert judged(cluster(size)) == []


def test_one_host_with_several_nodes_may_use_loopback() -> None:
    facts = {rank: facts_of(to("127.0.0.1", "127.0.0.1"), gloo_address="127.0.1.1") for rank in range(4)}
    assert judged(facts) == []


def test_one_node_behind_the_address_of_a_service_may_be_loopback_to_itself() -> None:
    assert judged({0: facts_of(to("10.96.0.7", "10.0.0.1"), gloo_address="127.0.1.1")}) == []


SILENT = to("10.0.0.1", "", 4.0, "timed out")
REFUSED = to("10.0.0.1", "", 0.0002, "connection refused")


@pytest.mark.parametrize("failed", [SILENT, REFUSED])
def test_the_one_node_that_cannot_connect_is_named(failed: tcp.Connection) -> None:
    assert named(cluster(4, connections=[failed])) == [("fail", "unreachable", {"node": "node-1"})]


@pytest.mark.parametrize(
    ("kind", "cure"),
    [("refused", "ss -ltnp 'sport = :29500'"), ("filtered", "ping 10.0.0.1"), ("no_route", "ip route get 10.0.0.1")],
)
def test_each_cause_has_its_own_cure(kind: str, cure: str) -> None:
    failed = {**to("10.0.0.1", "", 0.1, "it failed"), "kind": kind}
    (found,) = judged(cluster(4, connections=[failed]))
    assert cure in found["fix"] and "{" not in found["fix"]


def test_where_most_cannot_connect_nobody_is_named() -> None:
    facts = cluster(8) | {rank: facts_of(SILENT) for rank in range(1, 8)}
    (found,) = judged(facts)
    assert (found["where"], found["noticed_by"]) == ({"variable": "MASTER_ADDR"}, "1-7")
    assert found["message"] == (
        "node-1, node-2, node-3 and 4 more cannot connect to node-0 at 10.0.0.1, port 29500 (timed out after 4 s), "
        "expected a connection as preflight has"
    )


def test_with_one_against_one_nobody_is_named() -> None:
    (found,) = judged(cluster(2, connections=[SILENT]))
    assert found["where"] == {"variable": "MASTER_ADDR"} and "node-1 cannot" in found["message"]


def test_a_second_address_that_refuses_harms_nobody() -> None:
    """So does one without a route, as an IPv6 address in a network that has none."""
    for error in ("connection refused", "network is unreachable"):
        second = to("fd00::1", "", 0.0001, error)
        assert judged(cluster(4, connections=[to("10.0.0.1", "10.0.0.2"), second])) == []
    late = to("fd00::1", "", 1.04, "connection refused")
    assert judged(cluster(4, connections=[to("10.0.0.1", "10.0.0.2"), late])) == []


def test_a_second_address_that_is_silent_is_told_with_the_one_to_use() -> None:
    second = to("fd00::1", "", 4.0, "timed out")
    (found,) = judged(cluster(4, connections=[second, to("10.0.0.1", "10.0.0.2")]))
    assert found["where"] == {"node": "node-1"} and found["severity"] == "warn"
    assert found["fix"] == "Set MASTER_ADDR to 10.0.0.1, or remove fd00::1 from node-0 (DNS, /etc/hosts)."


def test_the_odd_address_is_named_by_majority() -> None:
    other = [to("10.9.9.9", "10.0.0.2")]
    assert named(cluster(4, connections=other)) == [("warn", "different_addresses", {"node": "node-1"})]


def test_with_one_address_against_another_both_sides_are_told() -> None:
    (found,) = judged(cluster(3, connections=[to("10.9.9.9", "10.0.0.2")]))
    assert found["where"] == {}
    assert found["message"] == "node-0 is 10.9.9.9 on node-1; 10.0.0.1 on node-2; expected the same on all nodes"


def test_more_addresses_of_the_same_host_are_no_harm() -> None:
    more = [to("10.0.0.1", "10.0.0.2"), to("10.9.9.9", "10.0.0.2"), to("fd00::1", "fd00::2"), to("fe80::1%eth0", "")]
    assert judged(cluster(4, connections=more)) == []


def test_what_means_the_host_itself_is_not_compared() -> None:
    """A link-local address, or loopback beside the real one, as some systems add them to their own name."""
    here = {rank: to(f"fe80::{rank}%eth0", "", 0.0, "invalid argument") for rank in range(4)}
    facts = cluster(4)
    assert judged({rank: facts_of(*facts[rank]["connections"], here[rank]) for rank in facts}) == []


def test_the_store_s_own_host_may_know_itself_by_others() -> None:
    for own in (to("127.0.1.1", "127.0.0.1"), to("10.9.9.9", "10.9.9.9")):
        assert judged(cluster(4) | {0: facts_of(own)}) == []


def far(*milliseconds: float) -> dict[int, Facts]:
    times = enumerate(milliseconds, 1)
    return cluster(1) | {rank: facts_of(to("10.0.0.1", f"10.0.1.{rank}", ms / 1000)) for rank, ms in times}


def test_who_is_much_farther_than_the_others_is_named() -> None:
    (found,) = judged(far(0.2, 40.0, 0.3, 0.2))
    assert (found["severity"], found["where"]) == ("warn", {"node": "node-2"})
    assert found["message"] == "connecting to 10.0.0.1 takes 40 ms, expected about 0.2 ms as on most nodes"
    assert named(far(0.2, 40.0)) == [("warn", "slow_connect", {"node": "node-2"})]


@pytest.mark.parametrize("milliseconds", [(50,), (50, 60, 90), (0.1, 9, 0.1), (6, 6, 50)], ids=str)
def test_distances_that_are_normal(milliseconds: tuple[float, ...]) -> None:
    """Alone; all far; within a site; less than ten times as far."""
    assert judged(far(*milliseconds)) == []


def test_the_distance_is_an_option() -> None:
    assert named(far(0.1, 9, 0.1), settings={"far_s": 0.005}) == [("warn", "slow_connect", {"node": "node-2"})]


@pytest.mark.parametrize(
    ("backend", "others", "severity"),
    [
        ("gloo", "10.0.0.9", "warn"),  # it connects to them, not they to it
        ("gloo", "192.168.0.9", "fail"),
        ("gloo", "2001:db8::9", "fail"),  # smaller, but of another family
        ("gloo", None, "warn"),
        ("nccl", "192.168.0.9", "info"),
    ],
)
def test_a_host_name_that_is_loopback_harms_gloo(backend: str, others: str | None, severity: str) -> None:
    facts = cluster(3, gloo_address="127.0.1.1")
    for rank in (0, 2):
        facts[rank]["gloo_address"] = others
    assert named(facts, backend=backend) == [(severity, "loopback", {"node": "node-1"})]
    assert judged(cluster(3, gloo_address=None), backend=backend) == []


def test_two_hosts_at_loopback_do_not_reach_each_other() -> None:
    facts = cluster(4, gloo_address="127.0.1.1")
    facts[3]["gloo_address"] = "127.0.0.1"
    assert named(facts) == [("fail", "loopback", {"node": "node-1"}), ("fail", "loopback", {"node": "node-3"})]
    facts[3]["connections"] = facts[1]["connections"]  # two nodes on one host do
    assert [severity for severity, _, _ in named(facts)] == ["warn", "warn"]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("size", [2, 1024])
def test_where_all_hosts_names_are_loopback_none_is_named(size: int, backend: str) -> None:
    """So some installers leave every host."""
    facts = {
        rank: facts_of(*of_rank["connections"], gloo_address="127.0.1.1") for rank, of_rank in cluster(size).items()
    }
    (found,) = judged(facts, backend=backend)
    assert (found["severity"], found["where"]) == ("fail" if backend == "gloo" else "info", {})
    assert found["message"].endswith(f"an address that other nodes reach; the same on all {size:,} nodes")


def test_a_silent_ipv6_address_of_which_nobody_knows_whose_fault_it_is() -> None:
    second = to("fd00::1", "", 4.0, "timed out")
    found = judged(cluster(2, connections=[to("10.0.0.1", "10.0.0.2"), second]))
    assert ELSEWHERE["silent_ipv6_address"].is_told_by(found) and found[0]["noticed_by"] == "1", found


def test_slow_look_ups_are_told_in_one_finding() -> None:
    slow = {"::ffff:10.0.0.1": 0.001, "::ffff:10.0.0.2": None, "::ffff:10.0.0.3": 5.0}
    (found,) = judged(cluster(3, looked_up_s=slow))
    assert (found["severity"], found["where"]) == ("warn", {"node": "node-1"})
    assert found["message"] == (
        "looking up the name of 10.0.0.2 did not end within 4 s, expected less than 0.5 s; so for 2 of 3 addresses"
    )
    assert "getent hosts ::ffff:10.0.0.2;" in found["fix"]


@pytest.mark.parametrize(("seconds", "count"), [(0.4, 0), (5.0, 1), (None, 1)])
def test_a_name_that_resolves_slowly_is_told(seconds: float | None, count: int) -> None:
    assert named(cluster(3, resolved_s=seconds)) == [("warn", "slow_name", {"node": "node-1"})] * count


class Page:
    def doing(self, what: str, where: Mapping[str, Any]) -> None: ...
    def enter(self, operation: str, shape: str) -> None: ...
    def leave(self) -> None: ...


def measured(endpoint: tuple[str, int] | None) -> Facts:
    def never() -> Any:
        raise AssertionError("a quick check needs no torch")

    job = Job("env", 1, "gloo", (Node("node-0", 0, (0,)),))
    return rendezvous.measure(Context("net.rendezvous", job, 0, 0, (0,), {}, 5.0, Page(), never, never, endpoint))


def test_a_port_where_nobody_listens() -> None:
    facts = measured(("127.0.0.1", running.free_port()))
    assert named({0: facts}) == [("fail", "unreachable", {"variable": "MASTER_ADDR"})]


def test_without_a_place_to_meet_it_stands_aside() -> None:
    with pytest.raises(Skip, match="no launcher"):
        measured(None)
