"""train.speed on nodes of which one has less memory, fewer cores or a slow link."""

from collections.abc import Callable
from pathlib import Path

from tests.faults.train_speed import WIDE
from tests.nodes import run_nodes
from tests.on_hosts import found_as

ONLY = ("--only", "train.speed")
ONE_A_NODE = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def _set(**settings: str) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"train.speed.{name}={value}")]


def test_a_batch_that_does_not_fit_into_a_container(cgroups: Callable[..., str], tmp_path: Path) -> None:
    limit = str(2**30)
    before = {1: cgroups("memory", ("memory.limit_in_bytes", limit), ("memory.max", limit))}
    finished = run_nodes(tmp_path, 2, *ONLY, *_set(model=WIDE, batch="5000"), before=before, environ=ONE_A_NODE)
    found_as("speed_wont_fit_cgroup", finished)
