"""Nodes on one machine, without root: plain ranks that call themselves nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import running
from tests.running import Finished


def as_nodes(world: int, own: Mapping[int, Mapping[str, str]]) -> dict[int, dict[str, str]]:
    """What makes each of the ranks a node of its own: "node-0", "node-1", ... `own`: what some have beside it."""
    return {
        rank: {"NODE_RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}", **own.get(rank, {})} for rank in range(world)
    }


def run_nodes(
    folder: Path,
    world: int,
    *arguments: str,
    odd: Mapping[str, str] | None = None,
    wrap: Mapping[int, Sequence[str]] | None = None,
    places: Mapping[int, Path] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Finished:
    """One rank a node. `odd`: variables of the second. `wrap`: words before a rank's command. `places`: current
    folders. `environ`: variables of all."""
    run = running.Run(folder)
    words = running.preflight(*arguments, "--report", str(folder), "--deadline", str(running.DEADLINE_S))
    nodes = as_nodes(world, {1: odd or {}})
    for rank, env in enumerate(running.plain_ranks(world)):
        command = [*(wrap or {}).get(rank, ()), *words]
        run.start(command, {**env, **(environ or {}), **nodes[rank]}, cwd=(places or {}).get(rank))
    return run.finish()
