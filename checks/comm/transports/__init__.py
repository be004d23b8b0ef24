"""Transports: NCCL uses the fast transports that the machines have, and the same on all nodes.

Every rank takes part in an all-reduce of 1 MiB, and sends as much to the next rank and to the one in its place on the
next node (since 2.22 NCCL connects two ranks when they first need it). Then NCCL's own log says what it chose. That is
compared with what net.rdma, gpu.nvlink and gpu.topology know about the hardware, with NCCL's variables, and with the
other nodes. What NCCL rightly avoids is not reported: P2P between PCIe cards that are far apart, and GPUDirect if GPU
and HCA are (src/graph/paths.cc: P2P and GPUDirect up to PXB, unless the machine is known).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from preflight.check import (
    After,
    Code,
    Context,
    Finding,
    Job,
    Level,
    NotApplicable,
    Plan,
    Run,
    Scope,
    Skip,
    ranges,
    vote,
)
from preflight.checks.comm.shared import node_lines
from preflight.checks.comm.shared.node_lines import NodeLog
from preflight.checks.comm.shared.readings import MIB
from preflight.checks.comm.transports import transport_choice
from preflight.checks.comm.transports.transport_choice import Why
from preflight.nccl import log_lines, parameters
from preflight.nccl.log_lines import Lines
from preflight.nccl.version import SAME_VERSION_FIX

if TYPE_CHECKING:
    import torch

Facts = Lines


def _deadline(job: Job) -> float:
    """As for comm.init: connecting takes longer in larger worlds."""
    return 60.0 + job.world_size / 64


PLAN = Plan(
    Scope.WORLD,
    Level.STANDARD,
    deadline_s=_deadline,
    estimate_s=3.0,
    after={"comm.init": After.NEEDS, **dict.fromkeys(node_lines.READS, After.USES)},
)

SOCKET = Code(
    "NCCL uses sockets between nodes that have RDMA.",
    fix="There: ls /dev/infiniband; ldconfig -p | grep libibverbs; NCCL_DEBUG=INFO says under NET/IB what it found.",
    see=("net.rdma", "net.efa"),
)
GDR_OFF = Code(
    "NCCL copies data through host memory that the HCA could read from the GPU (GPUDirect RDMA).",
    fix="There: lsmod | grep nvidia_peermem; modprobe nvidia-peermem, or the driver's open modules with kernel 5.12 or "
    "newer (DMA-BUF); then ACS and the IOMMU (node.kernel), and NCCL_NET_GDR_LEVEL.",
    see=("node.kernel", "gpu.topology"),
)
P2P_OFF = Code(
    "NCCL uses host memory between GPUs that reach each other.",
    fix="There: nvidia-smi topo -p2p r; nvidia-smi nvlink -s; the ranks' containers need one /dev/shm and one IPC "
    "namespace (docker: --ipc=host).",
    see=("gpu.topology", "gpu.nvlink", "node.kernel"),
)
SHM_OFF = Code(
    "Ranks on one node reach each other only over the network.",
    fix="Give the ranks of a node one /dev/shm (docker: --ipc=host), or run all of them in one container.",
)
SPLIT_NODE = Code(
    "NCCL takes ranks on one node for several nodes.",
    fix="NCCL identifies nodes by host name and boot id, or NCCL_HOSTID: unset it, or give the containers of a node "
    "one host name (docker: --uts=host), one network and one IPC namespace.",
)
VERSIONS = Code(
    "Ranks have loaded different versions of NCCL.",
    fix=SAME_VERSION_FIX,
)
PLUGIN = Code(
    "Some ranks load a network plugin for NCCL and others do not.",
    fix="Compare NCCL_NET_PLUGIN, LD_LIBRARY_PATH and ldconfig -p | grep libnccl-net on both.",
)
NVLS_OFF = Code(
    "A node's NVSwitches do not reduce for NCCL (NVLS), although they report that they can, or the other nodes' do.",
    fix="There: systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A3 Fabric; reset the GPUs: nvidia-smi -r.",
    see=("gpu.nvlink", "node.kernel"),
)
DIFFERS = Code(
    "NCCL chose differently on one node than on the others.",
    fix="Compare with another node: ls /sys/class/infiniband; nvidia-smi topo -m; env | grep NCCL; /etc/nccl.conf.",
    see=("env.variables", "gpu.topology", "net.rdma"),
)

UNTOLD = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_P2P_DISABLE")
"""Variables that some NCCL versions read without logging it (P2P_DISABLE is logged from 2.23 on)."""


def measure(ctx: Context) -> Facts:
    if ctx.job.backend != "nccl":
        raise NotApplicable(f"the backend is {ctx.job.backend}, and only NCCL has transports to choose from")
    _connect(ctx)
    return read(ctx)


def read(ctx: Context) -> Facts:
    """Facts from the log that NCCL has written in this process so far."""
    text = ctx.nccl_log()
    if not text:
        raise Skip("NCCL has written no log here, so its choice is unknown")
    nodes = [ctx.job.node_of(rank).node for rank in ctx.members]

    def is_local(rank: int, peer_rank: int) -> bool:
        return rank < len(nodes) and peer_rank < len(nodes) and nodes[rank] == nodes[peer_rank]

    found = log_lines.parse(text, is_local)
    found["settings"] |= {name: ctx.environ[name][:200] for name in UNTOLD if name in ctx.environ}
    found["version"] = found["version"] or _loaded()
    if len(ctx.members) > 1 and not any(found["ways"].values()):
        version = f"NCCL {found['version']}" if found["version"] else "NCCL"
        raise Skip(f"{version}'s log does not say how its ranks are connected, so its choice is unknown", found)
    return found


def _loaded() -> str:
    """NCCL's version from the library: before 2.24 only the first rank's log has it."""
    import torch

    if version_in_memory := parameters.version():
        return version_in_memory
    try:
        version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return ".".join(map(str, version[:3]))
    except (AttributeError, RuntimeError, OSError):
        return ""


def _connect(ctx: Context) -> None:
    import torch
    from torch import distributed as dist

    group = ctx.process_group()
    value = torch.zeros(MIB // 4, device=ctx.device)
    with ctx.collective("all_reduce", "1 MiB"):
        dist.all_reduce(value, group=group)
        value[0].item()
    first = ctx.job.node_of(ctx.members[0]).node
    a_node = sum(ctx.job.node_of(rank).node == first for rank in ctx.members)
    for step in sorted({1, a_node} - {len(ctx.members)}):
        with ctx.collective("send_recv", f"1 MiB to the rank {step} on"):
            _exchange(ctx, value, step)


def _exchange(ctx: Context, value: "torch.Tensor", step: int) -> None:
    import torch
    from torch import distributed as dist

    group, ranks, own = ctx.process_group(), len(ctx.members), ctx.group_rank
    got = torch.empty_like(value)
    calls = [
        dist.P2POp(dist.isend, value, (own + step) % ranks, group),
        dist.P2POp(dist.irecv, got, (own - step) % ranks, group),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    got[0].item()


def judge(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    nodes = node_lines.nodes(facts, run)
    yield from _versions(facts, run)
    split = transport_choice.split(nodes)
    sockets = {node.name: text for node in nodes if (text := transport_choice.socket_instead(node))}
    gdr = transport_choice.without_gdr(nodes)
    whole = [node for node in nodes if node.name not in split]
    shm = {node.name: text for node in whole if (text := transport_choice.network_instead(node))}
    p2p = {node.name: text for node in whole if node.name not in shm and (text := transport_choice.host_instead(node))}
    plugin, nvls = transport_choice.other_plugin(nodes), transport_choice.without_nvls(nodes)
    known = {*split, *sockets, *gdr, *p2p, *shm, *plugin}
    differing = (
        transport_choice.differing([node for node in nodes if node.name not in known]) if "" not in plugin else {}
    )
    for code, found, why in (
        (SPLIT_NODE, split, transport_choice.naming("NCCL_HOSTID")),
        (SOCKET, sockets, transport_choice.why_socket),
        (GDR_OFF, gdr, transport_choice.why_no_gdr),
        (P2P_OFF, p2p, transport_choice.naming("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")),
        (SHM_OFF, shm, transport_choice.naming("NCCL_SHM_DISABLE")),
        (PLUGIN, plugin, transport_choice.naming("NCCL_NET_PLUGIN")),
        (NVLS_OFF, nvls, transport_choice.naming("NCCL_NVLS_ENABLE")),
        (DIFFERS, differing, transport_choice.naming("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")),
    ):
        yield from _findings_of(code, found, nodes, why)


def _findings_of(
    code: Code, found: Mapping[str, str], nodes: Sequence[NodeLog], why: Callable[[NodeLog], Why | None]
) -> Iterator[Finding]:
    """A finding per node and cause, or one for all if every node has it. `found`: texts by node name; "" means no
    single node."""
    if "" in found:
        yield code.warn(found[""])
    alike: dict[tuple[str, Why | None], list[NodeLog]] = {}
    for node in nodes:
        if node.name in found:
            alike.setdefault((found[node.name], why(node)), []).append(node)
    for (text, cause), of in alike.items():
        everywhere = len(of) == len(nodes) > 1
        text = f"{text}{cause.text if cause else ''}" + (f"; the same on all {len(of)} nodes" if everywhere else "")
        for node in of[:1] if everywhere else of:
            where = {} if everywhere else {"node": node.name}
            yield code.warn(
                text,
                fix=cause.fix if cause else None,
                variable=cause.variable if cause else None,
                evidence=node.evidence,
                **where,
            )


def _versions(facts: Mapping[int, Facts], run: Run) -> Iterator[Finding]:
    votes = vote((rank, reading["version"]) for rank, reading in facts.items() if reading["version"])
    for rank, version in votes.odd():
        text = f"has loaded NCCL {version}, expected {votes.usual} as on {votes.share()}"
        yield VERSIONS.fail(text, **run.job.where(rank))
    if not votes.unanimous and not votes.decided:
        yield VERSIONS.fail(f"NCCL is {votes.sides()}, expected one version")


def summarize(facts: Mapping[int, Facts], run: Run) -> str:
    nodes = node_lines.nodes(facts, run)
    versions = vote((rank, reading["version"]) for rank, reading in facts.items() if reading["version"])
    version = " and ".join(versions.ranks_of)
    inside = sorted({way for node in nodes for way in node.inside})
    between = sorted({way.removeprefix("NET/") for node in nodes for way in node.between})
    between = [way.replace("/GDRDMA", " with GPUDirect") for way in between]
    parts = [f"{' and '.join(inside)} in the node"] if inside else []
    parts += [f"{' and '.join(between)} between nodes"] if between else []
    parts += ["NVLS"] if any(node.nvls and node.nvls_channels for node in nodes) else []
    channels = vote(enumerate(node.channels for node in nodes if node.channels))
    parts += [ranges.count(channels.usual, "channel")] if channels.ranks_of else []
    return f"NCCL {version}".strip() + (f": {', '.join(parts)}" if parts else "")
