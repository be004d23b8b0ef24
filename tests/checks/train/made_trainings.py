"""Made-up facts of a strategy's check: sound, and how to spoil them."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from preflight import testing
from preflight.checks.train import ddp, fsdp2
from preflight.train_smoke.trainer.compare import Apart, Curve, Furthest, GradientsOff, Number, Spread

if TYPE_CHECKING:
    from preflight.train_smoke.strategies.training import Compared, Facts, TrainedAlone

STEPS = 8
NODES = {"node-0": range(4), "node-1": range(4, 8)}
BFLOAT16 = ("autocast", "mixed")


def curve(size: float) -> Curve:
    """Of the rank's own part; the whole batch's is that of size 4."""
    own: list[Number] = [size * (1.0 - step / 20) for step in range(STEPS)]
    return {
        "losses": [*own],
        "own_norms": [*own],
        "own_prints": [value * 0.1 for value in own if isinstance(value, float)],
        "norms": [2.0 * (1.0 - step / 20) for step in range(STEPS)],
        "prints": [0.8 * (1.0 - step / 20) for step in range(STEPS)],
    }


def furthest(off: Number, parameter: str = "tokens.weight", rest: Number = 0.0, elsewhere: Number = 0.0) -> Furthest:
    return {"parameter": parameter, "off": off, "rest": rest, "elsewhere": elsewhere}


def sound(world: int = 8, *variants: str, pieces: bool = False) -> "dict[int, Facts]":
    """Every rank's own part has another loss and gradient, the whole batch has one. `pieces`: as under FSDP2."""
    facts: dict[int, Facts] = {}
    names = variants or ("plain",)
    for rank in range(world):
        its = curve(4.0 + rank % 31 / 100)
        recipes = {name: name if name in ("clip", *BFLOAT16) else "plain" for name in names}
        alone: dict[str, TrainedAlone] = {
            recipe: {"curve": copy.deepcopy(its), "spread": _spread(recipe)} for recipe in recipes.values()
        }
        trained: dict[str, Compared] = {
            name: {
                "recipe": recipe, "unfit": "", "curve": copy.deepcopy(its), "apart": _apart(pieces), "memory": None,
                "changed": None, "clipped": [], "mesh": "", "sizes": {"ranks": world}, "made": [], "replicas": None,
                "product": None,
            }
            for name, recipe in recipes.items()
        }  # fmt: skip
        facts[rank] = {"alone": alone, "variants": trained}
    return facts


def _spread(recipe: str) -> Spread:
    if recipe in BFLOAT16:
        return {"curves": 6e-3, "gradient": 5e-3, "end": 3e-3, "state": 4e-3}
    return {"curves": 7e-7, "gradient": 8e-7, "end": 4e-5, "state": 6e-7}


def _apart(pieces: bool) -> Apart:
    offs = {"start": 0.0, "gradient": 7e-7, "end": 3e-5, "state": 5e-7}
    whole = {moment: furthest(off) for moment, off in offs.items()}
    own = {moment: furthest(off) for moment, off in offs.items()} if pieces else {}
    return {
        "whole": whole,
        "own": own,
        "along": {"times": 1e-8, "share": 0.001},
        "like": 0.9,
        "gradients": _gradients(),
    }


def _gradients(parameter: str = "tokens.weight", ratio: Number = 1.0, error: Number = 7e-7) -> GradientsOff:
    return {"worst": [{"parameter": parameter, "error": error, "ratio": ratio}], "alike": 19, "count": 19}


def measured(facts: "Mapping[int, Facts]", rank: int, variant: str = "plain") -> Curve:
    found = facts[rank]["variants"][variant]["curve"]
    assert found is not None
    return found


def apart(facts: "Mapping[int, Facts]", rank: int, variant: str = "plain") -> Apart:
    found = facts[rank]["variants"][variant]["apart"]
    assert found is not None
    return found


def bend(spoilt: Curve, quantity: str, step: int, by: float | str) -> None:
    """From this step on a curve is so many times what it was, or this text."""
    values: list[Number] = spoilt[quantity]  # type: ignore[literal-required]
    values[step:] = [by if isinstance(by, str) or isinstance(value, str) else value * by for value in values[step:]]


def spoil(facts: "Mapping[int, Facts]", step: int, by: float | str = 1.01, variant: str = "plain") -> None:
    """What a wrong gradient of one rank does to all."""
    for rank in facts:
        bend(measured(facts, rank, variant), "norms", step, by)
        bend(measured(facts, rank, variant), "losses", step + 1, by)
        off = apart(facts, rank, variant)
        off["whole"]["end"] = furthest(0.3, "head.weight")
        if step == 0:
            off["whole"]["gradient"] = furthest(0.01, "head.weight", rest=0.009, elsewhere=0.009)


def judge(facts: "Mapping[int, Facts]", strategy: str = "ddp") -> list[dict[str, Any]]:
    """All above info."""
    module = {"ddp": ddp, "fsdp2": fsdp2}[strategy]
    found = testing.judge(module, facts, nodes=NODES if len(facts) == 8 else None)
    return [
        {**finding, "slug": finding["code"].rpartition(".")[2]} for finding in found if finding["severity"] != "info"
    ]


def only(facts: "Mapping[int, Facts]", strategy: str = "ddp") -> dict[str, Any]:
    (found,) = judge(facts, strategy)
    assert found["severity"] == "fail" and found["fix"]
    return found
