"""FSDP1: some steps of training give what they give in one process.

Every rank trains a small transformer (float32, SGD with momentum, made-up tokens) from the same weights: alone on the
whole global batch, and under FullyShardedDataParallel on its own part of it. Losses, gradients, weights and
optimizer state are compared, each whole, and this rank's own piece of them.
The first value that differs tells what went wrong: the weights at the start, a rank's data, its own loss or gradient,
the exchange of gradients, or the weights of a rank. What all ranks compute wrongly in the same way is not seen.

It runs with all four ways of cutting, prefetch, offload, clipping, mixed precision, and wraps by size, by the
transformer's blocks and by a function of one's own. How far the trainings may be apart: docs/parity.md.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import curves, parity, plotted

PARTS = (parity,)
PLAN = parity.plan(Level.FULL, deadline_s=240.0, estimate_s=6.0)
VARIANTS = parity.variants_of("fsdp")

measure = partial(parity.measure, strategy="fsdp", variants=VARIANTS)
judge = partial(parity.judge, strategy="fsdp")
summarize = parity.summarize
draw = curves.draw
plot = plotted.plot
