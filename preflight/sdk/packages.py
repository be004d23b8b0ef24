"""The installed packages, as their folders on `sys.path` name them. To import importlib.metadata takes longer."""

import os
import re
import sys
from typing import NamedTuple

METADATA = (".dist-info", ".egg-info")


class Package(NamedTuple):
    """An installed package."""

    version: str
    folder: str
    """Where its metadata is: a .dist-info or .egg-info."""


def installed() -> dict[str, Package]:
    """By name as pip writes it. The first match on the path counts, as for an import."""
    found: dict[str, Package] = {}
    for folder in sys.path:
        in_folder: dict[str, Package] = {}
        try:
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith(METADATA))
        except OSError:  # a zip, or not there
            continue
        for name in names:
            if match := re.fullmatch(r"(.+?)-(\d[^-]*)(?:-py[\d.]+)?\.\w+-info", name):
                in_folder[re.sub(r"[-_.]+", "-", match[1]).lower()] = Package(match[2], os.path.join(folder, name))
        found = {**in_folder, **found}
    return found
