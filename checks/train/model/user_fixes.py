"""How a user's model is judged under a strategy, and fixes that speak of what users write.

Of the built-in model only the machine is in doubt; of a user's model, first of all its code.
"""

from dataclasses import replace

from preflight.check import Code, Finding
from preflight.checks.train.model import exchanged, traits
from preflight.checks.train.model.facts import Facts
from preflight.checks.train.shared import parity
from preflight.train_smoke.user import names

DEVICE = "If train.ddp or gpu.compute names the same rank, it is its device."
FIXES: dict[Code, str] = {
    parity.WRONG_EXCHANGE: "Look at what your code does to gradients: hooks, a division by a number of ranks, a gather "
    "with a backward of its own. If --only comm fails, too, it is the collectives.",
    parity.NOT_AVERAGED: "Look for what divides or multiplies the loss or gradients by the number of ranks: DDP and "
    "FSDP divide once. Then for a communication hook that adds up, and a patched torch.",
    parity.NOT_EXCHANGED: "Call the model that loss_fn is given, never its .module: only the wrapper's own forward "
    "prepares the exchange. Then look for no_sync() around the last micro-batch, and for communication hooks.",
    parity.WRONG_STEP: "Look for what depends on the rank or the wrapper in forward and loss: a layer plan, a cast, a "
    f"scale, a branch. {DEVICE}",
    parity.OUT_OF_SYNC: "Look for what changes weights on some ranks only: code after the step, a clamp, a branch by "
    f"rank. {DEVICE}",
}
OF_PLANS = {exchanged.WRONG_GRADIENT, parity.WRONG_STEP, parity.OUT_OF_SYNC}
PLAN = (
    "Look at the plan for the layer of that parameter: a bias that each rank adds, a replicated parameter whose "
    "gradient is summed or averaged, a division by the number of ranks (is it divided twice?), a mean over a piece."
)


def how(strategy: str, own: Facts) -> parity.Judging:
    """Which gradients can be compared."""
    if strategy in names.OWN:
        return exchanged.CUT
    return exchanged.HOW if traits.exchanges(own) else parity.Judging(is_known=False)


def of(found: Finding, strategy: str) -> Finding:
    """The finding with the fix for a user's code, if there is one."""
    fix = PLAN if strategy in names.OWN and found.code in OF_PLANS else FIXES.get(found.code)
    return replace(found, fix=fix, cleared="") if fix else found
