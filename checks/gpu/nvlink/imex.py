"""IMEX, the service that lets GPUs on several nodes of an NVLink domain share memory. NCCL needs it for that."""

import os
from typing import TypedDict

from preflight.check import Context
from preflight.checks.gpu.nvlink.fabric import NO_CLUSTER
from preflight.sdk import files

CHANNELS = "/dev/nvidia-caps-imex-channels"
SERVICE = "nvidia-imex"
SWITCHES = {
    "NCCL_MNNVL_ENABLE": ("0",), "NCCL_CUMEM_ENABLE": ("0",), "NCCL_P2P_DISABLE": ("1",),
    "NCCL_P2P_LEVEL": ("0", "LOC"),
}  # fmt: skip
"""Variables and values that make NCCL avoid NVLink between nodes (src/init.cc)."""


class Imex(TypedDict):
    channels: int
    """How many channels exist."""
    usable: int
    """How many channels this process may open."""
    service: bool | None
    """Whether it runs; None if a container may hide it, or only GPUs of one node are linked."""
    switched_off: str
    """What makes NCCL avoid IMEX: "NCCL_MNNVL_ENABLE is 0", or ""."""


def look(ctx: Context, clusters: set[str], confined: bool) -> Imex:
    """`clusters`: cluster UUIDs of the GPUs that this rank looks at."""
    channels = [os.path.join(CHANNELS, name) for name in files.entries(CHANNELS) if name.startswith("channel")]
    needed = bool(clusters - {NO_CLUSTER})
    off = [name for name, values in SWITCHES.items() if ctx.environ.get(name) in values]
    return {
        "channels": len(channels),
        "usable": len([path for path in channels if os.access(path, os.R_OK | os.W_OK)]),
        "service": _runs(SERVICE) if needed and not confined else None,
        "switched_off": f"{off[0]} is {ctx.environ[off[0]]}" if off else "",
    }


def _runs(name: str) -> bool:
    return any(files.read(f"/proc/{pid}/comm") == name for pid in files.entries("/proc") if pid.isdigit())


def lacks(imex: Imex) -> str:
    """What IMEX lacks, or ""."""
    if not imex["channels"]:
        return f"there is no channel in {CHANNELS}"
    if not imex["usable"]:
        return f"none of the channels in {CHANNELS} ({imex['channels']}) may be opened"
    return f"{SERVICE} is not running" if imex["service"] is False else ""
