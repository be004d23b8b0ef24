"""What the command `preflight rendezvous` finds: see tests/test_rendezvous_command.py."""

from typing import Any

from tests.faults.row import Fault, elsewhere

SECONDS = {
    **dict.fromkeys(("name_unknown", "name_is_loopback", "no_route", "network_down", "nobody_serves", "filtered"), 3),
    **dict.fromkeys(("other_listener", "other_store", "not_here"), 27),
    "never_came": 36,
    "silent_ipv6": 27,
    "silent_ipv6_first": 27,
    "dead_dns": 16,
}
"""--timeout of those that wait in vain."""
ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""


def _row(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    """Some hosts, `--endpoint host-a:29600`; the finding is that of the node that tells it first, or node 0's. The
    deadline is --timeout."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    found = tuple(find.replace(" ", " preflight.rendezvous.") for find in finds)
    return elsewhere(
        f"meet_{name}", story, made, *found, **{"exit_code": exit_code, "deadline_s": SECONDS.get(name, 90), **more}
    )


_A, _B = {"node": "host-a"}, {"node": "host-b"}
ELSEWHERE: tuple[Fault, ...] = (
    # tests/rendezvous/test_etcd.py
    _row("etcd_client", "torch's client of etcd is not installed.", "an environment without python-etcd",
         "fail etcd_client", culprit={}, world=1, says="python-etcd is not installed here, expected it for"),
    _row("etcd_v2", "etcd does not serve the API that torch speaks.", "a real etcd 3.4 as it starts by default",
         "fail etcd_v2", culprit={}, world=1, says="does not serve version 2 of its API, which torch needs"),
    _row("etcd_secure", "etcd wants TLS, and torchrun is told nothing of it.", "a real etcd with --auto-tls",
         "fail etcd_secure", culprit={}, world=1, says="wants TLS, expected plain HTTP"),
    _row("not_etcd", "Another web server has etcd's port.", "python -m http.server", "fail not_etcd", culprit={},
         world=1, says="answers /version with status 404, expected etcd's own version"),
    _row("etcd_stale", "An earlier job with the same --rdzv-id has left its rendezvous in etcd.",
         "the key that torch writes, in a real etcd", "warn etcd_stale", culprit={}, world=1,
         says="etcd holds a rendezvous of --rdzv-id job already, for "),
    _row("name_unknown", "One host does not know the endpoint's name.", "its /etc/hosts", "fail unresolved",
         culprit=_B, says="host-a does not resolve here: "),
    _row("name_is_loopback", "To one host the endpoint is 127.0.1.1.", "its /etc/hosts", "fail loopback", culprit=_B,
         says="host-a is this host itself here"),
    _row("no_route", "One host has no route to the endpoint.", "`ip route add unreachable`", "fail no_route",
         culprit=_B, says="no connection to port 29600 of 10.77.0.1 (no route to host after "),
    _row("network_down", "One host's interface is down.", "`ip link set eth0 down`", "fail no_route", culprit=_B,
         says="(network is unreachable after 0.0 s)"),
    _row("nobody_serves", "Node 0 was not started.", "one of two nodes is", "fail refused", culprit=_B,
         says="(connection refused after 0.0 s), expected node 0's store at host-a:29600"),
    _row("filtered", "The endpoint's port is filtered.", "`iptables -j DROP` on one host",
         "fail filtered", culprit=_B, says="of 10.77.0.1 (timed out after "),
    _row("port_taken", "Another process listens at the port on node 0.", "a listening socket", "fail port_taken",
         culprit=_A, says="port 29600 of this node is taken by python"),
    _row("port_refused", "Node 0 may not listen at a low port.", "another user, and port 80", "fail port_refused",
         culprit=_A, says="this node may not listen at port 80 (permission denied)"),
    _row("other_listener", "Something else listens at the endpoint: it is silent, or talks.",
         "a server on host-a that accepts, and one that answers as HTTP does", "fail other_listener", culprit=_B,
         says="what listens at host-a:29600 (10.77.0.1) does not answer as torch's store does: "),
    _row("other_store", "Another job's store is at the endpoint.", "a TCPStore on host-a", "fail other_store",
         culprit=_B, says="but does not say that it is node 0's"),
    _row("not_here", "The endpoint is another host than node 0.", "`--endpoint host-b:29603`", "fail not_here",
         culprit=_A, says="expected host-b to be node 0 (host-a)"),
    _row("never_came", "Three of four nodes were started.", "`--nnodes 4` on three hosts", "fail never_joined",
         culprit={}, says="s, expected all of 4 nodes; joined: 0 (host-a), 1 (host-b) and 3 (host-c)", more=True),
    _row("two_with_one_rank", "Two nodes have one rank.", "`--node-rank 1` on two hosts", "fail duplicate_node_rank",
         "fail never_joined", culprit={}, says="host-b (10.77.0.2) and host-c (10.77.0.3) were started with one"),
    _row("other_nnodes", "One node expects fewer.", "`--nnodes 2` on one of three hosts", "fail nnodes", culprit=_B,
         says="started with --nnodes 2, expected 3 as on 2 of 3 nodes"),
    _row("node_went", "A node is killed while the others are waited for.", "SIGKILL", "fail node_lost", culprit=_B,
         says="node 1 joined, then stopped responding before all had joined"),
    _row("other_address", "One host knows the endpoint by another address.", "its /etc/hosts, among four hosts",
         "warn different_addresses", culprit={"node": "host-d"},
         says="host-a is 10.77.0.101, expected 10.77.0.1 as on 2 of"),
    _row("silent_ipv6", "The endpoint's second address, of IPv6, does not answer.", "`ip6tables -j DROP` on one host",
         "warn silent_address", culprit=_B, says="no connection to host-a at fd00:77::1 (timed out after "),
    _row("silent_ipv6_first", "The endpoint's first address, of IPv6, does not answer.", "the same, and gai.conf",
         "fail silent_address", culprit=_B, says="torch tries it first, and waits there: "),
    _row("slow_reverse", "Node 0's DNS server does not answer, so that each client costs torch's store seconds.",
         "its resolv.conf", "warn slow_reverse", culprit=_A, says="looking up the name of 10.77.0."),
    _row("ephemeral_filtered", "Node 0 lets the endpoint's port through and nothing else.",
         "`iptables -j DROP` on host-a", "fail workers_port", culprit=_A, says="host-b and host-c: no connection to"),
    _row("full_name_unknown", "The others do not know node 0 by its full name, which c10d gives to the workers.",
         "`host-a.cluster` in its own /etc/hosts only", "fail workers_name", culprit=_A,
         says="host-a.cluster does not resolve here"),
    _row("two_servers", "A host takes itself for the endpoint's host.",
         "its own name stands for node 0's address in its /etc/hosts", "fail split", culprit=_B,
         says="torchrun would take this node for 10.77.0.1"),
    _row("nameless", "A host does not know its own name, and torchrun ends there at once.", "its /etc/hosts",
         "fail hostname_unresolved", culprit=_B, says="torchrun looks up the node's own name, host-b, and fails: "),
    _row("store_garbage", "Somebody else writes into node 0's store.", "an entry that is no JSON, from another host",
         "fail foreign", culprit={}, says="node 0's store at host-a:29600 has an entry that is not preflight's: "),
    _row("dead_dns", "Node 0's DNS server does not answer, by default for 10 s.", "its resolv.conf",
         "fail slow_reverse", culprit=_A, says="and torch's store does so for every client"),
    _row("no_server", "Node 0 does not know itself by the endpoint.", "the endpoint is a second address of host-a",
         "fail not_host", culprit=_A, says="torchrun would not take this node for 10.77.0.101"),
)  # fmt: skip
