"""Tensor parallel: some steps of training give what they give in one process.

Neighbours, in a node where it has several ranks, cut each matrix of a small transformer among them (torch's
`parallelize_module`), and all see the whole batch. First the structure is held against the plain model, exactly: tied
parameters are still one, none is lost, frozen, cast or kept twice. Then the first step's gradients are, parameter by
parameter: a ratio that is the number of ranks is said in words. Then losses, norms, weights and optimizer state are,
and the bits of what several ranks keep.

The model is cut by column and row, with SequenceParallel and loss_parallel, and with an embedding that is tied to the
output layer, with clipping. How far the trainings may be apart, and what this cannot show: docs/parity.md.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import curves, model_parallel, parity, plotted

PARTS = (model_parallel,)
PLAN = parity.plan(Level.FULL, deadline_s=180.0, estimate_s=4.0)
VARIANTS = parity.variants_of("tp")

measure = partial(parity.measure, strategy="tp", variants=VARIANTS)
judge = partial(parity.judge, strategy="tp", how=model_parallel.HOW)
summarize = parity.summarize
draw = curves.draw
plot = plotted.plot
