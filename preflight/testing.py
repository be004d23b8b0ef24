"""For the authors of checks: `judge` on made-up ranks, `measure` on real ones.

    found = testing.judge(my_check, {0: {"free_gb": 0}, 1: {"free_gb": 9}}, settings={"least_gb": 1})
    assert [(finding["code"], finding["where"]["rank"]) for finding in found] == [("plugin.my_check.full", 0)]
    assert testing.measure(my_check, world=2)["exit_code"] == 0
"""  # fmt: skip

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from preflight.check import Job, Node, Outcome
from preflight.core.facts import FactsStore, to_text
from preflight.engine.local_launch import free_port
from preflight.planning import registry
from preflight.results import judging


def judge(
    module: ModuleType, facts: Mapping[int, object], *, nodes: Mapping[str, Iterable[int]] | None = None,
    backend: str = "gloo", settings: Mapping[str, object] | None = None,
    outcomes: Mapping[int, Outcome] | None = None, reads: Mapping[str, Mapping[int, object]] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The findings of `module.judge` for these facts by rank, as the report holds them.

    `nodes`: the ranks of each node; by default all are on one. `settings`: options by name. `outcomes`: those of ranks
    without facts. `reads`: facts of other checks by id. Raises AssertionError with the check's error where judge() or
    summarize() raises or breaks the contract, BadFacts for invalid facts, UsageError for unknown settings, and
    ValueError for a rank that is on no node.
    """
    source, book = _source(module), FactsStore()
    texts = {f"{source.id}.{name}": str(value) for name, value in (settings or {}).items()}
    for id_, by_rank in {**(reads or {}), source.id: facts}.items():
        for rank, value in by_rank.items():
            book.add(id_, [rank], to_text(value))
    ended = {**dict.fromkeys(facts, Outcome("measured")), **(outcomes or {})}
    placed = enumerate((nodes or {"node-0": sorted(ended)}).items())
    listed = tuple(Node(name, number, tuple(ranks)) for number, (name, ranks) in placed)
    nowhere = sorted(set(ended) - {rank for node in listed for rank in node.ranks})
    if nowhere:
        raise ValueError(f"rank {nowhere[0]} is on none of the nodes {', '.join(nodes or {})}")
    world = 1 + max([0, *ended, *(rank for node in listed for rank in node.ranks)])
    sys.modules[module.__name__] = module  # judging loads it by its name
    answer = judging.call_judge(source, Job("env", world, backend, listed), ended, book, texts)
    if "error" in answer or answer["summary"].startswith(judging.BROKEN_SUMMARY):
        raise AssertionError(f"{source.id}: {answer.get('error') or answer['summary']}\n{answer.get('stack', '')}")
    registry.unknown_settings(registry.describe(source, module), texts)
    return [json.loads(json.dumps(finding)) for finding in answer["findings"]]


def measure(
    module_or_path: ModuleType | str, *, world: int = 2, settings: Mapping[str, object] | None = None,
    backend: str = "auto", deadline_s: float = 60.0, level: str = "standard",
) -> dict[str, Any]:  # fmt: skip
    """The report, with facts, of a run of this check and what it needs on `world` real ranks of this machine.

    A path or a module's name is what `--plugin` takes; `level` is what the check sees as `ctx.level`. Raises
    AssertionError with what the ranks printed if they leave no report.
    """
    source = registry.plugin_source(module_or_path) if isinstance(module_or_path, str) else _source(module_or_path)
    run = [sys.executable, "-m", "preflight", "--only", source.id, "--facts", "--deadline", str(deadline_s)]
    run += ["--level", level, "--backend", backend, *([] if source.kind == "builtin" else ["--plugin", source.target])]
    run += [word for name, value in (settings or {}).items() for word in ("--set", f"{source.id}.{name}={value}")]
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log"), "w+", errors="replace") as log:
        path = os.path.join(folder, "report.json")
        run += ["--json", path]
        ranks = [subprocess.Popen(run, env=place, stdout=log, stderr=log) for place in _places(world)]
        for rank in ranks:  # they end by themselves at their deadline; this is for a bug in preflight
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(deadline_s + 30.0)
            rank.kill()
            rank.wait()
        if not os.path.exists(path):
            log.seek(0)
            raise AssertionError(f"{source.id}: the ranks left no report\n{log.read()}")
        with open(path) as file:
            return dict(json.load(file))


def _source(module: ModuleType) -> registry.Source:
    id_ = module.__name__.removeprefix("preflight.checks.")
    if id_ in registry.BUILT_IN:
        return registry.Source(id_, "builtin", module.__name__)
    return registry.Source(f"plugin.{id_.rpartition('.')[2]}", "entry_point", module.__name__)


def _places(world: int) -> list[dict[str, str]]:
    """The environments of plain ranks, without what a launcher around the test has set."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "GROUP_"))}
    environ |= {
        "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return [{**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
