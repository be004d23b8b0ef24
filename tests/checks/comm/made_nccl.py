"""Logs of NCCL on made-up machines, line by line in the wordings of its versions; and what other checks say of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from preflight.checks.comm import transports
from preflight.nccl import log_lines
from preflight.nccl.log_lines import Lines
from tests.checks.gpu import made_gpus


@dataclass(frozen=True)
class Machine:
    """A cluster of nodes like it. Beginning as a DGX H100."""

    gpus: int = 8
    nodes: int = 2
    name: str = "NVIDIA H100 80GB HBM3"
    version: str = "2.27.5"
    inside: str = "P2P/CUMEM"
    """The way between ranks of one node; "" with one GPU a node."""
    across: str = "IB"
    """The network in use."""
    gdr: bool = True
    supported: bool = True
    """Whether the HCAs can reach GPU memory."""
    hcas: tuple[str, ...] = tuple(f"mlx5_{number}" for number in range(8))
    active: bool = True
    """Whether net.rdma sees them up."""
    vendor: str = "0x15b3"
    rate: float = 400.0
    layer: str = "InfiniBand"
    virtual: bool = False
    plugin: str = ""
    nvls: bool = True
    links: int = 18
    """NVLinks of a GPU to switches."""
    link_version: int = 4
    speed: int = 26562
    mnnvl: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    split: bool = False
    """Each rank is a node to NCCL."""
    p2p_works: bool = True
    sockets: str = "eth0"


A100 = Machine(name="NVIDIA A100-SXM4-80GB", version="2.18.5", inside="P2P/IPC", nvls=False, links=12, link_version=3,
               speed=25000, rate=200.0)  # fmt: skip
L40S = Machine(name="NVIDIA L40S", version="2.21.5", inside="SHM", across="Socket", hcas=(), nvls=False, links=0)
EFA = Machine(across="AWS Libfabric", plugin="AWS Libfabric", vendor="0x1d0f", version="2.23.4",
              hcas=tuple(f"rdmap{number}s0" for number in range(32)), rate=100.0)  # fmt: skip
GB200 = Machine(gpus=4, nodes=4, name="NVIDIA GB200", version="2.28.9", across="MNNVL", inside="P2P/MNNVL", links=18,
                link_version=5, speed=53125, mnnvl=True, hcas=("mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4"))  # fmt: skip
ONE_GPU = Machine(gpus=1, nodes=4, name="NVIDIA A100-PCIE-40GB", inside="", nvls=False, links=0, hcas=("mlx5_0",),
                  rate=100.0, version="2.14.3")  # fmt: skip
FAR_NIC = replace(A100, gdr=False, version="2.30.7")
"""GPUs and HCAs on different sockets: NCCL leaves GPUDirect off, though the modules are there."""
ROCE = replace(A100, version="2.24.3", hcas=("mlx5_bond_0", "mlx5_2"), plugin="IBext", across="IBext")
ALONE = Machine(nodes=1, hcas=())
GEFORCE = Machine(gpus=4, name="NVIDIA GeForce RTX 4090", inside="SHM", gdr=False, supported=False, nvls=False, links=0,
                  hcas=("mlx5_0",), p2p_works=False)  # fmt: skip
FAKED = Machine(gpus=1, nodes=4, inside="", across="Socket", hcas=(), nvls=False, settings={"NCCL_HOSTID": "a"})
"""Ranks on one GPU, each with an NCCL_HOSTID and a node of its own."""
CONFINED = Machine(nodes=1, gpus=4, inside="P2P/CUMEM", across="Socket", hcas=(), version="2.30.7")
AZURE = replace(L40S, hcas=("mlx5_0",), layer="Ethernet", virtual=True, settings={"NCCL_IB_DISABLE": "1"})
"""A virtual machine whose plain network card is a virtual function of a card that knows RDMA."""
SOUND = {
    "plain_cloud": AZURE,
    "dgx_h100": Machine(), "a100": A100, "l40s_pcie": L40S, "efa": EFA, "gb200": GB200, "one_gpu_a_node": ONE_GPU,
    "far_nic": FAR_NIC, "roce_with_plugin": ROCE, "one_node": ALONE, "geforce": GEFORCE, "faked_nodes": FAKED,
    "four_of_a_node": CONFINED, "newest": replace(Machine(), version="2.30.7"),
    "b200": Machine(name="NVIDIA B200", link_version=5, speed=53125, nodes=4),
    "many": replace(Machine(), nodes=128),
}  # fmt: skip


def number(machine: Machine) -> int:
    major, minor, patch = map(int, machine.version.split("."))
    return major * 10000 + minor * 100 + patch


def log(machine: Machine, rank: int) -> str:
    return "\n".join(lines(machine, rank)) + "\n"


def lines(machine: Machine, rank: int, host: str = "gpu") -> Iterator[str]:
    """With some that are noise."""
    at = f"{host}-{rank // machine.gpus}:{4000 + rank}:{4100 + rank} [{rank % machine.gpus}] NCCL INFO"
    yield from (f"{at} {text}" for text in _texts(machine, rank, number(machine)))


def _texts(machine: Machine, rank: int, version: int) -> Iterator[str]:
    ranks = machine.gpus * machine.nodes
    yield "cudaDriverVersion 12040"
    if rank == 0 or version >= 22400:
        yield f"NCCL version {machine.version}+cuda12.4"
    for name, value in machine.settings.items():
        if name not in transports.UNTOLD:
            yield f"{name} set by environment to {value}."
    yield f"Bootstrap{' ' if version < 22400 else ''}: Using {machine.sockets}:10.0.0.{rank // machine.gpus}<0>"
    yield from _plugin(machine, version)
    if machine.across in ("IB", "MNNVL") and machine.hcas:
        cards = "".join(f" [{place}]{name}:1/IB" for place, name in enumerate(machine.hcas))
        yield f"NET/IB : Using{cards} [RO]; OOB {machine.sockets}:10.0.0.1<0>"
    elif not machine.plugin:
        yield "NET/IB : No device found."
        yield f"NET/Socket : Using [0]{machine.sockets}:10.0.0.1<0>"
    net = machine.across if machine.across != "MNNVL" else "IB"
    for place, name in enumerate(machine.hcas):
        state = "Enabled" if machine.supported else "Disabled"
        yield f"NET/{net} : GPU Direct RDMA {state} for HCA {place} '{name}'"
    yield f"Using network {net}"
    if version >= 22700:
        yield f"Assigned NET plugin {net} to comm"
    if version >= 21700 and machine.settings.get("NCCL_NVLS_ENABLE") != "0":
        yield f"NVLS multicast support is {'' if machine.nvls else 'not '}available on dev {rank % machine.gpus}"
    local = 1 if machine.split else ranks if machine.mnnvl else machine.gpus
    if version >= 22100:
        yield (f"comm 0x55aa rank {rank} nRanks {ranks} nNodes {ranks // local} localRanks {local} localRank "
               f"{rank % local} MNNVL {int(machine.mnnvl)}")  # fmt: skip
    yield "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1"
    yield from _channels(machine, rank, version)
    yield _counts(machine, version)


def _plugin(machine: Machine, version: int) -> Iterator[str]:
    if machine.plugin:
        yield f"NET/Plugin: Loaded net plugin {machine.plugin} (v8)"
        yield "NET/Plugin: Failed to find ncclCollNetPlugin_v9 symbol."
    elif version >= 22400:
        yield "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
    else:
        yield "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"


def _channels(machine: Machine, rank: int, version: int) -> Iterator[str]:
    ranks, gpus = machine.gpus * machine.nodes, machine.gpus
    for step in sorted({1, gpus}):
        other = (rank + step) % ranks
        for channel in range(2 if other != rank else 0):
            ends = f"{rank}[{_device(rank % gpus, version)}] -> {other}[{_device(other % gpus, version)}]"
            yield from _way(machine, f"Channel {channel:02}/0 : {ends}", other // gpus == rank // gpus, version)
    yield "Connected all rings" + (", use ring PXN 0 GDR 1" if version >= 22400 else "")


def _device(local: int, version: int) -> str:
    """Its bus id, or since 2.18 NVML's number."""
    return f"{local + 26:x}000" if version < 21800 else str(local)


