"""Of NCCL's ranks that could not connect: whom they could not reach."""

from dataclasses import replace

import pytest

from preflight.check import Job, Node, Outcome, Run
from preflight.checks.comm import init
from tests.checks.comm.failed_ranks import EXTENDED, NODES, failed, info, judged, warn

REFUSED = [
    "Net : Connect to 10.0.0.3<41234> failed : No route to host",
    "socketStartConnect: Connect to 10.0.0.3<41234> failed : No route to host",
    "socketPollConnect: Connect to 10.0.0.3<41234> returned 113(No route to host) errno 115(Operation now in progress)",
    "socketPollConnect: connect to 10.0.0.3<41234> returned No route to host, exceeded error retry count after 35",
    "socketStartConnect: connect to 10.0.0.3<41234> failed : No route to host",
    "ncclOsSocketPollConnect: Connect to 10.0.0.3<41234> returned 113(No route to host)",
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_node_that_several_cannot_reach_is_named(text: str) -> None:
    (finding,) = judged({0: warn(text), 2: warn(text), 6: warn(text)})
    assert (finding["code"], finding["where"]) == ("comm.init.unreachable", {"node": "node-2"})
    assert finding["message"] == (
        "ranks 0,2,6 could not connect to node-2 at 10.0.0.3 (No route to host), expected all nodes to be reached"
    )
    assert finding["noticed_by"] == "0,2,6"


def test_a_node_that_cannot_reach_several_is_named() -> None:
    (finding,) = judged({0: warn(REFUSED[0]), 1: warn(REFUSED[0].replace("0.3", "0.2"))})
    assert finding["where"] == {"node": "node-0"}


def test_a_rank_that_left_for_a_reason_of_its_own_is_not_unreachable() -> None:
    """What listened there is gone, and refuses."""
    refused = warn(REFUSED[0].replace("No route to host", "Connection refused"))
    left = failed("", reason="RuntimeError: CUDA error: no kernel image is available for execution on the device")
    assert judged({0: refused, 2: refused, 4: replace(left, in_collective=False)}) == []
    assert len(judged({0: refused, 2: refused, 4: left})) == 1


def test_two_bad_pairs_without_a_common_end_name_nobody() -> None:
    elsewhere = REFUSED[0].replace("10.0.0.3", "10.9.9.9")
    (finding,) = judged({0: warn(REFUSED[0]), 2: warn(REFUSED[0]), 6: warn(elsewhere)})
    assert finding["where"] == {} and "and 1 more" in finding["message"]


def test_of_two_nodes_nobody_can_tell_which() -> None:
    (finding,) = judged({0: warn(REFUSED[0])})
    assert finding["where"] == {} and "node-2" in finding["message"]


def test_a_rank_that_still_tries_when_its_time_is_over() -> None:
    """NCCL tries for a minute; the check's collective gives up before."""
    text = info("socketPollConnect: connect to 10.0.0.3<41234> returned No route to host, retrying (20/34) after sleep")
    hung = failed(text, kind="timed_out")
    (finding,) = judged({0: hung, 2: hung, 6: hung})
    assert finding["where"] == {"node": "node-2"}


def test_an_address_that_all_nodes_have_names_none_of_them() -> None:
    """docker0's."""
    text = warn(REFUSED[0].replace("10.0.0.3", "172.17.0.1"))
    ended = {rank: failed(text if rank in (0, 2) else "") for rank in range(8)}
    placed = tuple(
        Node(name, at, tuple(ranks), (f"10.0.0.{at + 1}", "172.17.0.1"))
        for at, (name, ranks) in enumerate(NODES.items())
    )
    (finding,) = init.judge({}, Run(Job("torchrun", 8, "nccl", placed), tuple(ended), ended))
    assert finding.where == {}
    assert finding.message.startswith(
        "ranks 0,2 could not connect to 172.17.0.1, an address of 4 nodes (No route to host)"
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("connect returned Connection timed out, exceeded error retry count (34)", "Connection timed out"),
        ("exceeded retries (20000)", "exceeded retries"),
        ("exceeded timeouts (3)", "exceeded timeouts"),
    ],
)
def test_old_texts_without_an_address(said: str, words: str) -> None:
    text = warn(f"socketPollConnect: {said}")
    (finding,) = judged({0: text, 2: text})
    assert finding["where"] == {} and finding["noticed_by"] == "0,2"
    assert finding["message"].startswith(f"ranks 0,2 could not connect ({words})")


OR_VICTIM = [
    "Cuda failure 719 'unspecified launch failure'",
    "Error while attaching to shared memory segment /dev/shm/nccl-abc (size 4096), error: No such file (2)",
]


@pytest.mark.parametrize("text", OR_VICTIM)
def test_what_victims_may_say_counts_where_nobody_explains_them(text: str) -> None:
    assert [finding["where"]["rank"] for finding in judged({2: warn(text), 3: warn(text)})] == [2, 3]
    (finding,) = judged({2: warn(text), 5: warn(EXTENDED)})
    assert (finding["where"]["rank"], finding["noticed_by"]) == (5, "0-4,6-7")
    assert judged({2: warn(text), 5: Outcome("crashed", signal="SIGKILL")}) == []
    died = Outcome("crashed", signal="SIGABRT", log_tail=warn(text))
    assert [finding["where"]["rank"] for finding in judged({2: warn(text), 5: died})] == [5]


@pytest.mark.parametrize(
    "gone", [Outcome("crashed", signal="SIGSEGV"), Outcome("timed_out", state="T"), Outcome("lost")]
)
def test_who_is_dead_explains_a_refused_connection(gone: Outcome) -> None:
    text = warn(REFUSED[0].replace("No route to host", "Connection refused"))
    assert judged({4: gone, 0: text, 2: text}) == []


def test_a_cause_explains_a_refused_connection() -> None:
    found = judged({4: warn(EXTENDED), 0: warn(REFUSED[0]), 2: warn(REFUSED[0])})
    assert [finding["code"] for finding in found] == ["comm.init.shared_memory"]


@pytest.mark.parametrize(
    "how", [info("Bootstrap : Using lo:127.0.0.1<0>"), info("NCCL_SOCKET_IFNAME set by environment to lo")]
)
def test_a_rank_that_took_the_loopback(how: str) -> None:
    text = warn("socketPollConnect: Connect to 127.0.0.1<41234> returned 111(Connection refused) errno 115()")
    (finding,) = judged({0: text, 4: how + warn("socketProgress: Connection closed by remote peer gpu02<41234>")})
    assert finding["where"] == {"node": "node-2", "rank": 4, "variable": "NCCL_SOCKET_IFNAME"}
    assert "loopback" in finding["message"] and finding["noticed_by"] == "0"
    (unknown,) = judged({0: text})
    assert unknown["where"] == {"variable": "NCCL_SOCKET_IFNAME"} and unknown["noticed_by"] == "0"


def test_the_loopback_is_right_on_one_node() -> None:
    text = warn("Net : Connect to 127.0.0.1<41234> failed : Connection refused")
    (finding,) = judged({0: text}, {"node-0": range(8)})
    assert finding["where"] == {} and "could not connect to 127.0.0.1" in finding["message"]
