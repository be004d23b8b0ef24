"""Nodes on one machine, without root: plain ranks that call themselves nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import running
from tests.running import Finished

DEADLINE_S = 120
"""A third of it is for the roll call: ten ranks import torch on two cores."""


def as_nodes(world: int, own: Mapping[int, Mapping[str, str]]) -> dict[int, dict[str, str]]:
    """What makes each of the ranks a node of its own: "node-0", "node-1", ... `own`: what some have beside it."""
    return {
        rank: {"NODE_RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}", **own.get(rank, {})} for rank in range(world)
    }


def run_nodes(
    folder: Path,
    world: int,
    *arguments: str,
    own: Mapping[int, Mapping[str, str]] | None = None,
    before: Mapping[int, str] | None = None,
    wrap: Mapping[int, Sequence[str]] | None = None,
    places: Mapping[int, Path] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Finished:
    """One rank per node. `own`: variables of some. `before`: lines of a shell that a rank begins with, among mounts of
    its own; $PPID is the rank. `wrap`: words before a rank's command, which then starts cold. `places`: current
    folders. `environ`: variables of all."""
    run = running.Run(folder, DEADLINE_S)
    words = [*arguments, "--report", str(folder), "--deadline", str(DEADLINE_S)]
    nodes = as_nodes(world, own or {})
    for rank, env in enumerate(running.plain_ranks(world)):
        own_env = {**env, **(environ or {}), **nodes[rank]}
        first, around = (before or {}).get(rank, ""), (wrap or {}).get(rank, ())
        run.start_rank(rank, words, own_env, cwd=(places or {}).get(rank), before=first, wrap=around)
    return run.finish()
