"""What `preflight rendezvous` makes of what the nodes have seen."""

import errno
from typing import Any

import pytest

from preflight.rendezvous import judge, port_owner, wire_format
from preflight.rendezvous.judge import NodeArrival, Observations
from preflight.rendezvous.node import NOTHING
from preflight.rendezvous.server import is_odd, reported
from preflight.sdk import reachability, tcp
from preflight.sdk.tcp import Connection, Reach

WORKERS_PORT = 41234


def to(address: str, source: str = "", error: str = "", kind: str = "", seconds: float = 0.001) -> Connection:
    return {"address": address, "source": source, "error": error, "kind": kind, "seconds": seconds}


def reach(*connections: Connection, resolved_s: float = 0.001, unresolved: str = "") -> Reach:
    return {"resolved_s": resolved_s, "unresolved": unresolved, "connections": list(connections)}


SILENT = to("10.0.0.1", error="timed out", kind="filtered", seconds=3.0)


def address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256 + 1}"


def arrival(number: int, **more: Any) -> NodeArrival:
    made: NodeArrival = {
        "node_rank": number, "nnodes": 4, "name": f"node-{number}", "full_name": f"node-{number}.cluster",
        "addresses": [address(number)], "port": WORKERS_PORT, "serves": number == 0, "nameless": "",
        "reach": reach(to(address(0), address(number))), "looked_up_s": {f"::ffff:{address(0)}": 0.001},
    }  # fmt: skip
    return {**made, **more}  # type: ignore[typeddict-item]  # its own keys


def seen(arrivals: list[NodeArrival], **more: Any) -> Observations:
    """The last one came last; all reach node 0."""
    fine = {i: [reach(to(address(0), arrival["addresses"][0]))] for i, arrival in enumerate(arrivals, 1)}
    made: Observations = {
        "host": "node-0", "port": 29500, "backend": "c10d", "waited_s": 40.0, "left": (),
        "targets": [(1, "node-0")], "arrivals": dict(enumerate(arrivals, 1)), "reached": fine,
    }  # fmt: skip
    return {**made, **more}  # type: ignore[typeddict-item]  # its own keys


def found(about: Observations) -> list[dict[str, Any]]:
    return [reported(finding).to_json() for finding in judge.judge(about)]


def told(about: Observations) -> list[tuple[str, str, dict[str, Any]]]:
    return [(finding["severity"], finding["code"].rpartition(".")[2], finding["where"]) for finding in found(about)]


def nodes(size: int, **of_one: Any) -> list[NodeArrival]:
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
    assert told({**about, "reached": reached}) == [("fail", "node_lost", {"node": "node-1"})]


def test_many_nodes_that_never_came_are_one_finding() -> None:
    about = seen([arrival(i, nnodes=1024) for i in range(1024) if not 100 <= i < 107 and i != 9])
    (finding,) = found(about)
    assert finding["message"].startswith(
        "nodes 9, 100-106 did not join within 40 s, expected all of 1,024 nodes; joined: 0 (no"
    )
    assert finding["message"].endswith("and 1,008 more") and len(finding["message"]) < 250


def test_where_node_0_expects_more_than_all_others_it_is_the_odd_one() -> None:
    arrivals = [arrival(i, nnodes=4 if i == 0 else 3) for i in range(3)]
    assert told(seen(arrivals)) == [("fail", "nnodes", {"node": "node-0"})]


def test_with_one_against_one_both_numbers_are_told() -> None:
    (finding,) = found(seen([arrival(0, nnodes=2), arrival(1, nnodes=3)]))
    assert finding["message"] == "--nnodes is 2 on node-0; 3 on node-1; expected the same on all nodes"
    assert finding["where"] == {"variable": "--nnodes"}


@pytest.mark.parametrize(
    ("bad", "slug", "where"),
    [
        ([1], "workers_port", [{"node": "node-1", "peer_node": "node-0"}]),
        ([1, 2, 3, 4, 5, 6, 7], "workers_port", [{"node": "node-0"}]),
        ([1, 2], "workers_port", [{"node": f"node-{i}", "peer_node": "node-0"} for i in (1, 2)]),
        ([1, 2, 3, 4], "workers_port", [{"node": "node-0"}]),
    ],
)
def test_filtered_ports_are_the_targets_where_most_say_so(
    bad: list[int], slug: str, where: list[dict[str, str]]
) -> None:
    about = seen(nodes(8))
    reached = {i: [reach(SILENT)] if i - 1 in bad else reaches for i, reaches in about["reached"].items()}
    assert told({**about, "reached": reached}) == [("fail", slug, culprit) for culprit in where]


