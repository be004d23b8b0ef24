"""Real ranks, whose NCCL is a stand-in (tests/nccl_at_work): its log is made up or recorded, what reads it is not."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import running
from tests.nodes import run_nodes
from tests.running import Finished
from tests.standin import library
from tests.standin.machines import Machine

AT_WORK = os.pathsep.join(map(str, (running.ROOT / "tests" / "nccl_at_work", running.ROOT, running.PLUGINS)))


def run(
    folder: Path, only: str, logs: Mapping[int, str], errors: Mapping[int, str] | None = None, *, world: int,
    per_node: int = 1, machines: Sequence[Machine] = (), own: Mapping[int, Mapping[str, str]] | None = None,
) -> Finished:  # fmt: skip
    """`logs`, `errors`: by rank. `per_node`: ranks on each node. `machines`: what each node is; without them they have
    neither GPUs nor HCAs. `own`: further variables, by rank."""
    of = {rank: machines[rank // per_node] for rank in range(world)} if machines else {}
    places = {
        rank: {**_place(rank, per_node), **(_nvml(of[rank]) if of else {}), **(own or {}).get(rank, {})}
        for rank in range(world)
    }
    before = {rank: machine.before() for rank, machine in of.items()}
    environ = written(folder, logs, errors or {})
    return run_nodes(folder, world, "--only", only, own=places, environ=environ, before=before)


def written(folder: Path, logs: Mapping[int, str], errors: Mapping[int, str]) -> dict[str, str]:
    """The environment in which the stand-in finds them."""
    nccl = folder / "nccl"
    nccl.mkdir()
    for rank, text in logs.items():
        (nccl / f"{rank}.log").write_text(text)
    for rank, text in errors.items():
        (nccl / f"{rank}.error").write_text(text)
    return {"PYTHONPATH": AT_WORK, "PREFLIGHT_TEST_NCCL": str(nccl), "NCCL_CONF_FILE": "/dev/null"}


def _nvml(machine: Machine) -> dict[str, str]:
    """Without LD_LIBRARY_PATH, with which a rank would have to import torch anew."""
    environ = {name: text for name, text in machine.environ().items() if not name.startswith("LD_")}
    return {**environ, "PREFLIGHT_TEST_NVML": str(machine.library / library.NAME)}


def _place(rank: int, per_node: int) -> dict[str, str]:
    node = {"NODE_RANK": str(rank // per_node), "SLURMD_NODENAME": f"node-{rank // per_node}"}
    return {**node, "LOCAL_RANK": str(rank % per_node), "LOCAL_WORLD_SIZE": str(per_node)}
