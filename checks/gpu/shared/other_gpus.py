"""GPUs that are not NVIDIA's: no check looks at them, and none may say that all is well."""

from preflight.check import ranges
from preflight.checks.gpu.shared import pci
from preflight.sdk import packages

PLATFORMS = {"hip": ("AMD", 0x1002), "xpu": ("Intel", 0x8086)}
"""What torch was built for, by its name in torch's version.py: the maker, and its PCI vendor."""
CLASSES = (0x03, 0x12)
"""PCI base classes: display controllers and processing accelerators (an MI300 is one)."""


def not_looked_at() -> str:
    """Why checks of GPUs say nothing here, or "". Only what the job's torch computes on counts: a processor's own
    graphics do not."""
    build = packages.torch_build()
    for platform, (maker, vendor) in PLATFORMS.items() if build else ():
        count = len(pci.of_vendor(vendor, CLASSES))
        if build and platform in build.constants and count:
            return f"{ranges.count(count, f'{maker} GPU')}, not looked at: only NVIDIA's are known to these checks"
    return ""
