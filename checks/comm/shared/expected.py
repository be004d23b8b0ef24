"""The bus bandwidth to expect from a collective on the links that other checks and NCCL's log found.

Only if backed by a published measurement or threshold; else None, and a collective is only compared within the run and
with an earlier one. Shares are of the links' rate in one direction. `usual` spans what was published (NVLS, where the
switch sums, exceeds 100 %); `least` is at most half of the lowest published share: no machine in the table is near it.

- NVSwitch, one node, 4 GPUs or more: usual 0.74 to 1.08, least 0.36. All-reduce: azurehpc-health-checks' conf
  has A100 at 228 of 300 GB/s; ml-engineering (network/comms) A100 at 235 of 300, H200 by ring 368 and by NVLS 482 of
  450, 4 GPUs of it 363, B200 673 to 846 of 900. All-gather and reduce-scatter: ml-engineering, H200 361 and 363 of 450.
- NVLinks between nodes (MNNVL), all-reduce: usual 0.68 to 0.95, least 0.31. NVSentinel, ADR-026: 2 nodes of GB200 at
  617 of 900; coreweave/nccl-tests, PR 43: 18 nodes, 681 at 1 GiB and 847 at 8 GiB.
- RDMA with GPUDirect, all-reduce, of the rate of a node's HCAs (a ring leaves each node once): usual 0.62 to 1.64,
  least 0.30. NVSentinel, PR 837: 2 nodes, H100 EFA 335 of 400, A100 IB 165 of 200, TCPXO 328 of 200; ml-engineering: 4
  nodes of B200 382 of 400; thresholds of Google's cluster-health-scanner: 250 of 400, 150 of 200.

There are no published figures for broadcast, all-to-all and send/recv, for sockets and NVLink bridges, for nodes with
one GPU (whose PCIe slot may carry less than its HCAs), and for PCIe (NVSentinel's thresholds of 15 and 20 GB/s do not
say for which cards in which slots).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from preflight.check import Run
from preflight.checks.comm.shared import node_lines
from preflight.checks.comm.shared.node_lines import NodeLog, switched
from preflight.checks.comm.shared.readings import MIB

TRANSPORTS = "comm.transports"
READS: tuple[str, ...] = (TRANSPORTS, *node_lines.READS)
"""Ids of the checks whose facts are read."""

LEAST_BYTES = {"inside": 256 * MIB, "across": 1024 * MIB}
"""Smaller messages have no expectation. B200 sweep of ml-engineering: 63 % of its NVLinks at 128 MiB, 80 % at 1 GiB;
NVSentinel tests a node with 256 MiB. Four nodes of P6-B200: 50 % of the network at 128 MiB, 90 % at 1 GiB."""
BYTES_A_RANK = 32 * MIB
"""Across nodes: 1 GiB over 32 ranks."""
LEAST_GPUS = 4
"""On one node: the smallest group with a published figure (ml-engineering)."""
MOST_NODES = 8
"""The largest group with a published figure (NVSentinel: 8 nodes)."""
LINK_GBPS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
"""One NVLink in one direction in GB/s, by generation (NVIDIA's data sheets). NVML reports 26.562 and 53.125 if it
includes the coding."""


@dataclass(frozen=True)
class ExpectedBusbw:
    """Bus bandwidth in GB/s of 10^9 bytes (nccl-tests)."""

    least: float
    """Below it there is a finding."""
    usual: tuple[float, float]
    source: str


@dataclass(frozen=True)
class Row:
    """A row of the table above."""

    operations: tuple[str, ...]
    least: float
    usual: tuple[float, float]
    source: str


RING = ("all_reduce", "all_gather", "reduce_scatter")
ROWS = {
    "nvswitch": Row(RING, 0.36, (0.74, 1.08), "ml-engineering and azurehpc-health-checks, NVSwitch nodes"),
    "mnnvl": Row(("all_reduce",), 0.31, (0.68, 0.95), "NVSentinel ADR-026, GB200 over NVLink"),
    "rdma": Row(("all_reduce",), 0.30, (0.62, 1.64), "NVSentinel PR 837 and ml-engineering, 2 to 4 nodes"),
}


@dataclass(frozen=True)
class Links:
    """What limits the job's collectives."""

    row: Row
    gbps: float
    """Rate in one direction: of a GPU's NVLinks, or of a node's HCAs."""
    limit: str
    least_bytes: int


def busbw(operation: str, bytes_: int, run: Run) -> ExpectedBusbw | None:
    """None if the links are unknown, or nothing is published about them: then there is nothing to compare with."""
    links = _links(run)
    if links is None or bytes_ < links.least_bytes or operation not in links.row.operations:
        return None
    low, high = links.row.usual
    source = f"{links.limit}; {links.row.source}"
    return ExpectedBusbw(links.row.least * links.gbps, (low * links.gbps, high * links.gbps), source)


@lru_cache(maxsize=4)
def _links(run: Run) -> Links | None:
    """The limiting links; cached, since a judge asks several times."""
    facts = run.facts(TRANSPORTS)
    nodes = node_lines.nodes(facts, run) if len(facts) == len(run.members) > 1 else []
    if not nodes or len(nodes) > MOST_NODES or len({len(node.ranks) for node in nodes}) > 1:
        return None
    if any(node.settings.keys() & LIMITING for node in nodes):
        return None
    nvlink = min(map(_nvlink_gbps, nodes))
    if len(nodes) == 1:
        return _of_gpu("nvswitch", nvlink, LEAST_BYTES["inside"]) if len(facts) >= LEAST_GPUS else None
    least_bytes = max(LEAST_BYTES["across"], BYTES_A_RANK * len(facts))
    if all(set(node.between) == {"P2P/MNNVL"} for node in nodes):
        return _of_gpu("mnnvl", nvlink, least_bytes)
    rdma = min(_rdma_gbps(node) for node in nodes)
    if not rdma or nvlink < rdma:  # a GPU's NVLinks carry what its node's HCAs deliver
        return None
    return Links(ROWS["rdma"], rdma, f"{rdma:.0f} GB/s of HCAs per node", least_bytes)


LIMITING = {
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS", "NCCL_NTHREADS",
    "NCCL_BUFFSIZE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL",
}  # fmt: skip
"""Variables that override NCCL's choice, for which the published figures hold."""


def _of_gpu(row: str, gbps: float, least_bytes: int) -> Links | None:
    return Links(ROWS[row], gbps, f"{gbps:.0f} GB/s of NVLinks per GPU", least_bytes) if gbps else None


def _nvlink_gbps(node: NodeLog) -> float:
    """GB/s of the GPU with the fewest links; 0 if they are unknown, do not lead to a switch, or are not used."""
    if not switched(node) or not node.inside or not all(way.startswith("P2P/") for way in node.inside):
        return 0.0
    return min(sum(_link_gbps(link) for link in gpu["links"] if link["active"]) for gpu in node.links.values())


def _link_gbps(link: Mapping[str, object]) -> float:
    version, speed = link["version"], link["speed_mbps"]
    known = LINK_GBPS.get(version, 0.0) if isinstance(version, int) else 0.0
    return min(known, speed / 1000) if isinstance(speed, int) else known


def _rdma_gbps(node: NodeLog) -> float:
    """GB/s of the HCAs that the node's ranks use; 0 if a rate is unknown, or data goes through the host."""
    if set(node.between) != {"NET/IB/GDRDMA"}:
        return 0.0
    names = [node.hcas[card] for card in _cards(node) if card < len(node.hcas)]
    rates = [_gbps(node, name) for name in names]
    if not rates or not all(rates) or len(names) < len(_cards(node)):
        return 0.0
    return sum(rates) / 8


def _cards(node: NodeLog) -> Sequence[int]:
    return sorted({card for line in node.lines for card in line["cards"]})


def _gbps(node: NodeLog, name: str) -> float:
    """Gb/s of "mlx5_0:1/IB"; 0 for an Ethernet virtual function, which reports the rate of its shared card."""
    device, _, port = name.partition("/")[0].partition(":")
    for hca in (node.rdma or {"hcas": []})["hcas"]:
        for found in hca["ports"] if hca["name"] == device else ():
            if str(found["port"]) == port.partition(":")[0] and not (hca["virtual"] and found["layer"] == "Ethernet"):
                return float(found["rate"] or 0.0)
    return 0.0
