"""A scope that there is not."""

from too_long import judge, measure

from preflight.check import Level, Plan

PLAN = Plan("nod", Level.QUICK)  # type: ignore[arg-type]
__all__ = ["judge", "measure"]