def _way(machine: Machine, start: str, inside: bool, version: int) -> Iterator[str]:
    if inside and machine.inside.startswith("P2P"):
        yield f"{start} via {machine.inside}{'/read' if version >= 21800 else ''}"
    elif inside and machine.inside == "SHM":
        yield f"{start.replace('/0 :', ' :')} via SHM/direct{'' if version >= 23000 else '/direct'}"
    elif machine.across == "MNNVL":
        yield f"{start} via P2P/MNNVL"
    else:
        end = "/GDRDMA" if machine.gdr and machine.across != "Socket" else ""
        card = int(start.split("->")[0].split("[")[1].split("]")[0], 16) % max(1, len(machine.hcas))
        yield f"{start} [send] via NET/{machine.across}/{card}{end}"
        yield f"{start} [receive] via NET/{machine.across}/{card}{end}{'/Shared' if version >= 21800 else ''}"


def _counts(machine: Machine, version: int) -> str:
    nvls = f"{16 if machine.nvls else 0} nvls channels, " if version >= 21700 else ""
    collnet = "0 collnet channels, " if version >= 22000 else ""
    return f"16 coll channels, {collnet}{nvls}16 p2p channels, 2 p2p channels per peer"


# What the checks have measured


def facts(machine: Machine, changes: Mapping[int, Machine] | None = None) -> dict[int, Lines]:
    """By rank, read by the real parser. `changes`: other machines, by node."""
    found = {}
    for rank in range(machine.gpus * machine.nodes):
        of = (changes or {}).get(rank // machine.gpus, machine)
        read = log_lines.parse(log(of, rank), lambda a, b: a // machine.gpus == b // machine.gpus)
        untold = {name: value for name, value in of.settings.items() if name in transports.UNTOLD}
        found[rank] = {**read, "version": of.version, "settings": {**read["settings"], **untold}}
    return found  # type: ignore[return-value]


def on_nodes(machine: Machine) -> dict[str, range]:
    return made_gpus.on_nodes(*[machine.gpus] * machine.nodes)


def reads(machine: Machine, changes: Mapping[int, Machine] | None = None) -> dict[str, dict[int, Any]]:
    """Of the first rank of each node."""
    of = {node * machine.gpus: (changes or {}).get(node, machine) for node in range(machine.nodes)}
    return {
        "net.rdma": {rank: _rdma(machine) for rank, machine in of.items() if machine.hcas},
        "gpu.nvlink": {rank: {"look": made_gpus.look(_links(machine, rank))} for rank, machine in of.items()},
        "gpu.topology": {rank: {"look": made_gpus.look(_places(machine, rank))} for rank, machine in of.items()},
        "gpu.inventory": {
            rank: {"seen": {"gpus": made_gpus.handles(rank, machine.gpus, machine.name)}}
            for rank, machine in of.items()
        },
    }


def _rdma(machine: Machine) -> dict[str, Any]:
    port = {"port": 1, "state": "ACTIVE" if machine.active else "DOWN", "layer": machine.layer, "rate": machine.rate}
    hcas = [{"name": name, "vendor": machine.vendor, "opens": True, "virtual": machine.virtual, "ports": [port]}
            for name in machine.hcas]  # fmt: skip
    return {"hcas": hcas, "silent": {}, "settings": {}}


def _links(machine: Machine, rank: int) -> dict[str, Any]:
    link = {"active": True, "version": machine.link_version, "speed_mbps": machine.speed, "remote_type": "switch"}
    return {f"GPU-{rank}-{gpu}": {"links": [link] * machine.links, "fabric": None} for gpu in range(machine.gpus)}


def _places(machine: Machine, rank: int) -> dict[str, Any]:
    read = 0 if machine.p2p_works else 3
    names = [f"GPU-{rank}-{gpu}" for gpu in range(machine.gpus)]
    return {name: {"peers": {other: {"read": read} for other in names if other != name}} for name in names}


def where(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    """(severity, slug, node, variable)."""
    slugs = [(finding["severity"], finding["code"].rpartition(".")[2], finding["where"]) for finding in found]
    return [(severity, slug, place.get("node"), place.get("variable")) for severity, slug, place in slugs]