def test_a_full_name_that_leads_elsewhere_is_no_firewall() -> None:
    about = seen(nodes(3))
    elsewhere = reach(to("10.9.9.9", error="connection refused", kind="refused"))
    ((severity, slug, where),) = told({**about, "reached": {**about["reached"], 3: [elsewhere]}})
    assert (severity, slug, where) == ("fail", "workers_name", {"node": "node-2", "peer_node": "node-0"})


def test_the_second_target_is_the_first_by_name() -> None:
    about = seen([arrival(i, full_name=f"node-{9 - i}") for i in range(4)], targets=[(1, "node-0"), (4, "node-6")])
    unknown = reach(unresolved="Name or service not known")
    reached = {i: [*reaches, reaches[0] if i == 4 else unknown] for i, reaches in about["reached"].items()}
    (finding,) = found({**about, "reached": reached})
    assert finding["where"] == {"node": "node-3"} and "node-6 does not resolve here" in finding["message"]


def test_a_connection_over_no_route_to_the_name_of_a_loopback_is_told_as_such() -> None:
    own = reach(to("127.0.1.1", error="connection refused", kind="refused"))
    finding = reported(judge.unreached(own, "node-0", 29500, "node-1")).to_json()
    assert finding["code"] == "preflight.rendezvous.loopback" and "{" not in finding["fix"]


@pytest.mark.parametrize("kind", ["refused", "filtered", "no_route", "reset", "other"])
def test_each_cause_has_its_own_cure(kind: str) -> None:
    slug = {"other": "unreachable"}.get(kind, kind)
    failed = reach(to("10.0.0.1", error="it failed", kind=kind))
    finding = reported(judge.unreached(failed, "node-0", 29500, "node-1")).to_json()
    assert finding["code"] == f"preflight.rendezvous.{slug}" and "{" not in finding["fix"]
    assert "10.0.0.1" in finding["message"] and "it failed" in finding["message"]


