"""What the checks of the family `net` find."""

from tests.faults.row import Fault, elsewhere

RENDEZVOUS = (
    # tests/checks/net/test_rendezvous_hosts.py
    elsewhere("reverse_look_up_hangs", "The DNS server of the store's host does not answer.",
              "its resolv.conf names a machine that nothing comes back from",
              "warn net.rendezvous.slow_reverse", culprit={"node": "host-a"}, exit_code=0, more=True),
    elsewhere("name_unknown", "One host does not know the name in MASTER_ADDR.", "out of its /etc/hosts in mid-run",
              "fail net.rendezvous.unresolved", culprit={"node": "host-b"}),
    elsewhere("name_resolves_slowly", "On one host each look-up takes a second.",
              "`hosts: dns files` and a DNS server that does not answer", "warn net.rendezvous.slow_name",
              "warn net.rendezvous.slow_reverse", culprit={"node": "host-b"}, exit_code=0),
    elsewhere("silent_address", "MASTER_ADDR has a second address, an IPv6 one, that one host gets no answer from.",
              "`ip6tables -j DROP` on that host (and REJECT on another, which is no harm)",
              "warn net.rendezvous.silent_address", culprit={"node": "host-b"}, exit_code=0),
    elsewhere("own_name_is_loopback", "All hosts know their own names as 127.0.1.1.", "Debian's line in /etc/hosts",
              "fail net.rendezvous.loopback", culprit={}),
    elsewhere("other_address", "One host knows MASTER_ADDR by another address.", "its /etc/hosts",
              "warn net.rendezvous.different_addresses", culprit={"node": "host-d"}, exit_code=0),
    elsewhere("port_unreachable", "One host cannot open a further connection to MASTER_PORT.",
              "`iptables -m connlimit` on it", "fail net.rendezvous.unreachable", culprit={"node": "host-b"}),
    elsewhere("full_link", "What leaves one host waits behind other traffic.", "`tc tbf`, and datagrams without end",
              "warn net.rendezvous.slow_connect", culprit={"node": "host-c"}, exit_code=0),
    # tests/checks/net/test_rendezvous.py
    elsewhere("silent_ipv6_address", "MASTER_ADDR has an IPv6 address that does not answer the other of two hosts.",
              "made-up facts", "warn net.rendezvous.silent_address", culprit={"variable": "MASTER_ADDR"},
              noticed_by="1", exit_code=0),
)  # fmt: skip

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = RENDEZVOUS
