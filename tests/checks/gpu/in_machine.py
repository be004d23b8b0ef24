"""Runs preflight in a machine of tests/standin."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import running
from tests.nodes import as_nodes
from tests.running import Finished
from tests.standin import library, machines
from tests.standin.machines import Machine

NO_CONTAINER = running.ROOT / "tests" / "no_container"
HARMLESS = ("container", "NVIDIA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST", "CUDA_VISIBLE_DEVICES")
"""Variables of the machine that runs the tests."""
NO_WAIT = ("--set", "gpu.nvlink.training_s=0")
"""The machine that runs the tests may have just booted."""
needs_machines = pytest.mark.skipif(
    not (library.can_build and machines.can_mount), reason="made-up machines need root, unshare and gcc"
)


def environment(machine: Machine, own: Mapping[str, str], *, container: bool = False) -> dict[str, str]:
    environ = {**running.environment(), **machine.environ(), **own}
    for name in set(HARMLESS) - set(own):
        environ.pop(name, None)
    if not container and "PYTHONPATH" not in own:
        environ["PYTHONPATH"] = os.pathsep.join([str(NO_CONTAINER), environ["PYTHONPATH"]])
    return environ


def run(
    machine: Machine, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None, container: bool = False
) -> Finished:
    """One process: `run --level quick --only gpu`, unless the arguments say otherwise."""
    chosen = arguments if "--only" in arguments else ("--level", "quick", "--only", "gpu", *arguments)
    run = running.Run(folder)
    words = running.preflight("run", *chosen, *NO_WAIT, "--report", str(folder), "--deadline", "24")
    run.start(machine.command(words), environment(machine, environ or {}, container=container))
    return run.finish()


def run_ranks(
    machine: Machine,
    folder: Path,
    world: int,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> Finished:
    """Plain ranks on one node. `environ`: variables of all, `own`: of some."""
    run = running.Run(folder)
    words = running.preflight(*_ours(folder), *arguments)
    for rank, places in enumerate(_places(world)):
        variables = {**places, "LOCAL_RANK": str(rank), **(environ or {}), **(own or {}).get(rank, {})}
        run.start(machine.command(words), environment(machine, variables))
    return run.finish()


def run_nodes(
    nodes: Sequence[Machine],
    folder: Path,
    *arguments: str,
    wrap: Mapping[int, Sequence[str]] | None = None,
) -> Finished:
    """A plain rank on each of these nodes. `wrap`: words before a rank's command."""
    run = running.Run(folder)
    words = running.preflight(*_ours(folder), *arguments)
    own = as_nodes(len(nodes), {})
    for rank, places in enumerate(_places(len(nodes))):
        variables = {**places, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **own[rank]}
        command = nodes[rank].command([*(wrap or {}).get(rank, ()), *words])
        run.start(command, environment(nodes[rank], variables))
    return run.finish()


def own_uuids(number: int, gpus: int = 8) -> dict[str, object]:
    """Changes of a machine that is not the only one of its kind in a run."""
    return {f"gpu.{gpu}.uuid": f"GPU-{number}-{gpu}" for gpu in range(gpus)}


def _ours(folder: Path) -> tuple[str, ...]:
    return ("--report", str(folder), "--deadline", str(running.DEADLINE_S), *NO_WAIT)


def _places(world: int) -> list[dict[str, str]]:
    """What the launcher tells each rank."""
    usual = running.environment()
    return [{name: text for name, text in env.items() if name not in usual} for env in running.plain_ranks(world)]
