"""What preflight raises on purpose. Imports nothing of preflight's, so that every module may import it."""

import difflib
from collections.abc import Iterable

CLOSE = 0.1
"""Names that are less like a word than the likest by so much (difflib's ratio) are no near misses."""
LISTED = 60
"""Names that an error message may list."""


class UsageError(Exception):
    """The user asked for something that is not there. Its text is one clear sentence; exit code 2."""

    def __init__(self, text: str, *, everywhere: bool = True) -> None:
        """`everywhere`: all ranks see the same, since they have the same command line; one of them says it."""
        super().__init__(text)
        self.everywhere = everywhere


class CannotWork(Exception):  # noqa: N818 -- as it reads where it is caught
    """What preflight itself cannot do without is missing here. Its text is one clear sentence; exit code 3."""


class BrokenCheck(Exception):  # noqa: N818 -- says what is broken
    """A module that is no check. Its text says what it lacks."""


def near_misses(word: str, known: Iterable[str]) -> str:
    """ "; did you mean x or y?", or a list of what there is, where it is short."""
    listed = sorted(known)
    likeness = {name: difflib.SequenceMatcher(None, name, word).ratio() for name in listed}
    near = max(likeness.values(), default=0.0) - CLOSE
    close = [name for name in sorted(listed, key=lambda name: -likeness[name]) if likeness[name] >= max(0.5, near)][:3]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known are {', '.join(listed)}" if 0 < len(listed) <= LISTED else ""


class Skip(Exception):  # noqa: N818 -- a reason, not an error
    """Raised in `measure` with the reason why this machine cannot be measured. `facts` are what could be measured
    nevertheless: they are judged, and the check is no pass."""

    def __init__(self, reason: str, facts: object = None) -> None:
        super().__init__(reason)
        self.facts = facts


class NotApplicable(Skip):
    """Raised in `measure` where what the check is about does not exist here: a GPU check without a GPU. A check that
    applies to no rank is not in the report, unless it was asked for by name."""
