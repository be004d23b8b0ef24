"""The order in which the workers of pytest-xdist get the tests: first those that start processes, some seconds each,
last the thousands that start none. So no worker has a long one left at the end while the others are done.

`--dist worksteal` cuts the list into as many equal pieces as there are workers.
"""

from collections.abc import Sequence
from itertools import chain, groupby, islice
from typing import Protocol, TypeVar


class InFile(Protocol):
    @property
    def path(self) -> object: ...


Test = TypeVar("Test", bound=InFile)


def dealt(slow: Sequence[Test], fast: Sequence[Test], workers: int) -> list[Test]:
    """All of them. Slow tests of one file stay together: what a module shares is made once."""
    pieces: list[list[Test]] = [[] for _ in range(workers)]
    for _, file in groupby(slow, key=lambda test: test.path):
        min(pieces, key=len).extend(file)
    size, rest = -(-(len(slow) + len(fast)) // workers), iter(fast)
    for piece in pieces:
        piece.extend(islice(rest, max(0, size - len(piece))))
    return [*chain.from_iterable(pieces), *rest]
