"""Free memory of this host and of its GPUs. Imports torch: only `measure` may import it."""

import psutil
import torch

from preflight.sdk import cgroups


def available() -> int:
    """Free bytes of the machine."""
    return int(psutil.virtual_memory().available)


def free_on_host() -> int:
    """Free bytes, considering the limits of the cgroups around this process."""
    limited = cgroups.memory()
    return min(available(), limited.left) if limited else available()


def free_on(device: torch.device, ranks_here: int) -> int:
    """Free bytes for each of `ranks_here` ranks of the node."""
    if device.type != "cuda":
        return free_on_host() // ranks_here
    sharing = max(1, ranks_here // max(1, torch.cuda.device_count()))
    free: int = torch.cuda.mem_get_info(device)[0] // sharing
    return free
