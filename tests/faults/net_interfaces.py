"""What the check `net.interfaces` finds."""

from tests.faults.row import Fault, elsewhere

GLOO, NCCL = {"variable": "GLOO_SOCKET_IFNAME"}, {"variable": "NCCL_SOCKET_IFNAME"}

HOSTS = (
    # tests/checks/net/test_interfaces_hosts.py
    elsewhere("docker0_everywhere", "gloo is told to take docker0, which has one address on all hosts.",
              "`GLOO_SOCKET_IFNAME=docker0`", "fail net.interfaces.shared", culprit={**GLOO, "interface": "docker0"}),
    elsewhere("docker0_everywhere_nccl", "NCCL is told to take docker0, which has one address on all hosts.",
              "`NCCL_SOCKET_IFNAME=docker0`", "fail net.interfaces.shared", culprit={**NCCL, "interface": "docker0"}),
    elsewhere("nccl_bridge_on_gloo", "NCCL_SOCKET_IFNAME names docker0, which has one address on all hosts; the run is "
              "on gloo.", "`NCCL_SOCKET_IFNAME=docker0`", "warn net.interfaces.shared",
              culprit={**NCCL, "interface": "docker0"}, exit_code=0),
    elsewhere("nccl_unknown_on_gloo", "One host's NCCL_SOCKET_IFNAME names no interface of it; the run is on gloo.",
              "`NCCL_SOCKET_IFNAME=ens9`", "warn net.interfaces.none", culprit={"node": "host-b", **NCCL}, exit_code=0),
    elsewhere("other_route", "One host reaches MASTER_ADDR over another interface than gloo takes.",
              "its own name in /etc/hosts", "info net.interfaces.route",
              culprit={"node": "host-b", "interface": "eth1"}, exit_code=0),
    elsewhere("two_cards_in_one_network", "gloo is told to take the second of two cards in one network; the kernel "
              "sends by the first.", "`GLOO_SOCKET_IFNAME=eth1`, with addresses of 10.77.0.0/24 on eth0 and eth1",
              "info net.interfaces.route", culprit={**GLOO, "interface": "eth1"}, exit_code=0),
    elsewhere("also_shared", "NCCL, told nothing, takes a second interface, which has one address on all hosts.",
              "a veth with 10.200.0.1 on each; NCCL is a stand-in", "info net.interfaces.second_interface",
              culprit={"interface": "pod0"}, exit_code=0),
    elsewhere("docker0_as_last_resort", "A host has lost its address; NCCL takes docker0, which other hosts have, too.",
              "`ip addr flush dev eth1` on it", "fail net.interfaces.shared",
              culprit={"node": "host-b", "interface": "docker0"}),
    elsewhere("one_address_twice", "Two hosts have one address on the interface of the job.", "`ip addr add` on both",
              "fail net.interfaces.shared", culprit={**GLOO, "interface": "eth1"}),
    elsewhere("interface_unknown", "One host's GLOO_SOCKET_IFNAME names no interface of it.",
              "`GLOO_SOCKET_IFNAME=ethO`", "fail net.interfaces.none", culprit={"node": "host-b", **GLOO}),
    elsewhere("interface_unknown_nccl", "One host's nccl.conf names an interface that has no carrier.",
              "NCCL_CONF_FILE, and the other end of a veth is down", "fail net.interfaces.none",
              culprit={"node": "host-b", "interface": "eth1", **NCCL}),
    elsewhere("own_name_is_no_address", "One host knows its own name as 0.0.0.0.", "its /etc/hosts",
              "fail net.interfaces.none", culprit={"node": "host-b"}),
    elsewhere("interface_down", "The interface that gloo is told to take is down on one host.", "`ip link set down`",
              "fail net.interfaces.down", culprit={"node": "host-b", "interface": "eth1", **GLOO}),
    elsewhere("interface_is_loopback", "gloo is told to take lo, on several hosts.", "`GLOO_SOCKET_IFNAME=lo`",
              "fail net.interfaces.loopback", culprit={"interface": "lo", **GLOO}),
    elsewhere("interface_without_ipv4", "One host has lost its IPv4 address, and has an IPv6 one.", "`ip addr flush`",
              "fail net.interfaces.family", culprit={"node": "host-b", "interface": "eth1", **GLOO}),
    elsewhere("bridge_of_containers", "One host takes the bridge of its containers.", "`GLOO_SOCKET_IFNAME=docker0`",
              "warn net.interfaces.internal", culprit={"node": "host-b", "interface": "docker0", **GLOO}, exit_code=0),
    elsewhere("link_local_address", "One host takes the link to its BMC.", "an interface usb0 with 169.254.3.1",
              "warn net.interfaces.link_local", culprit={"node": "host-b", "interface": "usb0", **GLOO}, exit_code=0),
    elsewhere("other_network", "One host takes another network than the others, though it is in theirs.",
              "`GLOO_SOCKET_IFNAME=eth1` on it", "warn net.interfaces.different_network",
              culprit={"node": "host-b", "interface": "eth1", **GLOO}, exit_code=0),
    elsewhere("mtu_unlike", "One of three hosts has another MTU.", "`ip link set eth0 mtu 1400`",
              "warn net.interfaces.mtu", culprit={"node": "host-c", "interface": "eth0"}, exit_code=0),
    # tests/checks/net/test_interfaces.py
    elsewhere("speed_unlike", "One host's interface runs at a tenth of the others' speed.", "made-up facts",
              "warn net.interfaces.speed", culprit={"node": "node-1", "interface": "eth0"}, exit_code=0),
)  # fmt: skip

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = HOSTS
