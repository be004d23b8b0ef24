"""The type of a machine, as its firmware names it."""

import re

from preflight.sdk.files import read

NOTHING_SAID = re.compile(
    "Google Compute Engine|Virtual Machine|KVM|HVM domU|VMware.*|VirtualBox|OpenStack.*|Standard PC.*|Bochs|RHEL.*|"
    "QEMU.*|pc-.*|To be filled by O.E.M.|System Product Name|Default string|Not Specified|None|N/A|Unknown|",
    re.IGNORECASE,
)
"""What clouds and hypervisors call each of their machines, and what a vendor has left as it was."""


def instance_type(root: str = "") -> str | None:
    """DMI's product name: on AWS the instance type (p5.48xlarge), on bare metal the model (DGXH100). None where it says
    nothing about the type, or the kernel shows none."""
    name = read(f"{root}/sys/class/dmi/id/product_name")
    return None if NOTHING_SAID.fullmatch(name) else name[:100]
