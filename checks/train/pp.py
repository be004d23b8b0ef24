"""Pipeline parallel: a few training steps give the same result as in one process.

Two or three ranks, as far apart as the world allows, share the six layers of a small transformer, under each schedule
of torch.distributed.pipelining, and see the whole batch in microbatches. First the structure is compared with the plain
model, exactly: each parameter is on one stage. Then the first step's gradients, parameter by parameter: a ratio that
equals the number of microbatches or accumulation steps is named. Then losses, norms, weights and optimizer state.

Losses are averaged by torch (scale_grads) and added up; there are one and two accumulation steps; clipping uses the
norm over all stages. torch's pipelines need NumPy: without it the check skips. docs/parity.md says what it cannot show.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import model_parallel, parity, plotted
from preflight.checks.train.shared.parity import unfit

PARTS = (model_parallel, unfit)
PLAN = parity.plan(Level.FULL, deadline_s=180.0, estimate_s=3.0)
VARIANTS = parity.variants_of("pp")

measure = partial(parity.measure, strategy="pp", variants=VARIANTS)
judge = partial(parity.judge, strategy="pp", how=model_parallel.HOW, asked=VARIANTS)
summarize = parity.summarize
plot = plotted.plot
