"""What departs in a resumed training, on one rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Departure:
    """Equal ones of several ranks become one finding."""

    slug: str
    """Of its code, in lower case."""
    text: str
    parameter: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
