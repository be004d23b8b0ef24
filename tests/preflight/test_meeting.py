"""What `preflight rendezvous` makes of what the nodes have seen."""

from typing import Any

import pytest

from preflight.rendezvous import holder, judge, tcp
from preflight.rendezvous.host import as_json
from preflight.rendezvous.judge import Arrival, Seen
from preflight.rendezvous.tcp import Connection, Reach

WORKERS_PORT = 41234


def to(address: str, source: str = "", error: str = "", kind: str = "", seconds: float = 0.001) -> Connection:
    return {"address": address, "source": source, "error": error, "kind": kind, "seconds": seconds}


def reach(*connections: Connection, resolved_s: float = 0.001, unresolved: str = "") -> Reach:
    return {"resolved_s": resolved_s, "unresolved": unresolved, "connections": list(connections)}


SILENT = to("10.0.0.1", error="timed out", kind="filtered", seconds=3.0)


def address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256 + 1}"


def arrival(number: int, **more: Any) -> Arrival:
    made: Arrival = {
        "node_rank": number, "nnodes": 4, "name": f"node-{number}", "full_name": f"node-{number}.cluster",
        "addresses": [address(number)], "port": WORKERS_PORT, "serves": number == 0,
        "reach": reach(to(address(0), address(number))), "looked_up_s": {f"::ffff:{address(0)}": 0.001},
    }  # fmt: skip
    return {**made, **more}  # type: ignore[typeddict-item]  # its own keys


def seen(arrivals: list[Arrival], **more: Any) -> Seen:
    """The last one came last; all reach node 0."""
    fine = {i: [reach(to(address(0), one["addresses"][0]))] for i, one in enumerate(arrivals, 1)}
    made: Seen = {
        "host": "node-0", "port": 29500, "backend": "c10d", "waited_s": 40.0, "targets": [1],
        "arrivals": dict(enumerate(arrivals, 1)), "reached": fine,
    }  # fmt: skip
    return {**made, **more}  # type: ignore[typeddict-item]  # its own keys


def found(about: Seen) -> list[dict[str, Any]]:
    return [as_json(finding) for finding in judge.judge(about)]


def told(about: Seen) -> list[tuple[str, str, dict[str, Any]]]:
    return [(one["severity"], one["code"].rpartition(".")[2], one["where"]) for one in found(about)]


def nodes(size: int, **of_one: Any) -> list[Arrival]:
    """Node 1 has what is given."""
    return [arrival(i, **({"nnodes": size} | (of_one if i == 1 else {}))) for i in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 1024])
def test_nodes_that_meet_give_no_finding(size: int) -> None:
    assert found(seen(nodes(size))) == []


def test_two_agents_on_one_machine_are_sound() -> None:
    """The second takes itself for the endpoint's host, finds the port taken, and becomes a client."""
    same = reach(to(address(0), address(0)))
    assert found(seen(nodes(2, name="node-0", serves=True, reach=same, addresses=[address(0)]))) == []


def test_ipv6_beside_the_same_ipv4_is_sound() -> None:
    both = reach(to("fd00::1", "fd00::2"), to(address(0), address(1)))
    assert found(seen(nodes(4, reach=both))) == []


def test_a_node_of_an_earlier_start_is_forgotten_and_one_that_went_is_told() -> None:
    about = seen([*nodes(4), arrival(1)])
    reached = dict(about["reached"])
    del reached[2]  # node 1's first process
    assert found({**about, "reached": reached}) == []
    del reached[5]
    assert told({**about, "reached": reached}) == [("fail", "went", {"node": "node-1"})]


def test_many_nodes_that_never_came_are_one_finding() -> None:
    about = seen([arrival(i, nnodes=1024) for i in range(1024) if not 100 <= i < 107 and i != 9])
    (one,) = found(about)
    assert one["message"].startswith(
        "nodes 9, 100-106 never came within 40 s, expected all of 1,024 nodes; came: 0 (no"
    )
    assert one["message"].endswith("and 1008 more") and len(one["message"]) < 250


