"""What ranks agree on through the store, before any waits for another in a collective."""

from datetime import timedelta
from typing import TYPE_CHECKING

from preflight.check import Context

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

ALL_FAIL_S = 5.0
"""How long a rank whose training failed waits for the others to fail the same way, before it fails alone."""


def all_failed(ctx: Context, store: "Store", name: str) -> bool:
    """Whether every rank's training under this variant failed: then none waits for another, and each reports it in its
    facts."""
    if store.add(f"failed {name}", 1) == len(ctx.members):
        store.set(f"all failed {name}", "")
        return True
    try:
        store.wait([f"all failed {name}"], timedelta(seconds=ALL_FAIL_S))
    except RuntimeError:  # torch's DistStoreError
        return False
    return True
