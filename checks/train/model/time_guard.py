"""Stops what a rank does alone with the user's model before the check's time is over: otherwise the engine would kill
the rank, and no one could say why."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from preflight.check import UserCode

SHARE = 0.6
"""Share of the check's time; the other ranks wait for this one at the store for 0.7 of it."""


class TooSlow(BaseException):  # not an Exception: the user's `except Exception` should not swallow it
    """The time is over. The text says where the user's code was, and what it was doing."""


@contextmanager
def time_guard(deadline_s: float, code: UserCode, doing: Callable[[], str]) -> Iterator[None]:
    """Raises TooSlow after `SHARE` of `deadline_s`, by SIGALRM: in the main thread, between C calls."""

    def raise_too_slow(_: int, frame: FrameType | None) -> None:
        frames = []
        while frame is not None:
            names, at = frame.f_globals, frame.f_code
            frames.append((at.co_filename, frame.f_lineno, at.co_qualname, str(names.get("__name__", ""))))
            frame = frame.f_back
        raise TooSlow(
            f"{code.innermost(frames) or code}: {doing()}, and after {SHARE * deadline_s:.0f} of the check's "
            f"{deadline_s:.0f} s training alone had not ended: return fewer or smaller rows, or set --deadline"
        )

    before = signal.signal(signal.SIGALRM, raise_too_slow)
    signal.setitimer(signal.ITIMER_REAL, SHARE * deadline_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
