"""Ranks that train, without preflight's engine: `python -m tests.train_smoke.ranks WORLD FOLDER SEEDS [STRATEGY/VARIANT
...]` starts them once, and trains all seeds (comma separated) under all variants in one process group, those of
STRATEGY/VARIANT+VARIANT together, as a check does. Rank R leaves FOLDER/R.jsonl: a line a seed and variant."""

import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.train_smoke.trainer.compare import QUANTITIES, SCALES, difference
from preflight.train_smoke.trainer.names import MODEL_PARALLEL, VARIANTS
from tests import running

if TYPE_CHECKING:
    from preflight.train_smoke.trainer.wrapped import StrategySetting

EVERY = tuple(f"{strategy}/{variant}" for strategy, its in {**VARIANTS, **MODEL_PARALLEL}.items() for variant in its)
ALL = tuple(name for name in EVERY if name.startswith(("ddp/", "fsdp/", "fsdp2/", "compile/")))
BEYOND = tuple(name for name in EVERY if name not in ALL)
"""Beyond data parallel."""
TOGETHER = tuple(f"{strategy}/{'+'.join(VARIANTS[strategy])}" for strategy in ("ddp", "fsdp", "fsdp2", "compile"))
"""ALL, of each strategy together."""
ROUNDING = 6e-8
"""Of float32."""


def trained(
    world: int, folder: Path, seeds: Sequence[int], variants: Sequence[str] = ALL, *, limit_s: float, **more: str
) -> list[list[dict[str, Any]]]:  # fmt: skip
    """What each rank measured: a list of {"seed", "variant", "first", "compared", "expected"}. Raises AssertionError
    with what the ranks printed where they fail or take longer. `more`: variables of the environment."""
    words = (str(world), str(folder), ",".join(map(str, seeds)), *variants)
    running.output_of("tests.train_smoke.ranks", *words, limit_s=limit_s, **more)
    return [[json.loads(line) for line in (folder / f"{rank}.jsonl").read_text().splitlines()] for rank in range(world)]


def ratios(line: Mapping[str, Any]) -> dict[str, float]:
    """How far the training is from the one alone, by quantity and moment, as a multiple of the spread, which over two
    steps may happen to be 0."""
    spread, curve, expected = line["expected"]["spread"], line["compared"]["curve"], line["expected"]["curve"]
    found: dict[str, float] = {}
    for quantity in QUANTITIES:
        scale = expected[SCALES.get(quantity, quantity)]
        apart = [difference(*three) for three in zip(curve[quantity], expected[quantity], scale, strict=False)]
        found[quantity] = max(apart, default=0.0) / max(spread["curves"], ROUNDING)
    for kind in ("whole", "own"):
        for moment, furthest in line["compared"]["apart"][kind].items():
            off = float(furthest["off"])
            found[f"{moment} {kind}"] = off / max(spread[moment], ROUNDING) if moment != "start" else off
    return found


def join(rank: int, world: int, folder: Path, limit_s: float) -> "StrategySetting":
    """Makes the process group of all ranks, on gloo."""
    import torch
    from torch import distributed as dist

    from preflight.train_smoke.trainer.wrapped import StrategySetting

    store = dist.FileStore(str(folder / "store"), world)  # type: ignore[attr-defined]  # not in __all__
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=limit_s))
    assert dist.group.WORLD
    parts: dict[tuple[int, ...], Any] = {}

    def part(ranks: tuple[int, ...]) -> Any:
        if ranks not in parts:
            parts[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
        return parts[ranks]

    return StrategySetting(dist.group.WORLD, torch.device("cpu"), world, part)


def _rank(rank: int, world: int, folder: Path, seeds: Sequence[int], variants: Sequence[str]) -> None:
    from torch import distributed as dist

    from preflight.train_smoke.strategies import training
    from preflight.train_smoke.trainer import reference, task

    setting = join(rank, world, folder, limit_s=60)
    with open(folder / f"{rank}.jsonl", "w") as file:
        for seed in seeds:
            reference._made.clear()
            trains = task.built_in(rank, world, setting.device, seed)
            for word in variants:
                strategy, _, names = word.partition("/")
                facts = training.run(trains, strategy, names.split("+"), setting)
                first = next((name for name, compared in facts["variants"].items() if compared["curve"]), "")
                for name, compared in facts["variants"].items():
                    line = {"seed": seed, "variant": f"{strategy}/{name}", "first": name == first, "compared": compared}
                    json.dump({**line, "expected": facts["alone"].get(compared["recipe"])}, file)
                    file.write("\n")
    dist.destroy_process_group()


def fork_ranks(world: int, rank_main: Callable[..., None], *words: Any) -> int:
    """The exit code of the first rank that fails."""
    from preflight.train_smoke.trainer import task

    task.import_dynamo()  # once, for all ranks
    fork: Any = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank_main, args=(rank, world, *words)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return max((abs(rank.exitcode) for rank in ranks), default=0)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(fork_ranks(int(words[0]), _rank, Path(words[1]), [int(word) for word in words[2].split(",")], words[3:]))