def test_the_holder_of_a_port_is_this_process() -> None:
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port_owner.problem(port)[0] == "taken"
        assert f"(process {os.getpid()} of " in port_owner.holder(port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert "its own connection goes out" in port_owner.holder(client.getsockname()[1])
    assert port_owner.problem(port) == ("", "")


def test_an_address_means_the_same_everywhere_or_is_left_out() -> None:
    listed = [to(address) for address in ("127.0.1.1", "10.0.0.1", "fe80::1", "fd00::1", "::1")]
    assert tcp.addresses(listed, False) == ("10.0.0.1",) and tcp.addresses(listed, True) == ("fd00::1",)


def test_two_that_stayed_with_one_number_are_both_told() -> None:
    about = seen([arrival(0, nnodes=3), arrival(1, nnodes=3), arrival(1, nnodes=3, name="node-7")])
    finding, missing = found(about)
    who = "node-1 (10.0.0.2) and node-7 (10.0.0.2)"
    assert finding["message"] == f"{who} were started with one --node-rank, 1, expected a different one for each"
    assert finding["where"] == {"variable": "--node-rank"} and missing["message"].startswith("node 2 did not join")


def test_while_the_number_of_nodes_is_not_known_nobody_is_missed() -> None:
    assert [slug for _, slug, _ in told(seen([arrival(0, nnodes=4), arrival(1, nnodes=2)]))] == ["nnodes"]


def at(*addresses: str) -> Reach:
    return reach(*(to(address, "10.0.9.9") for address in addresses))


def test_node_0_may_know_itself_by_other_addresses() -> None:
    arrivals = [arrival(0, reach=at("10.9.9.9")), *(arrival(i) for i in range(1, 4))]
    assert found(seen(arrivals)) == []


def test_nodes_that_share_an_address_are_alike() -> None:
    assert found(seen(nodes(4, reach=at(address(0), "10.0.5.5")))) == []


def test_the_one_node_that_knows_another_address_is_named() -> None:
    (finding,) = found(seen(nodes(4, reach=at("10.0.5.5"))))
    assert finding["where"] == {"node": "node-1"} and finding["severity"] == "warn"
    assert finding["message"] == "node-0 is 10.0.5.5, expected 10.0.0.1 as on 2 of 3 nodes"


def test_with_one_against_one_both_addresses_are_told() -> None:
    (finding,) = found(seen(nodes(3, reach=at("10.0.5.5"))))
    assert finding["where"] == {} and "10.0.5.5 on node-1; 10.0.0.1 on node-2" in finding["message"]


def test_who_serves_the_store_is_c10ds_question_only() -> None:
    both = [arrival(0, serves=False), arrival(1, serves=True), *(arrival(i) for i in (2, 3))]
    assert told(seen(both)) == [("fail", "not_host", {"node": "node-0"}), ("fail", "split", {"node": "node-1"})]
    assert told(seen(both, backend="static")) == []


def test_where_torch_has_no_such_rule_nobody_is_told() -> None:
    assert found(seen([arrival(i, serves=None) for i in range(4)])) == []


def test_node_0_behind_the_address_of_a_service_serves_all_the_same() -> None:
    arrivals = [arrival(0, reach=reach(to("10.96.0.7", address(0)))), *(arrival(i) for i in range(1, 4))]
    assert found(seen(arrivals)) == []


def test_static_rendezvous_gives_the_endpoints_name_to_the_workers() -> None:
    about = seen(nodes(3), backend="static")
    failed = {i: [reach(SILENT)] if i > 1 else reaches for i, reaches in about["reached"].items()}
    (finding,) = found({**about, "reached": failed})
    assert finding["code"].endswith("workers_port") and finding["evidence"] == {"name": "node-0"}


def test_of_two_nodes_the_pair_is_told() -> None:
    about = seen(nodes(2))
    failed = {**about["reached"], 2: [reach(SILENT)]}
    assert told({**about, "reached": failed}) == [("fail", "workers_port", {"node": "node-1", "peer_node": "node-0"})]


def test_a_second_address_that_refuses_harms_nobody_and_a_silent_one_does() -> None:
    refused = to("fd00::1", error="connection refused", kind="refused", seconds=1.0)
    assert found(seen(nodes(4, reach=reach(to(address(0), address(1)), refused)))) == []
    silent = to("fd00::1", error="timed out", kind="filtered", seconds=3.0)
    (finding,) = found(seen(nodes(4, reach=reach(to(address(0), address(1)), silent))))
    assert (finding["severity"], finding["where"]) == ("warn", {"node": "node-1"}) and "fd00::1" in finding["fix"]


@pytest.mark.parametrize(
    ("more", "slug", "words"),
    [
        (
            {"reach": {**reach(to(address(0), address(1))), "resolved_s": 2.0}},
            "slow_name",
            "resolving node-0 took 2.0 s",
        ),
        ({"looked_up_s": {"::ffff:10.0.0.1": 5.0}}, "slow_reverse", "the name of 10.0.0.1 took 5.0 s"),
        (
            {"looked_up_s": {"::ffff:10.0.0.1": None, "::ffff:10.0.0.2": 1.0}},
            "slow_reverse",
            "the same for 2 of 2 addresses",
        ),
    ],
)
def test_what_is_slow_is_told_of_the_node_that_waits(more: dict[str, Any], slug: str, words: str) -> None:
    (finding,) = found(seen(nodes(4, **more)))
    assert finding["code"].endswith(slug) and words in finding["message"] and finding["where"] == {"node": "node-1"}


def test_loopback_beside_an_address_is_not_the_cause() -> None:
    both = reach(to("127.0.1.1", error="connection refused", kind="refused"), SILENT)
    assert reported(judge.unreached(both, "node-0", 29500, "node-1")).code == "preflight.rendezvous.refused"


def test_a_name_without_an_answer_is_unresolved() -> None:
    nothing = reported(judge.unreached(NOTHING, "node-0", 29500, "node-1")).to_json()
    assert nothing["code"] == "preflight.rendezvous.unresolved"
    assert nothing["message"].startswith("no address of node-0 came in time")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError("timed out"), "filtered"),
        (OSError(errno.ETIMEDOUT, ""), "filtered"),
        (OSError(errno.ECONNREFUSED, ""), "refused"),
        (OSError(errno.EHOSTUNREACH, ""), "no_route"),
        (OSError(errno.ENETUNREACH, ""), "no_route"),
        (OSError(errno.ECONNRESET, ""), "reset"),
        (OSError(errno.EMFILE, ""), "other"),
        (OSError("no number"), "other"),
    ],
)
def test_errors_have_their_kinds(error: OSError, kind: str) -> None:
    assert tcp.kind(error) == kind


