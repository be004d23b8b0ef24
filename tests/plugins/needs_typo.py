"""Needs a check that there is not."""

from too_long import judge, measure

from preflight.check import Level, Plan, Scope

__all__ = ["judge", "measure"]
PLAN = Plan(Scope.RANK, Level.QUICK, needs=("env.lunch",))
