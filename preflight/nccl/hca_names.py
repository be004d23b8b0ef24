"""NCCL_IB_HCA: which ports it selects, by NCCL's own rules (2.30.7: parseStringList and matchIfList in
src/misc/utils.cc, ncclIbInitDevices in src/transport/net_ib/init.cc)."""

import re
from collections.abc import Mapping
from typing import NamedTuple

MOST = 32
"""The most ports that NCCL takes, and entries that it reads (MAX_IB_DEVS)."""
LONGEST = 63
"""The most characters of a name that it keeps."""
EXTERNAL = "IBEXT"
"""The prefix of the names of HPC-X's transport (IBext_v10), which takes the same ports."""
EXTERNAL_OFF = "NCCL_IBEXT_DISABLE"


class Entry(NamedTuple):
    """`mlx5_1:2:0:1`: the rail and the plane select nothing."""

    text: str
    name: str
    port: int | None
    """None: any."""

    def matches(self, device: str, port: int, exact: bool) -> bool:
        named = device == self.name if exact else device.startswith(self.name)
        return named and self.port in (None, -1, port)


class Selection(NamedTuple):
    """`^` excludes what matches, `=` requires whole names; `^` comes first. Without entries everything matches."""

    exclude: bool = False
    exact: bool = False
    entries: tuple[Entry, ...] = ()

    def takes(self, device: str, port: int) -> bool:
        matches = not self.entries or any(entry.matches(device, port, self.exact) for entry in self.entries)
        return matches != self.exclude


def parse(value: str) -> Selection:
    """Never fails, like NCCL's parser: a port that is not a number is 0, which no device has."""
    exclude = value.startswith("^")
    value = value[exclude:]
    exact = value.startswith("=")
    entries = [_entry(word) for word in value[exact:].split(",") if word.partition(":")[0]]
    return Selection(exclude, exact, tuple(entries[:MOST]))


def _entry(word: str) -> Entry:
    name, _, rest = word.partition(":")
    port = rest.partition(":")[0]
    return Entry(word, name[:LONGEST], integer(port) if port else None)


def strtoll(text: str, base: int = 10) -> tuple[int, bool]:
    """(the number at the start of the text, as C reads it, else 0; whether it is the whole text). With base 0 it may be
    hexadecimal or octal."""
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|\d+)" if base == 0 else r"\s*([+-]?)(\d+)", text)
    if match is None:
        return 0, False
    digits = match[2]
    if base == 0:
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    return int(f"{match[1]}{digits}", base), match.end() == len(text)


def integer(text: str, base: int = 10) -> int:
    """The number at the start of the text, as C reads it, else 0."""
    return strtoll(text, base)[0]


def uses_verbs(settings: Mapping[str, str]) -> bool:
    """Whether NCCL's own RDMA transport is on, or HPC-X's in its place: NCCL_IB_DISABLE is 0 or text, and NCCL_NET does
    not name another transport. Each is switched off by its own variable."""
    net = settings.get("NCCL_NET", "").upper()
    off = EXTERNAL_OFF if net.startswith(EXTERNAL) else "NCCL_IB_DISABLE"
    return not integer(settings.get(off, ""), 0) and (net in ("IB", "") or net.startswith(EXTERNAL))
