"""Exceptions that preflight raises on purpose. Imports no other module of preflight, so every module may import it."""

from collections.abc import Iterable

CLOSE = 0.1
"""A name whose likeness (difflib's ratio) is this much below the best match is not a near miss."""
LISTED = 60
"""The most names that an error message lists."""


class UsageError(Exception):
    """The user asked for something that does not exist. Its text is one clear sentence; exit code 2."""

    def __init__(self, text: str, *, everywhere: bool = True) -> None:
        """`everywhere`: all ranks have the same command line and so the same error; one of them reports it."""
        super().__init__(text)
        self.everywhere = everywhere


class CannotWork(Exception):  # noqa: N818 -- as it reads where it is caught
    """Something that preflight itself needs is missing here. Its text is one clear sentence; exit code 3."""


class BrokenCheck(Exception):  # noqa: N818 -- says what is broken
    """A module is not a valid check. Its text says what is missing or wrong."""


def near_misses(word: str, known: Iterable[str]) -> str:
    """ "; did you mean x or y?", else "; known are ..." if there are at most LISTED names, else ""."""
    import difflib  # not in a command without a mistake

    listed = sorted(known)
    likeness = {name: difflib.SequenceMatcher(None, name, word).ratio() for name in listed}
    near = max(likeness.values(), default=0.0) - CLOSE
    close = [name for name in sorted(listed, key=lambda name: -likeness[name]) if likeness[name] >= max(0.5, near)][:3]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known are {', '.join(listed)}" if 0 < len(listed) <= LISTED else ""


class Skip(Exception):  # noqa: N818 -- a reason, not an error
    """Raised in `measure` with the reason why this machine cannot be measured. `facts` hold what could be measured
    anyway: they are judged, but the check does not pass."""

    def __init__(self, reason: str, facts: object = None) -> None:
        super().__init__(reason)
        self.facts = facts


class NotApplicable(Skip):
    """Raised in `measure` where the thing to check does not exist here: a GPU check on a machine without a GPU. A check
    that applies to no rank is not in the report, unless it was asked for by name."""
