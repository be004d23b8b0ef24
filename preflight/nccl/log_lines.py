"""What NCCL's log (NCCL_DEBUG=INFO) says, as small facts. Pure: text in, a dict out.

The texts are those of NCCL 2.14 to 2.30 (INFO and WARN in src/init.cc, bootstrap.cc, net.cc, plugin/net.cc,
transport/{net,net_ib,net_socket,p2p,shm,nvls}.cc and graph/topo.cc; `git grep` over the tags). Texts that
another version words differently are not found: None or empty. One pass over the lines; garbage is skipped.
"""

import re
from collections.abc import Callable, Iterator
from typing import TypedDict

from preflight.nccl.log_patterns import RULES, WARNINGS, Channels, Way, way_of

MARK = re.compile(r"NCCL (INFO|WARN|VERSION) ")
LONGEST = 2000
"""Characters of a message that are read: NCCL cuts its own at 1,024."""


class Lines(TypedDict):
    """None, "" or an empty collection: the log does not say."""

    version: str
    cuda_driver: int | None
    """The newest CUDA that the driver supports: 12040 is CUDA 12.4."""
    bootstrap: str
    """The interface over which the ranks first meet."""
    network: str
    """IB, Socket, or a plugin's own name (AWS Libfabric, ...)."""
    hcas: list[str]
    """ "mlx5_0:1/RoCE": all that NCCL's own RDMA transport uses; "mlx5_0:1/RoCE+mlx5_1:1/RoCE" where it merges
    two."""
    sockets: list[str]
    """The interfaces of the socket transport."""
    plugin: str
    """The network plugin that was loaded, without its version: "IBext"."""
    settings: dict[str, str]
    """The variables that NCCL says it has read, and those of the environment that it reads silently."""
    nodes: int | None
    """As NCCL counts them: ranks with the same host name and boot id (or NCCL_HOSTID) are on one node."""
    local_ranks: int | None
    mnnvl: bool | None
    channels: Channels | None
    nvls: bool | None
    """Whether the NVSwitch supports multicast (sums in the switch) and provided memory for it."""
    ways: dict[str, dict[str, int]]
    """The number of connections by transport, to ranks of the same node ("node") and of others ("net"):
    {"node": {"P2P/CUMEM": 24}, "net": {"NET/IB/GDRDMA": 4}}."""
    cards: list[int]
    """NCCL's numbers of the network devices that the connections to other nodes use."""
    gdr: dict[str, bool]
    """By device: whether it can reach GPU memory (nvidia_peermem or DMA-BUF)."""
    dmabuf: bool
    warnings: list[str]


def messages(text: str) -> Iterator[tuple[str, str]]:
    """Yields (INFO, WARN or VERSION; the message) for each line of NCCL. Two in one line are separated."""
    for line in text.splitlines():
        if "NCCL " not in line:
            continue
        parts = MARK.split(line[:LONGEST])
        if len(parts) == 1 and line.startswith("NCCL version "):  # without a prefix, on rank 0
            yield "VERSION", line[:LONGEST]
        yield from zip(parts[1::2], parts[2::2], strict=True)


def parse(text: str, is_local: Callable[[int, int], bool] | None = None) -> Lines:
    """`is_local`: whether two ranks of the communicator are on one node of the job; without it, what does not use the
    network counts as local."""
    found = empty()
    for level, message in messages(text):
        if level == "WARN":
            _warn(message, found)
            continue
        way = way_of(message)
        if way is not None:
            _count(way, found, is_local)
            continue
        for start, pattern, note in RULES:
            if message.startswith(start):
                match = pattern.match(message)
                if match:
                    note(match, found)
    found["cards"] = sorted(set(found["cards"]))
    return found


def empty() -> Lines:
    return {
        "version": "", "cuda_driver": None, "bootstrap": "", "network": "", "hcas": [], "sockets": [], "plugin": "",
        "settings": {}, "nodes": None, "local_ranks": None, "mnnvl": None, "channels": None, "nvls": None,
        "ways": {"node": {}, "net": {}}, "cards": [], "gdr": {}, "dmabuf": False, "warnings": [],
    }  # fmt: skip


def _warn(message: str, found: Lines) -> None:
    text = message.strip()[:200]
    if text and text not in found["warnings"] and len(found["warnings"]) < WARNINGS:
        found["warnings"].append(text)


def _count(way: Way, found: Lines, is_local: Callable[[int, int], bool] | None) -> None:
    local = not way.name.startswith("NET/") if is_local is None else is_local(way.rank, way.peer_rank)
    ways = found["ways"]["node" if local else "net"]
    ways[way.name] = ways.get(way.name, 0) + 1
    if way.card is not None and not local:
        found["cards"].append(way.card)
