"""Tensor parallel: a few training steps give the same result as in one process.

Neighbors, on one node if it has several ranks, split each matrix of a small transformer (torch's `parallelize_module`),
and all see the whole batch. First the structure is compared with the plain model, exactly: tied parameters are still
one, none is lost, frozen, cast or duplicated. Then the first step's gradients, parameter by parameter: a ratio that
equals the number of ranks is named. Then losses, norms, weights and optimizer state, and the bits of replicas.

The model is split by column and row, with SequenceParallel and loss_parallel in bfloat16, and with an embedding that is
tied to the output layer, with clipping. Each rank holds its own part of each layer's product against the training
alone, before ranks exchange it. docs/parity.md has the tolerances, and what this cannot show.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import model_parallel, parity, plotted

PARTS = (model_parallel,)
PLAN = parity.plan(Level.FULL, deadline_s=180.0, estimate_s=4.0)
VARIANTS = parity.variants_of("tp")

measure = partial(parity.measure, strategy="tp", variants=VARIANTS)
judge = partial(parity.judge, strategy="tp", how=model_parallel.HOW)
summarize = parity.summarize
plot = plotted.plot
