"""Nodes that belong together: in a rack, behind a switch, in an NVLink domain."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    name: str
    """For a sentence: "rack 7", "switch leaf-1"."""
    nodes: tuple[str, ...]
    """Their names in the job."""
