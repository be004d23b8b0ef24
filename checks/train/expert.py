"""Expert parallel: a small mixture of experts, distributed over the ranks, trains like in one process.

Each rank holds some of 8 experts (from 4 ranks on, each group of neighbors holds all). Tokens go to their expert's rank
and back by all-to-all, with uneven numbers of rows, as do their gradients in backward. Everything else is under DDP.
Losses, gradients, weights and optimizer state are compared with training in one process as in train.ddp: an expert's
gradient multiplied by the number of ranks, or a router without a gradient, shows even if the first loss is right.

torch has no class for expert parallelism, so this tests torch's all-to-all with its backward, on this hardware, as
frameworks use it; not your framework's own code. The assignment of tokens to experts is fixed (docs/parity.md).
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import parity, plotted

PARTS = (parity,)
PLAN = parity.plan(Level.FULL, deadline_s=240.0, estimate_s=3.0)
VARIANTS = parity.variants_of("expert")

measure = partial(parity.measure, strategy="expert", variants=VARIANTS)
judge = partial(parity.judge, strategy="expert")
summarize = parity.summarize
plot = plotted.plot
