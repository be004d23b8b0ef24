"""FSDP2: a few training steps give the same result as in one process.

Every rank trains a small transformer (float32, SGD with momentum, synthetic tokens) from the same weights: alone on the
whole global batch, and under fully_shard on its own part of it. Losses, gradients, weights and optimizer state are
compared, both whole and by each rank's own piece.
The first value that differs tells what went wrong: the initial weights, a rank's data, its own loss or gradient, the
exchange of gradients, or a rank's weights. What all ranks compute wrongly in the same way goes unnoticed.

At level standard it runs plain; at full also with reshard_after_forward off and an integer, mixed precision, offload,
clipping over DTensors, activation checkpointing, AdamW, and accumulation before or after gradients are reduced.
docs/parity.md has the tolerances, and what each variant finds.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import parity, plotted

PARTS = (parity,)
PLAN = parity.plan(Level.STANDARD, deadline_s=240.0, estimate_s=3.0)
VARIANTS = parity.variants_of("fsdp2")

measure = partial(parity.measure, strategy="fsdp2", variants=VARIANTS)
judge = partial(parity.judge, strategy="fsdp2")
summarize = parity.summarize
plot = plotted.plot
