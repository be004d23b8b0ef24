"""Needs a check that there is not."""

from too_long import judge, measure

from preflight.check import After, Level, Plan, Scope

__all__ = ["judge", "measure"]
PLAN = Plan(Scope.RANK, Level.QUICK, after={"env.lunch": After.NEEDS})
