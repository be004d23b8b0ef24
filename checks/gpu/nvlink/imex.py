"""IMEX, the service by which GPUs of several nodes of one NVLink domain share memory. NCCL needs it between them."""

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
"""Variables, and values with which NCCL does without NVLink between nodes (its src/init.cc)."""


class Imex(TypedDict):
    channels: int
    """That are here."""
    usable: int
    """That this process may open."""
    service: bool | None
    """Whether it runs; None where a container may hide it, or the GPUs of one node alone are linked."""
    switched_off: str
    """What makes NCCL do without: "NCCL_MNNVL_ENABLE is 0", or ""."""


def look(ctx: Context, clusters: set[str], confined: bool) -> Imex:
    """`clusters`: UUIDs of the GPUs that this rank looks at."""
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
    """What is missing of IMEX, or ""."""
    if not imex["channels"]:
        return f"there is no channel in {CHANNELS}"
    if not imex["usable"]:
        return f"none of the channels in {CHANNELS} ({imex['channels']}) may be opened"
    return f"{SERVICE} does not run" if imex["service"] is False else ""
