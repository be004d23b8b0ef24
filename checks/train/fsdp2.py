"""FSDP2: some steps of training give what they give in one process.

Every rank trains a small transformer (float32, SGD with momentum, made-up tokens) from the same weights: alone on the
whole global batch, and under fully_shard on its own part of it. Losses, gradients, weights and optimizer
state are compared, each whole, and this rank's own piece of them.
The first value that differs tells what went wrong: the weights at the start, a rank's data, its own loss or gradient,
the exchange of gradients, or the weights of a rank. What all ranks compute wrongly in the same way is not seen.

At level standard it runs plain; at full also with reshard_after_forward off and an integer, mixed precision, offload,
clipping over DTensors, activation checkpointing and AdamW. How far the trainings may be apart: docs/parity.md.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from preflight.check import Context, Finding, Job, Level, Option, Plan, Run, Scope, option
from preflight.checks.train.shared import curves, parity

if TYPE_CHECKING:
    from preflight.train_smoke.strategies import Facts


def _deadline(job: Job) -> float:
    """240 s for all variants of many ranks on few cores, and a second for every 64 ranks."""
    return 240.0 + job.world_size / 64


PARTS = (parity,)
PLAN = Plan(
    Scope.WORLD,
    Level.STANDARD,
    deadline_s=_deadline,
    estimate_s=3.0,
    needs=("comm.init", "train.alone"),
    aside=True,
)
UNSET: tuple[str, ...] = ()
VARIANTS: Option[tuple[str, ...]] = option(
    parity.names_of("fsdp2"), UNSET, "which, with commas between them, or all; unset: plain, at level full all"
)


def measure(ctx: Context) -> "Facts":
    return parity.measure(ctx, "fsdp2", ctx[VARIANTS])


def judge(facts: Mapping[int, "Facts"], run: Run) -> Iterator[Finding]:
    return parity.judge(facts, run, "fsdp2")


def summarize(facts: Mapping[int, "Facts"], run: Run) -> str:
    return parity.summarize(facts, run)


def draw(facts: Mapping[int, "Facts"], run: Run) -> Iterator[str]:
    return curves.draw(facts, run)
