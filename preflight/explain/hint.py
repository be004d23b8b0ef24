"""What an artefact that is no log tells of a cause: a dump, a report, the stacks of a hung process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hint:
    """As a finding, before it is weighed against the logs and other hints."""

    slug: str
    """Of its cause; "" where it says something that no cause fits."""
    message: str
    """One sentence: what was measured, and what was expected."""
    where: Mapping[str, Any]
    """The culprit, as of a finding: rank, node, gpu, ..."""
    noticed_by: tuple[int, ...]
    file: str
    """Where it stands, as the user named it."""
    weight: int
    """0 to 100, as a signature's: 80 and more name a cause, 50 and more say where to look, less is a surmise."""
    quote: str = ""
    """Of the file, where it has words of its own."""
    fix: str = ""
    """Instead of the cause's; "" else."""
    code: str = ""
    """Of a live finding."""
