"""Measures loaders of tests/loaders on real ranks: processes forked from one that has imported torch, in one group.

`python -m tests.checks.data.on_ranks WORLD CASE...` prints, for each case and rank, a line of JSON: the facts of
data.sampler and (but of mistaken loaders) of data.seeds, or what was raised. A case is MODULE:FUNCTION, and settings of
data.sampler behind it ("...:endless samples=400"). The engine's part (who hangs, who dies) is tested by real runs.
"""

import functools
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from types import ModuleType
from typing import Any

from preflight.check import Context, Job, Level, Node, Option, UserCode
from tests import forked, running

PATIENCE = timedelta(seconds=60)
DEADLINE_S = 240
"""After which the kernel ends ranks that wait for each other: here no engine does."""
ONE_CHECK = ("sampler",)
BOTH = (*ONE_CHECK, "seeds")
SEEDED = ("sound", "streams", "seeds")
"""Modules whose loaders both are asked of."""


def measured(world: int, *cases: str, path: tuple[str, ...] = (), package: str = "") -> dict[str, list[dict[str, Any]]]:
    """By the case: for each rank {"rank": 0, "sampler": facts, "seeds": facts, "raised": text or None}. `path`: folders
    of packages that other tests do without. `package`: is imported once, for all ranks."""
    words = (str(world), *cases)
    with tempfile.TemporaryDirectory(prefix="written-") as folder:
        paths = os.pathsep.join([str(running.ROOT), *path])
        own = {"PYTHONPATH": paths, "TEST_FOLDER": folder, "PACKAGE": package}
        output = running.output_of("tests.checks.data.on_ranks", *words, limit_s=DEADLINE_S + 60, **own)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {case: [line for line in lines if line["case"] == case] for case in cases}


def _rank(rank: int, world: int, port: int, cases: list[str]) -> None:
    dist: Any = importlib.import_module("torch.distributed")  # mypy knows few of its names
    signal.alarm(DEADLINE_S)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0, timeout=PATIENCE, wait_for_workers=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=world)
    for number, case in enumerate(cases):
        told = _told(case, rank, world, functools.partial(dist.PrefixStore, f"case-{number}", store))
        store.set(f"told/{number}/{rank}", json.dumps(told))
        if rank == 0:
            for other in range(world):
                os.write(1, b"\n" + store.get(f"told/{number}/{other}") + b"\n")  # at once: others write there, too
    store.set(f"end/{rank}", "")
    if rank == 0:  # it holds the store
        store.wait([f"end/{other}" for other in range(world)])
    os._exit(0)


def _told(case: str, rank: int, world: int, make_store: Any) -> dict[str, Any]:
    from preflight.checks import data

    told: dict[str, Any] = {"case": case, "rank": rank, "raised": None}
    start = time.perf_counter()
    _as_in_a_new_process()
    try:
        for check in BOTH if case.partition(":")[0].rpartition(".")[2] in SEEDED else ONE_CHECK:
            module = importlib.import_module(f"{data.__name__}.{check}")
            options = _options(module, check, case, rank)
            told[check] = module.measure(_context(f"data.{check}", rank, world, make_store, options))
    except Exception:
        told["raised"] = traceback.format_exc()
    return {**told, "seconds": time.perf_counter() - start}


def _as_in_a_new_process() -> None:
    """Which begins with seeds of its own."""
    import torch

    torch.seed()
    random.seed()


def _options(module: ModuleType, check: str, case: str, rank: int) -> dict[Option[Any], Any]:
    """Rank 1 alone is impatient: it is the one that is stuck, and others may be slow on a loaded machine."""
    name, *settings = case.split()
    texts = dict(setting.split("=") for setting in settings) if check == "sampler" else {}
    if rank != 1:
        texts.pop("patience_s", None)
    given = {getattr(module, key.upper()): text for key, text in texts.items()}
    return {module.DATA: UserCode.parse(name), **{option: option.type(text) for option, text in given.items()}}


def _context(check: str, rank: int, world: int, make_store: Any, options: dict[Option[Any], Any]) -> Context:
    dist: Any = importlib.import_module("torch.distributed")
    return Context(
        check=check,
        job=Job("env", world, "gloo", (Node("node-0", 0, tuple(range(world))),)),
        rank=rank,
        local_rank=rank,
        members=tuple(range(world)),
        environ={},
        deadline_s=60,
        page=forked.NoPage(),
        make_group=lambda: dist.group.WORLD,
        make_part=lambda ranks: dist.new_group(list(ranks), use_local_synchronization=True),
        make_store=lambda: make_store(),
        options=options,
        level=Level.STANDARD,
    )


def _main(world: int, cases: list[str]) -> None:
    import torch.distributed
    import torch.utils.data  # noqa: F401 -- before the fork: once for all ranks

    if package := os.environ.get("PACKAGE"):
        importlib.import_module(package)
    port = running.free_port()
    forked.run(world, lambda rank: _rank(rank, world, port, cases))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
