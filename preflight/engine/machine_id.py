"""Which machine is this? An id that survives a rename of the host and does not reveal the machine's own id."""

import hmac
import os
import re

from preflight.sdk.files import read

FILE, MOUNTS = "/etc/machine-id", "/proc/self/mountinfo"
APPLICATION = bytes.fromhex("914fe3b494db42b6983ac2c12c14ecc4")
"""preflight's id, generated once at random: if it changed, every history would start over."""
OF_A_DISK = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "reiserfs", "xfs", "zfs"}
"""Types of file systems. On others (overlay, squashfs, nfs, tmpfs) the id may belong to an image that many machines
boot, or change with each boot."""


def machine_id() -> str:
    """32 hex digits; "" if the machine has no id of its own.

    machine-id(5) asks to keep the id itself confidential, so it is hashed as sd_id128_get_machine_app_specific(3) does:
    HMAC-SHA256 of the application's id with the machine's as key, marked as a UUID of version 4.
    """
    own = read(FILE)
    if not re.fullmatch("[0-9a-f]{32}", own) or not int(own, 16) or _type_of_mount() not in OF_A_DISK:
        return ""
    marked = bytearray(hmac.digest(bytes.fromhex(own), APPLICATION, "sha256")[:16])
    marked[6], marked[8] = marked[6] & 0x0F | 0x40, marked[8] & 0x3F | 0x80  # version 4, variant of RFC 9562
    return marked.hex()


def _type_of_mount() -> str:
    """The file system type of FILE: a container may have its host's file there. A later mount hides an earlier one."""
    rows = [line.partition(" - ") for line in read(MOUNTS).splitlines()]
    types = {before.split()[4]: after.split()[0] for before, _, after in rows if after}
    above = [point for point in types if f"{os.path.realpath(FILE)}/".startswith(f"{point.rstrip('/')}/")]
    return types[max(above, key=len)] if above else ""
