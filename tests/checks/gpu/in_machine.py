"""Runs preflight in a machine of tests/standin."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import running
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


def run_ranks(machine: Machine, folder: Path, world: int, *arguments: str, **more: str) -> Finished:
    """Plain ranks on one node."""
    run = running.Run(folder)
    ours = ("--report", str(folder), "--deadline", str(running.DEADLINE_S), *NO_WAIT)
    words = running.preflight(*ours, *arguments)
    for rank, places in enumerate(running.plain_ranks(world)):
        place = {name: places[name] for name in places if name not in running.environment()}
        run.start(machine.command(words), environment(machine, {**place, "LOCAL_RANK": str(rank), **more}))
    return run.finish()
