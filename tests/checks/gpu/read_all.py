"""Prints what each group of calls gives for each GPU here, as JSON: the modules that read, without preflight's engine.

`python -m tests.checks.gpu.read_all [GROUP ...]` in a machine of tests/standin.
"""

import json
import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from preflight.checks.gpu.nvlink import imex
from preflight.checks.gpu.pcie import slots
from preflight.checks.gpu.shared import pci
from preflight.checks.gpu.shared.nvml_survey import GROUPS, _side_by_side
from preflight.checks.gpu.topology import paths

OF_A_GPU = ("handle", "identity", "health", "pcie", "nvlink")


def read(groups: Sequence[str]) -> dict[str, Any]:
    """By group: the answer, or a list of those of all GPUs."""
    found: dict[str, Any] = {name: GROUPS[name]() for name in ("start", "system")}
    numbers = range(found["system"]["values"]["count"] if "values" in found["system"] else 0)
    found |= {name: [GROUPS[name](gpu) for gpu in numbers] for name in OF_A_GPU if name in groups}
    found |= {"place": [GROUPS["place"](gpu, list(numbers)) for gpu in numbers]} if "place" in groups else {}
    if "side_by_side" in groups:
        found["side_by_side"] = [answer for _, answer in sorted(_side_by_side("handle", [[gpu] for gpu in numbers]))]
    if "sysfs" in groups:
        ctx: Any = SimpleNamespace(environ=os.environ)
        found["sysfs"] = {
            "gpus": paths.gpus(), "nics": paths.nics(), "switches": pci.switches(), "cpu": paths.cpu(),
            "slots": [slots.path_of(bus) for bus in pci.gpus()], "drivers": [pci.driver(bus) for bus in pci.gpus()],
            "imex": imex.look(ctx, {"1" * 32}, confined=False),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1:] or (*OF_A_GPU, "place", "side_by_side", "sysfs"))))
