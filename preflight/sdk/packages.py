"""The installed packages, as their folders on `sys.path` name them. To import importlib.metadata takes longer."""

import importlib.util
import os
import re
import sys
from typing import NamedTuple

from preflight.sdk import files

METADATA = (".dist-info", ".egg-info")


class TorchBuild(NamedTuple):
    """What torch says of itself in its version.py, which is read without importing it."""

    folder: str
    constants: dict[str, str]
    """`__version__`, and the version of the platform that it was built for: `cuda`, `hip` (ROCm) or `xpu`."""


def torch_build() -> TorchBuild | None:
    """None if torch is not installed."""
    spec = importlib.util.find_spec("torch")
    folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
    text = files.read(os.path.join(folder, "version.py")) if folder else ""
    constants = dict(re.findall(r"^(__version__|cuda|hip|xpu)\b.* = '(.+)'$", text, re.MULTILINE))
    return TorchBuild(folder, constants) if folder else None


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
