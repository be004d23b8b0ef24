"""What gpu.topology and gpu.nvlink measure on made-up nodes, for tests of judge() and plot()."""

from typing import Any

from preflight.check import Job, Node, Run, plots
from preflight.checks.gpu import topology
from preflight.checks.gpu.topology import topo_drawing
from preflight.results import text_plots
from tests.checks.gpu import made_gpus
from tests.checks.gpu.made_gpus import on_nodes

Facts = dict[int, dict[str, Any]]
CPUS = (range(56), range(56, 112))


def place(node: int, gpu: int, gpus: int) -> dict[str, Any]:
    """Two sockets; the GPUs of one are NODE apart."""
    socket = gpu * 2 // gpus
    peers = {
        f"GPU-{node}-{other}": {
            "ancestor": 40 if other * 2 // gpus == socket else 50, "read": 0, "write": 0, "nvlink": 0, "atomics": 0,
        }
        for other in range(gpus)
        if other != gpu
    }  # fmt: skip
    return {"peers": peers, "cpus": list(CPUS[socket]), "numa": None, "memory_nodes": [socket]}


def device(gpu: int, port: int, gpus: int) -> dict[str, Any]:
    """A GPU (port 0) or its NIC (port 1): a PCIe switch for each pair of them."""
    path = [f"pci0000:{gpu:02x}", f"0000:{gpu:02x}:01.0", f"0000:{gpu:02x}:02.0", f"0000:{gpu:02x}:03.{port}"]
    socket = gpu * 2 // gpus
    return {
        "path": [*path, f"0000:{gpu + 16:02x}:0{port}.0"],
        "numa": socket,
        "cpus": ("0-55", "56-111")[min(socket, 1)],
    }


def wired(*sizes: int) -> tuple[Facts, Facts]:
    """What gpu.topology and gpu.nvlink measure on nodes with NVSwitches, a rank and a NIC for each GPU."""
    facts: Facts = {}
    links: Facts = {}
    ranks = ((node, local, size) for node, size in enumerate(sizes) for local in range(size))
    for rank, (node, local, size) in enumerate(ranks):
        gpus = range(size if local == 0 else 0)
        link = [{"active": True, "remote": "0000:05:00.0", "remote_type": "switch"}] * 18
        for of, values in (
            (facts, {f"GPU-{node}-{gpu}": place(node, gpu, size) for gpu in gpus}),
            (links, {f"GPU-{node}-{gpu}": {"links": link, "fabric": None} for gpu in gpus}),
        ):
            of[rank] = {"look": made_gpus.look(values)}
        facts[rank] |= {
            "gpus": {f"0000:{gpu + 16:02x}:00.0": device(gpu, 0, size) for gpu in gpus},
            "nics": {f"mlx5_{gpu}": device(gpu, 1, size) for gpu in gpus},
            "cpus": "0-111", "bound": False, "cpu": {"vendor": "GenuineIntel", "virtual": False},
        }  # fmt: skip
    return facts, links


def peer(facts: Facts, rank: int, one: str, other: str) -> dict[str, Any]:
    found: dict[str, Any] = facts[rank]["look"]["gpus"][one]["peers"][other]
    return found


def apart(facts: Facts, rank: int, one: str, other: str, **more: int) -> None:
    """Both ways."""
    peer(facts, rank, one, other).update(more)
    peer(facts, rank, other, one).update(more)


def unlink(links: Facts) -> None:
    for link in links.values():
        for values in link["look"]["gpus"].values():
            values["links"] = []


def by_srun(facts: Facts, links: Facts) -> None:
    """`srun --gpus-per-task=1`: each rank sees its own GPU alone."""
    first, first_links = facts[0]["look"]["gpus"], links[0]["look"]["gpus"]
    for rank in facts:
        uuid = f"GPU-0-{rank}"
        facts[rank] |= {"gpus": facts[0]["gpus"], "nics": facts[0]["nics"]}
        facts[rank]["look"] = made_gpus.look({uuid: {**first[uuid], "peers": {}}})
        links[rank]["look"] = made_gpus.look({uuid: first_links[uuid]})


def no_p2p(facts: Facts, links: Facts) -> None:
    apart(facts, 8, "GPU-1-2", "GPU-1-5", read=3, write=3, nvlink=3)


def put_apart(facts: Facts, links: Facts) -> None:
    for other in (0, 1, 2):
        apart(facts, 8, "GPU-1-3", f"GPU-1-{other}", ancestor=50)


def take_nic(facts: Facts, links: Facts) -> None:
    del facts[8]["nics"]["mlx5_6"]


def drawn(facts: Facts, links: Facts, *sizes: int, inventory: Facts | None = None) -> list[str]:
    nodes = tuple(Node(name, number, tuple(ranks)) for number, (name, ranks) in enumerate(on_nodes(*sizes).items()))
    of = {"gpu.inventory": inventory or made_gpus.inventory(*sizes), "gpu.nvlink": links}
    run = Run(Job("torchrun", sum(sizes), "nccl", nodes), tuple(facts), {}, {}, lambda check: of[check])
    of_table = (plot.to_json() for plot in topology.plot(facts, run) if isinstance(plot, plots.Table))  # type: ignore[arg-type]
    return [line for plot in of_table for line in text_plots.lines(plot, topo_drawing.WIDTH)]
