"""Ranks that save and load, without preflight's engine: `python -m tests.train_smoke.checkpoint_ranks WORLD FOLDER
[STRATEGY/FORM ...]` starts them once. Rank R leaves FOLDER/R.jsonl: the facts of each form, a line each."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preflight.train_smoke.checkpoint.names import CHECKPOINTS
from tests import running
from tests.train_smoke.ranks import fork_ranks, join


def saved(world: int, folder: Path, names: Sequence[str], *, limit_s: float) -> list[dict[str, Any]]:
    """The facts of each rank: {"spread", "saved"}, of all forms."""
    words = (str(world), str(folder), *names)
    running.output_of("tests.train_smoke.checkpoint_ranks", *words, limit_s=limit_s)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def _rank(rank: int, world: int, folder: Path, names: Sequence[str]) -> None:
    from torch import distributed as dist

    from preflight.train_smoke.checkpoint.run import SavePlace, run

    setting = join(rank, world, folder, limit_s=120)
    place = SavePlace(folder / "files", not rank, setting)
    facts = run({name: CHECKPOINTS[name] for name in names}, place)
    (folder / f"{rank}.json").write_text(json.dumps(facts))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    import preflight.train_smoke.checkpoint.run  # noqa: F401 -- once, for all ranks

    sys.exit(fork_ranks(int(sys.argv[1]), _rank, Path(sys.argv[2]), sys.argv[3:]))
