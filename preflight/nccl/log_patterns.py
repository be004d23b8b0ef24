"""The texts in NCCL's log that log_lines reads. Every pattern starts at the message's first letter and has no two parts
that can match the same text: a line of garbage costs no more than its length."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

WARNINGS, MOST = 8, 64
"""The most warnings that are kept, and entries of a list."""


NVLS_REFUSED = "Failed to bind NVLink SHARP"
"""2.27 and 2.28 log it at INFO and continue without; the others fail."""


class Channels(TypedDict):
    coll: int
    collnet: int | None
    """None: this version does not say (before 2.20)."""
    nvls: int | None
    """None before 2.17."""
    p2p: int
    per_peer: int


class Way(NamedTuple):
    """One connection."""

    rank: int
    peer_rank: int
    """Ranks of the communicator."""
    name: str
    """P2P/CUMEM, P2P/IPC, P2P/direct, P2P/indirect, P2P/MNNVL, SHM, NET/IB, NET/IB/GDRDMA, NET/Socket, ..."""
    card: int | None
    """NCCL's number of the network device."""


_WAY = re.compile(r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)\[[0-9a-f]+\] -> (\d+)\[[0-9a-f]+\] (?:\[\w+\] )?via ")
_NET = re.compile(r"NET/([^/]{1,60})/(\d+)(?:\(-?\d+\))?(/GDRDMA)?")
_P2P = re.compile(r"P2P/(\w+)")


def way_of(message: str) -> Way | None:
    """Parses "Channel 00/0 : 3[3] -> 4[4] via P2P/CUMEM/read" and the like (src/transport/{p2p,shm,net}.cc)."""
    if not message.startswith(("Channel ", "Ring ")):
        return None
    match = _WAY.match(message)
    if match is None:
        return None
    rank, peer_rank, rest = int(match[1]), int(match[2]), message[match.end() :]
    net, p2p = _NET.match(rest), _P2P.match(rest)
    if net:
        return Way(rank, peer_rank, f"NET/{net[1]}{net[3] or ''}", int(net[2]))
    if p2p:
        return Way(rank, peer_rank, f"P2P/{p2p[1]}", None)
    return Way(rank, peer_rank, "SHM", None) if rest.startswith("SHM") else None


Note = Callable[[re.Match[str], Any], None]


def _kept(key: str, value: Callable[[re.Match[str]], object]) -> Note:
    """Stores a value under `key`; the last line counts."""

    def note(match: re.Match[str], found: Any) -> None:
        found[key] = value(match)

    return note


def _version(match: re.Match[str], found: Any) -> None:
    found["version"] = found["version"] or match[1]


def _hcas(match: re.Match[str], found: Any) -> None:
    """2.20 to 2.23 merge a card's two ports into one: "[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}"."""
    devices = re.findall(r"\[\d+\](?:=\{([^}]{1,200})\}|([\w.+-]+:\d+[\d:]*/\w+))", match[1])[:MOST]
    found["hcas"] = ["+".join(re.findall(r"\] ([^,]+)", merged)) or device for merged, device in devices]


def _setting(match: re.Match[str], found: Any) -> None:
    if len(found["settings"]) < MOST:
        found["settings"][match[1]] = match[2].strip().removesuffix(".")[:200]


def _nodes(match: re.Match[str], found: Any) -> None:
    """Takes the first communicator, which is the world's: its parts come later."""
    if found["nodes"] is None:
        found["nodes"], found["local_ranks"], found["mnnvl"] = int(match[1]), int(match[2]), match[3] == "1"


def _channels(match: re.Match[str], found: Any) -> None:
    """Takes the first communicator."""
    if found["channels"] is None:
        coll, collnet, nvls, p2p, per_peer = (None if part is None else int(part) for part in match.groups())
        found["channels"] = {"coll": coll, "collnet": collnet, "nvls": nvls, "p2p": p2p, "per_peer": per_peer}


def _nvls_refused(match: re.Match[str], found: Any) -> None:
    found["nvls"] = False
    if len(found["warnings"]) < WARNINGS and match[0] not in found["warnings"]:
        found["warnings"].append(match[0])


def _gdr(match: re.Match[str], found: Any) -> None:
    if match[1] not in ("Socket", "Sockets") and len(found["gdr"]) < MOST:
        found["gdr"][match[3]] = match[2] == "Enabled"


RULES: tuple[tuple[str, re.Pattern[str], Note], ...] = tuple(
    (start, re.compile(pattern), note)
    for start, pattern, note in (
        ("NCCL version ", r"NCCL version (\d+\.\d+\.\d+)", _version),
        ("cudaDriverVersion ", r"cudaDriverVersion (\d+)", _kept("cuda_driver", lambda match: int(match[1]))),
        ("Bootstrap", r"Bootstrap ?: Using (?:\[\d+\])?([\w.-]+):", _kept("bootstrap", lambda match: match[1])),
        ("Using network ", r"Using network ([^\n]{1,60})", _kept("network", lambda match: match[1].strip())),
        ("NET/IB", r"NET/IB ?: Using( \[\d+\][^;]*);", _hcas),
        ("NET/Socket", r"NET/Socket ?: Using( \[\d+\].*)",
         _kept("sockets", lambda match: re.findall(r"\[\d+\]([\w.-]+):", match[1])[:MOST])),
        ("NET/Plugin", r"NET/Plugin ?: Loaded net plugin ([^(]{1,60})",
         _kept("plugin", lambda match: match[1].strip())),
        ("NET/", r"NET/([^:]{1,60}?) : GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '([^']{1,60})'", _gdr),
        ("NCCL_", r"(NCCL_[A-Z0-9_]+) set (?:by environment )?to ([^\n]+)", _setting),
        ("comm 0x", r"comm 0x[0-9a-f]+ rank \d+ nRanks \d+ nNodes (\d+) localRanks (\d+) localRank \d+ MNNVL (\d)",
         _nodes),
        ("", r"(\d+) coll channels, (?:(\d+) collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels, (\d+) ",
         _channels),
        ("NVLS multicast ", r"NVLS multicast support is (not )?available",
         _kept("nvls", lambda match: match[1] is None)),
        (NVLS_REFUSED, rf"{NVLS_REFUSED}[^\n]{{1,140}}", _nvls_refused),
        ("DMA-BUF is available", r"DMA-BUF is available", _kept("dmabuf", lambda _: True)),
    )
)  # fmt: skip
"""(start of the message, pattern, what is noted)."""
