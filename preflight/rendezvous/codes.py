"""The codes of `preflight rendezvous`: each cause with its fix."""

from preflight.check import Code
from preflight.sdk.reachability import CURES

FAMILY = "preflight.rendezvous"
PURPOSE = "What `preflight rendezvous` finds before a launch."

UNRESOLVED = Code(
    "The endpoint's name does not resolve on a node.",
    fix="There: getent ahosts {name}; add it to DNS or /etc/hosts, or give the endpoint as an address.",
)
LOOPBACK = Code(
    "The endpoint's name is a loopback address on a node other than node 0.",
    fix="There: getent ahosts {name}; take it off the 127. line of /etc/hosts, or give the endpoint as an address.",
)
DIFFERENT_ADDRESSES = Code(
    "The endpoint's name resolves to different addresses on some nodes.",
    fix="On each node: getent ahosts {name}; fix DNS or /etc/hosts where it differs.",
)
REFUSED = Code("A connection to the endpoint is refused: nothing listens there.", fix=CURES["refused"])
FILTERED = Code("Nothing comes back from the endpoint: it is filtered, or down.", fix=CURES["filtered"])
NO_ROUTE = Code("There is no route to the endpoint.", fix=CURES["no_route"])
RESET = Code("A connection to the endpoint is reset.", fix=CURES["reset"])
UNREACHABLE = Code("A connection to the endpoint fails in another way.", fix=CURES["other"])
BY_KIND = {"refused": REFUSED, "filtered": FILTERED, "no_route": NO_ROUTE, "reset": RESET, "other": UNREACHABLE}
SILENT_ADDRESS = Code(
    "The endpoint's name has an address that does not answer, and one that does.",
    fix="Give {usable} as the endpoint, or remove {address} from {name} (DNS, /etc/hosts).",
)
SLOW_NAME = Code(
    "The endpoint's name takes a long time to resolve.",
    fix="There: time getent ahosts {name}; fix /etc/resolv.conf, or give the endpoint as an address.",
)
SLOW_REVERSE = Code(
    "Looking up the name of an address takes a long time; torch's store waits for it.",
    fix="There: time getent hosts {address}; fix /etc/resolv.conf, or add '{address} NAME' to /etc/hosts.",
)
PORT_TAKEN = Code(
    "Another process has the port on node 0.",
    fix="End it if it is left over (from an earlier torchrun: pkill -f torch.distributed.run), or use another port on "
    "all nodes. There, as root: ss -ltnp 'sport = :{port}'.",
)
PORT_REFUSED = Code(
    "Node 0 may not listen at the port.", fix="Use another port on all nodes, above 1023 (such as 29500)."
)
NOT_SERVED = Code("torch's store cannot be served on node 0.", fix="Use another port; torch's own message is above.")
NOT_HERE = Code(
    "The endpoint does not lead to node 0.",
    fix="Give node 0's own name or address in --endpoint (there: hostname -f; ip addr), or start --node-rank 0 on "
    "{name}.",
)
OTHER_LISTENER = Code(
    "What listens at the endpoint does not answer as torch's store does.",
    fix="See node 0's output, if it was started. On {name}: ss -ltnp 'sport = :{port}'; end that process if it is not "
    "node 0's, or use another port on all nodes.",
)
OTHER_STORE = Code(
    "A store of torch answers at the endpoint, but not node 0's of this command.",
    fix="Does another job run on {name}? There: ss -ltnp 'sport = :{port}'; end it, or use another port on all nodes. "
    "Otherwise start preflight rendezvous there, with --node-rank 0.",
)
NO_TIME = Code(
    "No time was left for the store to answer.", fix="Give all nodes more time: --timeout; start node 0 first."
)
STORE_LOST = Code("Node 0's store is gone.", fix="See node 0's own output; start it again on all nodes.")
NEVER_JOINED = Code(
    "A node did not join.",
    fix="See that node's own output: it says why it cannot reach the endpoint. Was it started with this --node-rank?",
)
NODE_LOST = Code("A node joined, then stopped responding.", fix="See that node's own output: was it ended, or cut off?")
DUPLICATE_NODE_RANK = Code(
    "Two nodes have the same --node-rank.", fix="Give each node its own --node-rank, from 0 to one less than --nnodes."
)
NNODES = Code("Nodes were started with different --nnodes.", fix="Give all nodes the same --nnodes.")
FOREIGN = Code(
    "Node 0's store has an entry that is not preflight's.",
    fix="Start the same version of preflight on all nodes. If it is the same, another program writes into this "
    "store: check who connects to it (ss -tn 'sport = :{port}'), or use another port.",
)
HOSTNAME_UNRESOLVED = Code(
    "A node's own host name does not resolve there: torchrun fails at once.",
    fix="There: getent ahosts {name}; add a line 'ADDRESS {name}' to its /etc/hosts.",
)
SPLIT = Code(
    "A node takes itself for the endpoint's host: torchrun would serve a second store there, and wait in it.",
    fix="Give the endpoint as node 0's address; there: getent ahosts {name}; hostname -f. Or give torchrun --rdzv-conf "
    "is_host=1 on node 0 and is_host=0 on the others.",
)
NOT_HOST = Code(
    "Node 0 does not recognize the endpoint's name as its own: no torchrun would serve the store, and all would wait.",
    fix="Give its host name or address as the endpoint (there: hostname -f; ip addr), or torchrun --rdzv-conf "
    "is_host=1 on node 0.",
)
WORKERS_NAME = Code(
    "A node's full host name does not lead to it; c10d rendezvous makes it the workers' MASTER_ADDR.",
    fix="On each node: getent ahosts {name}; fix DNS or /etc/hosts, or give torchrun --local-addr ADDRESS on each "
    "node. If you start torchrun with --master-addr, give --rdzv-backend static here.",
)
WORKERS_PORT = Code(
    "A node's ephemeral ports cannot be reached; workers, gloo and NCCL connect there.",
    fix="Open all TCP ports between the nodes (sysctl net.ipv4.ip_local_port_range), not only the endpoint's: on both "
    "hosts iptables -S, nft list ruleset; in a cloud, see the security groups.",
)
ETCD_CLIENT = Code(
    "python-etcd, torch's client of etcd, is not installed on a node.",
    fix="There: pip install python-etcd. Or use --rdzv-backend c10d, which needs no etcd.",
)
ETCD_V2 = Code(
    "etcd does not serve version 2 of its API.",
    fix="Start etcd 3.4 or 3.5 with --enable-v2 (ETCD_ENABLE_V2=true): off by default since 3.4, gone in 3.6. "
    "Or use --rdzv-backend c10d, which needs no etcd.",
)
ETCD_SECURE = Code(
    "etcd wants TLS, or its certificate is not accepted.",
    fix="Give torchrun --rdzv-conf protocol=https,cacert=CA.pem,cert=CLIENT.pem,key=CLIENT.key (the last two where "
    "etcd has --client-cert-auth). Try: curl --cacert CA.pem https://{name}:{port}/version",
)
NOT_ETCD = Code(
    "What listens at the endpoint does not answer as etcd does.",
    fix="There: ss -ltnp 'sport = :{port}'; etcd's clients have port 2379, its peers 2380.",
)
ETCD_STALE = Code(
    "etcd holds a rendezvous of an earlier job of this --rdzv-id: torchrun would join that one.",
    fix="Give each job its own --rdzv-id. If no torchrun of it runs: etcdctl rm -r {key} (ETCDCTL_API=2).",
)
BROKEN_TORCH = Code("torch cannot be imported on a node.", fix="There: python -c 'import torch'.")


def by_slug() -> dict[str, Code]:
    return {name.lower(): value for name, value in globals().items() if isinstance(value, Code)}
