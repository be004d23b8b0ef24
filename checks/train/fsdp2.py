"""FSDP2: some steps of training give what they give in one process.

Every rank trains a small transformer (float32, SGD with momentum, made-up tokens) from the same weights: alone on the
whole global batch, and under fully_shard on its own part of it. Losses, gradients, weights and optimizer
state are compared, each whole, and this rank's own piece of them.
The first value that differs tells what went wrong: the weights at the start, a rank's data, its own loss or gradient,
the exchange of gradients, or the weights of a rank. What all ranks compute wrongly in the same way is not seen.

At level standard it runs plain; at full also with reshard_after_forward off and an integer, mixed precision, offload,
clipping over DTensors, activation checkpointing and AdamW. How far the trainings may be apart: docs/parity.md.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import curves, parity, plotted

PARTS = (parity,)
PLAN = parity.plan(Level.STANDARD, deadline_s=240.0, estimate_s=3.0)
VARIANTS = parity.variants_of("fsdp2")

measure = partial(parity.measure, strategy="fsdp2", variants=VARIANTS)
judge = partial(parity.judge, strategy="fsdp2")
summarize = parity.summarize
draw = curves.draw
plot = plotted.plot
