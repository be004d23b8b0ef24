"""Two kinds of parallelism at once: a few training steps give the same result as in one process.

The ranks form a two-dimensional mesh, with neighbors in the last dimension: FSDP2 that shards among neighbors and
replicates over groups (HSDP, with two micro-batches a step), and tensor parallelism among neighbors under FSDP2 (in
bfloat16, with clipping) or DDP (with AdamW). A small transformer is trained on it. First the structure is compared with
the plain model, exactly; then the first step's gradients, parameter by parameter: a ratio that equals the size of a
dimension is named. Then losses, norms, weights and optimizer state are compared, and the bits of replicas. A step with
fewer collectives than the mesh needs is reported with their number.

docs/parity.md has the tolerances, and what this cannot show.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import model_parallel, parity, plotted

PARTS = (model_parallel,)
PLAN = parity.plan(Level.FULL, deadline_s=180.0, estimate_s=4.0)
VARIANTS = parity.variants_of("hybrid")

measure = partial(parity.measure, strategy="hybrid", variants=VARIANTS)
judge = partial(parity.judge, strategy="hybrid", how=model_parallel.HOW)
summarize = parity.summarize
plot = plotted.plot
