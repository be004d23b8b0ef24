"""Where NCCL did not choose a node's best hardware, and why: sentences by node. Pure; for comm.transports."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from preflight.check import ranges, vote, words
from preflight.checks.comm.shared.node_lines import NodeLog, switched
from preflight.nccl.log_lines import Lines
from preflight.nccl.log_patterns import NVLS_REFUSED

MELLANOX, BROADCOM, AMAZON = "0x15b3", "0x14e4", "0x1d0f"
"""PCI vendors whose RDMA NCCL is known to use: two by its own transport, EFA by a plugin (aws-ofi-nccl)."""
DATA_CENTRE = re.compile(
    r"\b(P100|V100|T4|A10|A10G|A16|A2|A30|A40|A100|A800|L4|L40S?|H100|H800|H200|H20|B200|B300|G[BH][23]00)\b"
)
"""Cards with GPUDirect RDMA (CUDA's guide for it: Tesla and Quadro classes). GeForce has none."""


class Why(NamedTuple):
    """The reason for NCCL's choice."""

    text: str
    """Ends the sentence: ": NCCL_IB_DISABLE=1"."""
    variable: str | None
    fix: str | None
    """None for the code's own fix."""


# What could be better: a sentence by node


def split(all_: Sequence[NodeLog]) -> dict[str, str]:
    counted = {node: node.local_ranks for node in all_}
    return {
        node.name: f"NCCL sees {ranges.count(count, 'rank')} on this node, expected its {len(node.ranks)}"
        for node, count in counted.items()
        if count is not None and count < len(node.ranks)
    }


def usable(node: NodeLog) -> list[str]:
    """Devices that NCCL could use: a port is ACTIVE, the process may open it, and the make is known. An Ethernet
    virtual function may be a cloud's plain network card (Azure's accelerated networking), where RDMA leads nowhere."""
    return [
        hca["name"]
        for hca in (node.rdma or {"hcas": []})["hcas"]
        if hca["vendor"] in (MELLANOX, BROADCOM, AMAZON)
        and hca["opens"] is not False
        and any(
            port["state"] == "ACTIVE" and not (hca["virtual"] and port["layer"] == "Ethernet") for port in hca["ports"]
        )
    ]


def socket_instead(node: NodeLog) -> str:
    over = sum(count for way, count in node.between.items() if way.startswith("NET/Socket"))
    active = usable(node)
    if not over or not active:
        return ""
    shown = words.some(active, 3)
    return f"NCCL uses sockets to other nodes, expected RDMA: {shown} {'is' if len(active) == 1 else 'are'} active"


def _kinds(all_: Sequence[NodeLog]) -> list[list[NodeLog]]:
    """Groups of nodes that should choose the same: with as many ranks, on the same GPU models."""
    found: dict[object, list[NodeLog]] = {}
    for node in all_:
        found.setdefault((len(node.ranks), node.models), []).append(node)
    return list(found.values())


def without_gdr(all_: Sequence[NodeLog]) -> dict[str, str]:
    """Nodes with HCAs that could read GPU memory but do not: there is no module, a variable, or other nodes do."""
    return {name: text for alike in _kinds(all_) for name, text in _without_gdr(alike).items()}


def _without_gdr(all_: Sequence[NodeLog]) -> dict[str, str]:
    uses = {node.name: use for node in all_ if (use := _gdr(node))}
    votes = vote(enumerate(uses.values()))
    usual = votes.decided and votes.usual == "all"
    expected = f"all as on {votes.share('node')}" if usual else "all"
    found = {}
    for node in all_:
        use = uses.get(node.name, "all")
        if use != "all" and (usual or (use == "none" and _could(node))):
            had = "no connection to another node uses" if use == "none" else "some connections to other nodes lack"
            found[node.name] = f"{had} GPUDirect RDMA, expected {expected}"
    return found


def _gdr(node: NodeLog) -> str:
    """How many connections use GPUDirect: all, some, none; "" without RDMA to other nodes."""
    over = [way for way in node.between if way.startswith("NET/") and not way.startswith("NET/Socket")]
    own = {way.endswith("/GDRDMA") for way in over}
    return "some" if len(own) > 1 else "" if not own else "all" if True in own else "none"


def _could(node: NodeLog) -> bool:
    """Whether the cards are known to support GPUDirect, and NCCL or a variable says why they do not use it."""
    able = bool(node.models) and all(DATA_CENTRE.search(name) for name in node.models)
    virtual = any(hca["virtual"] for hca in (node.rdma or {"hcas": []})["hcas"])
    answers = [on for line in node.lines for on in line["gdr"].values()]
    own = node.network.startswith("IB")  # or HPC-X's plugin IBext, which works like NCCL's own
    missing = bool(answers) and not any(answers) and not virtual and own
    return able and (missing or _turns_off(node, "NCCL_NET_GDR_LEVEL"))


def _turns_off(node: NodeLog, variable: str) -> bool:
    """Whether the variable is set to a value that turns a transport off: NCCL_P2P_DISABLE=0 does not."""
    value = node.settings.get(variable)
    if variable.endswith("_DISABLE"):
        return value not in (None, "", "0")
    if variable.endswith("_LEVEL"):
        return (value or "").upper() in ("LOC", "0")
    return value == "0" if variable.endswith("_ENABLE") else value is not None


def host_instead(node: NodeLog) -> str:
    """Connections through host memory. SHM is right between PCIe cards that are far apart, never behind NVSwitches."""
    over = {way: count for way, count in node.inside.items() if not way.startswith("P2P/")}
    if not over:
        return ""
    forced = _turns_off(node, "NCCL_P2P_DISABLE") or _turns_off(node, "NCCL_P2P_LEVEL")
    if not (switched(node) or (forced and node.reaches)):
        return ""
    counts = " and ".join(f"{count} over {way}" for way, count in sorted(over.items()))
    expected = "all over P2P, since NVLinks join its GPUs"
    if not switched(node):  # NCCL avoids P2P between GPUs that are far apart, though the driver has it
        expected = "NCCL to choose, since the driver has P2P between its GPUs"
    return f"of the connections in the node {counts}, expected {expected}"


def network_instead(node: NodeLog) -> str:
    over = {way: count for way, count in node.inside.items() if way.startswith("NET/")}
    if not over or not (_turns_off(node, "NCCL_SHM_DISABLE") or any(way.startswith("NET/Socket") for way in over)):
        return ""  # RDMA may be faster between two sockets (ncclTopoCheckNet in graph/paths.cc)
    counts = " and ".join(f"{count} over {way}" for way, count in sorted(over.items()))
    return f"of the connections in the node {counts}, expected P2P or shared memory"


def without_nvls(all_: Sequence[NodeLog]) -> dict[str, str]:
    """Nodes without NVLS while the others have it, or while NCCL itself says that it should work."""
    found = {name: text for alike in _kinds(all_) for name, text in _without_nvls(alike).items()}
    refused = {node: sum(map(_is_refused, node.lines)) for node in all_}
    some, all_ranks = sum(refused.values()), sum(len(node.lines) for node in all_)
    for node in (node for node in all_ if refused[node]):
        found[node.name] = "the NVSwitches report NVLS, but refuse memory for it; expected NVLS to work"
        if some < all_ranks:  # NCCL's guide of 2.30, NCCL_NVLS_ENABLE: then 2.27 and 2.28 may hang, others fail
            found[node.name] += f" on all ranks or none: without it on {some} of {all_ranks} the job may hang"
    return found


def _is_refused(lines: Lines) -> bool:
    return any(text.startswith(NVLS_REFUSED) for text in lines["warnings"])


def _without_nvls(all_: Sequence[NodeLog]) -> dict[str, str]:
    votes = vote((number, can) for number, node in enumerate(all_) if (can := _nvls(node)) is not None)
    if not (votes.decided and votes.usual):
        return {}
    return {
        all_[number].name: f"NVLS is not available, expected it as on {votes.share('node')}"
        for number, _ in votes.odd()
    }


def _nvls(node: NodeLog) -> bool | None:
    """Whether NVLS works; NCCL logs nothing if the variable turns it off."""
    return False if node.nvls is None and _turns_off(node, "NCCL_NVLS_ENABLE") else node.nvls


def other_plugin(all_: Sequence[NodeLog]) -> dict[str, str]:
    return _compared(all_, "the network plugin is {}", lambda node: node.plugin or "none" if node.network else None)


def differing(all_: Sequence[NodeLog]) -> dict[str, str]:
    """Compares the network of all nodes; HCAs and transports in the node only between nodes of one kind."""
    found: dict[str, str] = {}
    for alike in _kinds(all_):
        found |= _compared(alike, "connections in the node are {}", _inside)
        found |= _compared(alike, "NCCL uses {} HCAs", _hcas)
    found |= _compared(all_, "the network is {}", lambda node: node.network or None)
    return found


def _hcas(node: NodeLog) -> int | None:
    """The number of HCAs that NCCL uses; None if its log does not say."""
    return len(node.hcas) if node.hcas or node.network not in ("", "IB") else None


def _inside(node: NodeLog) -> str | None:
    return " and ".join(sorted(node.inside)) or None


def _compared(all_: Sequence[NodeLog], text: str, value: Callable[[NodeLog], Any]) -> dict[str, str]:
    """Texts by node; under "" the text for all, if no value has a majority."""
    votes = vote((number, known) for number, node in enumerate(all_) if (known := value(node)) is not None)
    if not votes.unanimous and not votes.decided:
        sides = [f"{had} on {words.some((all_[at].name for at in of), 2)}" for had, of in votes.ranks_of.items()]
        return {"": f"{text.format(words.some(sides, last=', '))}, expected the same on all"}
    return {
        all_[number].name: f"{text.format(had)}, expected {votes.usual} as on {votes.share('node')}"
        for number, had in votes.odd()
    }


# Why


def naming(*variables: str) -> Callable[[NodeLog], Why | None]:
    """The first of these variables that NCCL has read on the node and that may be the reason."""

    def why(node: NodeLog) -> Why | None:
        return next((_variable(node, name) for name in variables if _turns_off(node, name)), None)

    return why


def _variable(node: NodeLog, name: str) -> Why:
    return Why(f": {name}={node.settings[name]}", name, f"unset {name} (see env | grep {name}; /etc/nccl.conf).")


def why_socket(node: NodeLog) -> Why | None:
    settings = node.settings
    if settings.get("NCCL_NET", "").lower().startswith("socket"):
        return _variable(node, "NCCL_NET")
    if _turns_off(node, "NCCL_IB_DISABLE"):
        return _variable(node, "NCCL_IB_DISABLE")
    vendors = {hca["vendor"] for hca in (node.rdma or {"hcas": []})["hcas"] if hca["name"] in usable(node)}
    if vendors == {AMAZON}:
        return _why_no_efa(node)
    if "NCCL_IB_HCA" in settings and not node.hcas:
        return _variable(node, "NCCL_IB_HCA")
    return None


def _why_no_efa(node: NodeLog) -> Why:
    if node.settings.get("NCCL_NET_PLUGIN", "").lower() == "none":
        return _variable(node, "NCCL_NET_PLUGIN")
    if node.plugin:
        fix = "Run fi_info -p efa there; compare the versions of aws-ofi-nccl, libfabric and NCCL; unset FI_PROVIDER."
        return Why(f": the plugin {node.plugin} is loaded, and NCCL could not start it", None, fix)
    fix = "Install aws-ofi-nccl, and add its folder with libnccl-net.so to LD_LIBRARY_PATH (with EFA's libfabric)."
    return Why(": NCCL uses EFA only through the plugin aws-ofi-nccl, which it did not load", None, fix)


def why_no_gdr(node: NodeLog) -> Why | None:
    answers = [on for line in node.lines for on in line["gdr"].values()]
    if _turns_off(node, "NCCL_NET_GDR_LEVEL"):
        return _variable(node, "NCCL_NET_GDR_LEVEL")
    if answers and not any(answers):
        if _turns_off(node, "NCCL_DMABUF_ENABLE"):
            return _variable(node, "NCCL_DMABUF_ENABLE")
        return Why(": its HCAs have neither nvidia_peermem nor DMA-BUF", None, None)
    off = sorted({name for line in node.lines for name, on in line["gdr"].items() if not on})
    return Why(f": not using {', '.join(off[:4])}", None, None) if off else None
