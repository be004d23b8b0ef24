"""What is known about each Xid (a GPU error) and SXid (an NVSwitch error): xid.tsv, with a source per row."""

import csv
import functools
from importlib import resources
from typing import NamedTuple

from preflight.check import Action

ACTIONS = {
    "nothing": "Nothing.",
    "app": "Nothing on this node; debug the program that ran there, for instance with compute-sanitizer.",
    "watch": "Watch whether it recurs; if so, drain the node and run dcgmi diag -r 3.",
    "idle_reset": "When the GPU is idle: nvidia-smi --gpu-reset -i {device}",
    "reset": "End what runs on it, then nvidia-smi --gpu-reset -i {device}; if it recurs, drain the node and run "
    "dcgmi diag -r 3.",
    "reboot": "Drain the node and power-cycle it; if it recurs, have the card reseated or replaced.",
    "reseat": "Have the power cable of the card checked.",
    "replace": "Drain the node, reset the GPU (nvidia-smi --gpu-reset -i {device}), run dcgmi diag -r 3, and have the "
    "card replaced if that fails.",
    "link": "nvidia-smi nvlink -s -i {device} and nvidia-smi nvlink -e -i {device}; if links are down or errors rise, "
    "drain the node and have the GPU reseated.",
    "fabric": "Drain the node, reset all GPUs at once (nvidia-smi --gpu-reset) and restart nvidia-fabricmanager; if it "
    "recurs, have the NVSwitch checked.",
    "versions": "Install the same version of the driver on host and guest.",
}
"""The fix for each word in the column `action`; never more drastic than the immediate action in NVIDIA's catalog."""

OPERATORS = {
    "nothing": Action.NONE,
    "app": Action.NONE,
    "watch": Action.NONE,
    "idle_reset": Action.RESET_GPU,
    "reset": Action.RESET_GPU,
    "reboot": Action.REBOOT,
    "reseat": Action.REPLACE,
    "replace": Action.REPLACE,
    "link": Action.NONE,
    "fabric": Action.RESET_GPU,
    "versions": Action.FIX_CONFIG,
}
"""The same as Actions, which all checks share."""


class Known(NamedTuple):
    """A row of the table; `number` may be a range, "39..41"."""

    log: str
    """xid or sxid."""
    number: str
    severity: str
    """fail, warn, info, or graded: fail if the line says fatal, else warn."""
    action: str
    meaning: str
    source: str


UNKNOWN = Known("", "", "graded", "watch", "an error that is not in our table", "")


@functools.cache
def _table() -> dict[tuple[str, int], Known]:
    text = resources.files(__package__).joinpath("xid.tsv").read_text()
    rows = [Known(**row) for row in csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)]
    return {(row.log, number): row for row in rows for number in _numbers(row.number)}


def _numbers(written: str) -> range:
    first, _, last = written.partition("..")
    return range(int(first), int(last or first) + 1)


def known(log: str, number: int) -> Known:
    """The row of an error; UNKNOWN if it is not in the table."""
    return _table().get((log, number), UNKNOWN)
