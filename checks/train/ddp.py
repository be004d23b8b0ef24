"""DDP: a few training steps give the same result as in one process.

Every rank trains a small transformer (float32, SGD with momentum, synthetic tokens) from the same weights: alone on the
whole global batch, and under DistributedDataParallel on its own part of it. Losses, gradients, weights and optimizer
state are compared.
The first value that differs tells what went wrong: the initial weights, a rank's data, its own loss or gradient, the
exchange of gradients, or a rank's weights. What all ranks compute wrongly in the same way goes unnoticed.

At level standard it runs plain; at full also with accumulation under no_sync(), an uneven last batch (Join),
gradient_as_bucket_view with a static graph (from weights that DDP must replace by the lowest rank's), clipping and
bfloat16 autocast. docs/parity.md has the tolerances, and what each variant finds.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import parity, plotted

PARTS = (parity,)
PLAN = parity.plan(Level.STANDARD, deadline_s=180.0, estimate_s=3.0)
VARIANTS = parity.variants_of("ddp")

measure = partial(parity.measure, strategy="ddp", variants=VARIANTS)
judge = partial(parity.judge, strategy="ddp")
summarize = parity.summarize
plot = plotted.plot
