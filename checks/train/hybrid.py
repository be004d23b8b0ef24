"""Two ways of parallelism at once: some steps of training give what they give in one process.

The ranks stand in a mesh of two dimensions, with neighbours in the last one: FSDP2 that cuts among neighbours and
repeats by groups (HSDP), and tensor parallel among neighbours under FSDP2 or DDP. A small transformer is trained on it.
First the structure is held against the plain model, exactly; then the first step's gradients, parameter by parameter: a
ratio that is the size of a dimension is said in words. Then losses, norms, weights and optimizer state are compared,
and the bits of what several ranks keep. A step that makes fewer collectives than the mesh needs is told with their
number.

How far the trainings may be apart, and what this cannot show: docs/parity.md.
"""

from functools import partial

from preflight.check import Level
from preflight.checks.train.shared import curves, model_parallel, parity, plotted

PARTS = (model_parallel,)
PLAN = parity.plan(Level.FULL, deadline_s=180.0, estimate_s=4.0)
VARIANTS = parity.variants_of("hybrid")

measure = partial(parity.measure, strategy="hybrid", variants=VARIANTS)
judge = partial(parity.judge, strategy="hybrid", how=model_parallel.HOW)
summarize = parity.summarize
draw = curves.draw
plot = plotted.plot
