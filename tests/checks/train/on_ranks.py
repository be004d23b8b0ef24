"""Measures models of tests/models on real ranks: processes forked from one that has imported torch, in one group.

`python -m tests.checks.train.on_ranks WORLD DEADLINE STRATEGIES MODULE:FUNCTION...` prints, for each model, a line of
JSON: the facts of each rank, or why it stood aside, or what it raised. The engine's part (who hangs, who dies) is
tested by real runs.
"""

import functools
import importlib
import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

from preflight.check import Context, Job, Level, Node, Skip, UserCode
from tests import forked, running

PATIENCE = timedelta(seconds=60)
DEADLINE_S = 240
"""After which the kernel ends ranks that wait for each other: here no engine does."""


def measured(
    world: int, *models: str, strategies: str = "ddp/plain,fsdp2/plain", deadline_s: float = 60,
    path: tuple[str, ...] = (),
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """By the model: for each rank {"facts": ..., "skipped": ..., "raised": ...}. A model's words may follow it:
    strategies=... and tp_plan=... `path`: further folders of modules."""
    words = (str(world), str(deadline_s), strategies, *models)
    paths = os.pathsep.join([str(running.ROOT), *path])
    output = running.output_of("tests.checks.train.on_ranks", *words, limit_s=DEADLINE_S + 60, PYTHONPATH=paths)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {model: [line[model] for line in lines if model in line] for model in models}


def _rank(rank: int, world: int, port: int, deadline_s: float, strategies: str, models: list[str]) -> None:
    dist: Any = importlib.import_module("torch.distributed")  # mypy knows few of its names

    from preflight.checks.train import model as check
    from preflight.checks.train.model import user_model
    from preflight.checks.train.model.facts import Wanted
    from preflight.checks.train.shared import model_source

    signal.alarm(DEADLINE_S)
    os.environ["RANK"] = str(rank)
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0, timeout=PATIENCE, wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=world)
    group = dist.group.WORLD
    for number, name in enumerate(models):
        context = Context(
            check="train.model",
            job=Job("env", world, "gloo", (Node("node-0", 0, tuple(range(world))),)),
            rank=rank,
            local_rank=rank,
            members=tuple(range(world)),
            environ={},
            deadline_s=deadline_s,
            page=forked.NoPage(),
            make_group=lambda: group,
            make_store=functools.partial(dist.PrefixStore, f"model-{number}", store),
            make_part=lambda ranks: dist.new_group(list(ranks), use_local_synchronization=True),
            level=Level.STANDARD,
        )
        told: dict[str, Any] = {"rank": rank, "facts": None, "skipped": None, "raised": None}
        start = time.perf_counter()
        try:
            model, *words = name.split()
            more = dict(word.split("=") for word in words)
            code = model_source.parse(model)
            wanted = Wanted(
                check.STRATEGIES.type(more.get("strategies", strategies)) or {}, asked=True, threads=1,
                tp_plan=UserCode.parse(more["tp_plan"]) if "tp_plan" in more else None,
            )  # fmt: skip
            told["facts"] = user_model.measure(context, code, wanted)
        except Skip as skip:
            told["facts"], told["skipped"] = skip.facts, str(skip)
        except Exception:
            told["raised"] = traceback.format_exc()
        told["seconds"] = time.perf_counter() - start
        store.set(f"told/{number}/{rank}", json.dumps({name: told}))
        if rank == 0:
            for other in range(world):
                os.write(1, b"\n" + store.get(f"told/{number}/{other}") + b"\n")  # at once: others write there, too
    store.set(f"end/{rank}", "")
    if rank == 0:  # it holds the store
        store.wait([f"end/{other}" for other in range(world)])
    os._exit(0)


def _main(world: int, deadline_s: float, strategies: str, models: list[str]) -> None:
    import torch.distributed  # noqa: F401 -- before the fork: once for all ranks

    from preflight.checks.train.model import user_model  # noqa: F401
    from preflight.train_smoke.strategies import ddp, fsdp2  # noqa: F401
    from preflight.train_smoke.trainer import task
    from preflight.train_smoke.user import traits  # noqa: F401

    task.import_dynamo()
    port = running.free_port()
    forked.run(world, lambda rank: _rank(rank, world, port, deadline_s, strategies, models))


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
