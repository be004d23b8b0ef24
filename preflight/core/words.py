"""Formats numbers and lists the same way in all reports: "a, b and 4 more", "64 KiB", "40 GB/s", "5 h"."""

import math
from collections.abc import Iterable, Sequence

from preflight.core.rank_ranges import count, ranks

__all__ = [
    "clauses", "count", "duration", "examples", "link_rate", "plain", "printable", "ranks", "rate", "rate_of_gb",
    "size", "some",
]  # fmt: skip


def some(names: Iterable[object], most: int = 4, separator: str = ", ", last: str = " and ") -> str:
    """ "a", "a and b", "a, b and c" or "a, b and 4 more": at most `most` names and how many more there are. If only one
    more is left, it is named too.

    `last` goes before the last name: ", " where the sentence joins several lists with "and".
    """
    listed = list(map(str, names))
    if len(listed) > most + 1:
        return f"{separator.join(listed[:most])}{separator.strip(', ')} and {len(listed) - most:,} more"
    return last.join(filter(None, (separator.join(listed[:-1]), *listed[-1:])))


def clauses(parts: Iterable[object], most: int = 4) -> str:
    """ "a, b; c; and 4 more": like `some`, for parts that hold commas."""
    return some(parts, most, "; ", "; ")


def examples(names: Sequence[str], noun: str = "") -> str:
    """ "2 (a, b)", "9 modules (a, b, c, ...)": how many there are, and the first three."""
    many = count(len(names), noun) if noun else f"{len(names):,}"
    return f"{many} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def printable(text: str) -> str:
    """Like `plain`, for what belongs into one line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def plain(text: str) -> str:
    """Replaces control characters: a check's text may hold terminal commands, and XML allows no control characters."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def rate(bytes_per_s: float) -> str:
    """ "40 GB/s", "312 MB/s": units of 1000, three digits."""
    return _in_units(bytes_per_s, ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")))


def rate_of_gb(gb_per_s: float) -> str:
    """`rate` of what is measured in GB/s, as bandwidths of collectives are."""
    return rate(gb_per_s * 1e9)


def link_rate(mbit_per_s: int) -> str:
    """ "100 Gb/s", "2.5 Gb/s", "100 Mb/s": bits, in which links of a network are rated."""
    return f"{mbit_per_s / 1000:,g} Gb/s" if mbit_per_s >= 1000 else f"{mbit_per_s} Mb/s"


def size(of: float) -> str:
    """ "64 KiB", "1.5 GiB": bytes in units of 1024, three digits."""
    return _in_units(of, ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B")))


def _in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
    """In the largest unit of which it is one or more once it is rounded, else in the last one."""
    unit, name = next((each for each in units if _rounded(value / each[0]) >= 1), units[-1])
    return f"{_three_digits(value / unit)} {name}"


def duration(seconds: float) -> str:
    """ "12.5 ms", "3.2 s", "40 min", "5 h", "3 days": at least two of a unit; whole numbers from minutes up."""
    if seconds > 0 and _rounded(seconds) < 1:
        return f"{_three_digits(seconds * 1000)} ms"
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    return f"{_three_digits(seconds)} s"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}") if abs(value) < 1 else value


def _three_digits(value: float) -> str:
    """Three significant digits, but all of those before the decimal point."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
