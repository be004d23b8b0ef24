"""As `steps_late`, but the check makes an exception of its own of what a collective raises."""

from typing import Any

from steps import PLAN, judge, measuring

from preflight.check import Context

__all__ = ["PLAN", "judge", "measure"]


def measure(ctx: Context) -> dict[str, Any]:
    try:
        return measuring("wrapped")(ctx)
    except RuntimeError as error:
        raise ValueError("the step failed") from error
