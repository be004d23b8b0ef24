"""What a node may be called, and many nodes in a few characters, as Slurm writes them: gpu-[1-5,9]."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from preflight.core import rank_ranges

MOST_DIGITS = 9
"""A longer number is treated as part of the name."""

LONGEST = 255
"""Characters of a host name (HOST_NAME_MAX is 64, a DNS name has 253)."""
_FOREIGN = re.compile(r"[^A-Za-z0-9_.:#-]|^[^A-Za-z0-9_]")


def safe(name: str) -> str:
    """The name, with "_" for what no host name has: lists of nodes are read by launchers and shells, to which a newline
    begins another host, a comma or bracket a list, and a dash an option. ("#1" is ours, see Job.)"""
    return _FOREIGN.sub("_", name)[:LONGEST] or "_"


class _Group(NamedTuple):
    before: str
    width: int
    """Digits, where numbers have leading zeros; else 0."""
    after: str


def folded(names: Iterable[str], *, suffixes: bool = True) -> str:
    """ "gpu-[1-5,9],login": names that differ only in their last number become one, in the order of their first name.
    Numbers with leading zeros keep them (gpu-[007-012]). `suffixes`: fold also where text follows the number."""
    split = {name: _last_number(name, suffixes) for name in names}
    padded = {
        _Group(before, len(digits), after) for before, digits, after in split.values() if re.match(r"0\d", digits)
    }
    groups: dict[_Group, list[int]] = {}
    for name, (before, digits, after) in split.items():
        as_wide = _Group(before, len(digits), after)
        group = as_wide if as_wide in padded else _Group(before, 0, after)
        numbers = groups.setdefault(group if digits else _Group(name, 0, ""), [])
        numbers += [int(digits)] if digits else []
    return ",".join(_written(group, numbers) for group, numbers in groups.items())


def _last_number(name: str, suffixes: bool) -> tuple[str, str, str]:
    """Splits a name into (text before its last number, digits, text after); no digits if nothing can be folded."""
    match = re.fullmatch(rf"(.*?)([0-9]+)({'[^0-9]*' if suffixes else ''})", name, re.DOTALL)
    return (match[1], match[2], match[3]) if match and len(match[2]) <= MOST_DIGITS else (name, "", "")


def _written(group: _Group, numbers: list[int]) -> str:
    if not numbers:
        return group.before
    text = re.sub("[0-9]+", lambda match: match[0].zfill(group.width), rank_ranges.to_text(numbers))
    return f"{group.before}{text if len(numbers) == 1 else f'[{text}]'}{group.after}"
