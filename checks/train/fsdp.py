"""FSDP1: a few training steps give the same result as in one process.

Every rank trains a small transformer (float32, SGD with momentum, synthetic tokens) from the same weights: alone on the
whole global batch, and under FullyShardedDataParallel on its own part of it. Losses, gradients, weights and optimizer
state are compared, both whole and by each rank's own piece.
The first value that differs tells what went wrong: the initial weights, a rank's data, its own loss or gradient, the
exchange of gradients, or a rank's weights. What all ranks compute wrongly in the same way goes unnoticed.

It runs with all four sharding strategies, accumulation with and without no_sync(), prefetch, offload, clipping and
mixed precision, and wraps by size, by transformer block and by a custom function. docs/parity.md has the tolerances,
and what each variant finds.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import parity, plotted
from preflight.checks.train.shared.parity import unfit

PARTS = (parity, unfit)
PLAN = parity.plan(Level.FULL, deadline_s=240.0, estimate_s=6.0)
VARIANTS = parity.variants_of("fsdp")

measure = partial(parity.measure, strategy="fsdp", variants=VARIANTS)
judge = partial(parity.judge, strategy="fsdp", asked=VARIANTS)
summarize = parity.summarize
plot = plotted.plot
