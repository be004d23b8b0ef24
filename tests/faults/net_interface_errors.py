"""What the check `net.interface_errors` finds."""

from tests.faults.row import Fault, elsewhere

_B = {"node": "host-b", "interface": "eth0"}

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/net/test_interface_errors_hosts.py
    elsewhere("interface_flaps", "A host's interface loses its link for a moment.",
              "`ip link set eth0 down` and up in a plugin", "warn net.interface_errors.went_down", culprit=_B,
              exit_code=0, says="eth0 lost its link 1 time during the run"),
    elsewhere("interface_gone", "A host's second interface vanishes during the run.", "`ip link del` in a plugin",
              "warn net.interface_errors.went_down", culprit={"node": "host-b", "interface": "eth1"}, exit_code=0,
              says="eth1 is gone after the run"),
    elsewhere("interface_queue_drops", "A host drops what it sends: its queue is far too short.",
              "`tc tbf limit 3kb` and a flood of datagrams", "warn net.interface_errors.dropped", culprit=_B,
              exit_code=0, says=" in its queue to send of eth0"),
    elsewhere("interface_checksum", "Packets arrive with wrong checksums at one of three hosts.",
              "a raw socket of another host sends such ones", "warn net.interface_errors.checksum",
              culprit={"node": "host-b"}, noticed_by="1", exit_code=0,
              says="packets with wrong checksums arrived during the run (host-b: Tcp "),
    elsewhere("interface_damaged", "An interface of a host counts errors.",
              "the kernel's answer, with counters that rise",
              "warn net.interface_errors.damaged", culprit=_B, exit_code=0, says="eth0 counted rx_errors "),
    elsewhere("interface_retransmits", "A host loses 3 % of what it receives.",
              "`iptables -m statistic --mode random --probability 0.03 -j DROP`",
              "info net.interface_errors.retransmits", culprit={}, noticed_by="2", exit_code=0),
)  # fmt: skip