def test_where_node_0_expects_more_than_all_others_it_is_the_odd_one() -> None:
    arrivals = [arrival(i, nnodes=4 if i == 0 else 3) for i in range(3)]
    assert told(seen(arrivals)) == [("fail", "nnodes", {"node": "node-0"})]


def test_with_one_against_one_both_numbers_are_told() -> None:
    (one,) = found(seen([arrival(0, nnodes=2), arrival(1, nnodes=3)]))
    assert one["message"] == "--nnodes is 2 on node-0; 3 on node-1; expected the same on all nodes"
    assert one["where"] == {"variable": "--nnodes"}


@pytest.mark.parametrize(
    ("bad", "slug", "where"),
    [
        ([1], "workers_port", [{"node": "node-1", "peer_node": "node-0"}]),
        ([1, 2, 3, 4, 5, 6, 7], "workers_port", [{"node": "node-0"}]),
        ([1, 2], "workers_port", [{"node": f"node-{i}", "peer_node": "node-0"} for i in (1, 2)]),
    ],
)
def test_filtered_ports_are_the_targets_where_all_say_so(
    bad: list[int], slug: str, where: list[dict[str, str]]
) -> None:
    about = seen(nodes(8))
    reached = {i: [reach(SILENT)] if i - 1 in bad else one for i, one in about["reached"].items()}
    assert told({**about, "reached": reached}) == [("fail", slug, one) for one in where]


def test_a_full_name_that_leads_elsewhere_is_no_firewall() -> None:
    about = seen(nodes(3))
    elsewhere = reach(to("10.9.9.9", error="connection refused", kind="refused"))
    ((severity, slug, where),) = told({**about, "reached": {**about["reached"], 3: [elsewhere]}})
    assert (severity, slug, where) == ("fail", "workers_name", {"node": "node-2", "peer_node": "node-0"})


def test_the_second_target_is_the_first_by_name() -> None:
    about = seen([arrival(i, full_name=f"node-{9 - i}") for i in range(4)], targets=[1, 4])
    unknown = reach(unresolved="Name or service not known")
    reached = {i: [*one, one[0] if i == 4 else unknown] for i, one in about["reached"].items()}
    (one,) = found({**about, "reached": reached})
    assert one["where"] == {"node": "node-3"} and "node-6 does not resolve here" in one["message"]


def test_a_connection_over_no_route_to_the_name_of_a_loopback_is_told_as_such() -> None:
    own = reach(to("127.0.1.1", error="connection refused", kind="refused"))
    finding = as_json(judge.unreached(own, "node-0", 29500, "node-1"))
    assert finding["code"] == "preflight.rendezvous.loopback" and "{" not in finding["fix"]


@pytest.mark.parametrize("kind", ["refused", "filtered", "no_route", "reset", "other"])
def test_each_cause_has_its_own_cure(kind: str) -> None:
    slug = {"other": "unreachable"}.get(kind, kind)
    failed = reach(to("10.0.0.1", error="it failed", kind=kind))
    finding = as_json(judge.unreached(failed, "node-0", 29500, "node-1"))
    assert finding["code"] == f"preflight.rendezvous.{slug}" and "{" not in finding["fix"]
    assert "10.0.0.1" in finding["message"] and "it failed" in finding["message"]


def test_the_holder_of_a_port_is_this_process() -> None:
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert holder.problem(port)[0] == "taken"
        assert f"(process {os.getpid()} of " in holder.holder(port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert "its own connection goes out" in holder.holder(client.getsockname()[1])
    assert holder.problem(port) == ("", "")


def test_an_address_means_the_same_everywhere_or_is_left_out() -> None:
    listed = [to(one) for one in ("127.0.1.1", "10.0.0.1", "fe80::1", "fd00::1", "::1")]
    assert tcp.addresses(listed, False) == ("10.0.0.1",) and tcp.addresses(listed, True) == ("fd00::1",)
