"""A clock that is wrong by TEST_CLOCK_AHEAD_S seconds here, or does TEST_CLOCK_DEED when node.clock reads it.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

import os
import sys
import time

_right = time.time
_ahead_s = float(os.environ.get("TEST_CLOCK_AHEAD_S", "0"))
_deed = os.environ.get("TEST_CLOCK_DEED", "")


def _wrong() -> float:
    if _deed and sys._getframe(1).f_globals["__name__"] == "preflight.checks.node.clock":
        import deeds

        deeds.do(_deed)
    return _right() + _ahead_s


time.time = _wrong