def test_where_there_is_a_connection_there_is_no_why() -> None:
    assert reachability.why(reach(to(address(0), address(1))), "node-0", 29500) == ""


def test_when_as_many_came_as_are_expected_no_more_are_waited_for() -> None:
    three = [arrival(i, nnodes=3) for i in (0, 1, 1)]
    assert not is_odd(dict(enumerate(three, 1)))  # node 1 was started again
    assert is_odd(dict(enumerate([*three, arrival(1, nnodes=3, name="node-7")], 1)))
    assert is_odd(dict(enumerate([arrival(0, nnodes=3), arrival(1, nnodes=2)], 1)))


def test_of_many_nodes_that_do_not_get_through_there_is_one_finding() -> None:
    about = seen([arrival(i, nnodes=1024) for i in range(1024)])
    failed = {i: [reach(SILENT)] if 2 <= i < 400 else reaches for i, reaches in about["reached"].items()}
    (finding,) = found({**about, "reached": failed})
    assert finding["where"] == {"peer_node": "node-0"} and "and 390 more: no connection" in finding["message"]


def test_a_node_whose_own_time_was_up_is_not_blamed() -> None:
    about = seen([arrival(i, nnodes=3) for i in range(2)])
    reached = {1: about["reached"][1]}
    (finding,) = found({**about, "reached": reached, "left": [2]})
    assert (
        finding["message"]
        == "node 2 did not join within 40 s, expected all of 3 nodes; joined: 0 (node-0) and 1 (node-1)"
    )


def test_a_host_whose_own_name_does_not_resolve_cannot_run_torchrun() -> None:
    about = seen(nodes(4, nameless="name or service not known", serves=None))
    assert told(about) == [("fail", "hostname_unresolved", {"node": "node-1"})]
    assert told({**about, "backend": "static"}) == []


def test_where_nobody_answered_there_is_no_verdict_of_health() -> None:
    about = seen(nodes(1))
    assert [slug for _, slug, _ in told({**about, "reached": {}})] == ["node_lost"]


GARBAGE: list[dict[str, Any]] = [
    {}, {"place": []}, {"node_rank": "1"}, {**arrival(1), "nnodes": 0}, {**arrival(1), "name": 7},
    {**arrival(1), "reach": {"connections": 5}}, {**arrival(1), "looked_up_s": [1]}, {**arrival(1), "node_rank": 10**9},
]  # fmt: skip


@pytest.mark.parametrize("entry", GARBAGE, ids=range(len(GARBAGE)))
def test_what_no_node_has_written_is_left_out(entry: dict[str, Any]) -> None:
    assert wire_format.arrival(entry) is None
    assert wire_format.reaches(entry, 1) is None and wire_format.place({"place": entry}) == 0


def test_what_a_node_has_written_comes_through() -> None:
    for number in (0, 3):
        assert wire_format.arrival(dict(arrival(number))) == arrival(number)
    sent = {"place": 3, "reached": [reach(SILENT)]}
    assert wire_format.reaches(sent, 1) == [reach(SILENT)] and wire_format.place(sent) == 3
    assert wire_format.reaches(sent, 2) is None


def test_a_number_of_nodes_that_was_mended_by_another_start_is_forgotten() -> None:
    about = seen([arrival(0, nnodes=2), arrival(1, nnodes=3), arrival(1, nnodes=2)])
    reached = {number: reaches for number, reaches in about["reached"].items() if number != 2}
    assert found({**about, "reached": reached}) == []


@pytest.mark.parametrize("entry", [{}, {"findings": 7}, {"findings": [7]}, {"findings": [{"severity": "fail"}]}, []])
def test_findings_that_node_0_has_not_published_are_refused(entry: Any) -> None:
    published = [reported(judge.unreached(reach(SILENT), "node-0", 29500, "node-1"))]
    assert wire_format.findings({"findings": [finding.to_json() for finding in published]}) == published
    with pytest.raises((KeyError, TypeError, ValueError)):
        wire_format.findings(entry)
