"""Expert parallel: a small mixture of experts gives, cut among the ranks, what it gives in one process.

Each rank keeps some of 8 experts (ranks that are many: each group of neighbours keeps all). Tokens go to the rank of
their expert by all-to-all, with as many rows for each rank as it comes, and back; in backward their gradients do. What
is no expert's is under DDP. Losses, gradients, weights and optimizer state are held against a training in one process
as in train.ddp: an expert's gradient times the number of ranks, or a router without one, shows although the first loss
is right.

torch has no class for expert parallel, so what is tested is torch's all-to-all with its backward, on this hardware, in
the shape in which frameworks use it; not your framework's own code. Which expert a token has is fixed (docs/parity.md).
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import curves, parity, plotted

PARTS = (parity,)
PLAN = parity.plan(Level.FULL, deadline_s=240.0, estimate_s=3.0)
VARIANTS = parity.variants_of("expert")

measure = partial(parity.measure, strategy="expert", variants=VARIANTS)
judge = partial(parity.judge, strategy="expert")
summarize = parity.summarize
draw = curves.draw
plot = plotted.plot
