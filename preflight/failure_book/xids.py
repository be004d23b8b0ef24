"""What is known about each Xid (a GPU error) and SXid (an NVSwitch error): xid.tsv, with a source per row.

node.kernel asks for the row of a number (`known`); the failure book has `rows` for `preflight explain`.
"""

import csv
import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, NamedTuple

from preflight.core.action import Action

FILE = "xid.tsv"
ACTIONS = {
    "nothing": "Nothing.",
    "app": "Nothing on this node; debug the program that ran there, for instance with compute-sanitizer.",
    "watch": "Watch whether it recurs; if so, drain the node and run dcgmi diag -r 3.",
    "idle_reset": "When the GPU is idle: nvidia-smi --gpu-reset -i {device}",
    "reset": "End what runs on it, then nvidia-smi --gpu-reset -i {device}; if it recurs, drain the node and run "
    "dcgmi diag -r 3.",
    "reboot": "Drain the node and power-cycle it; if it recurs, have the card reseated or replaced.",
    "reseat": "Have the power cable of the card checked.",
    "ecc": "nvidia-smi -i {device} -e 1 turns ECC on, so that bad rows are remapped; then reset the GPU.",
    "heat": "Check fans and air flow (ipmitool sensor); ask the data center.",
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
    "ecc": Action.FIX_CONFIG,
    "heat": Action.REPLACE,
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
    """Live, before a job. fail, warn, info, or graded: fail if the line says fatal, else warn."""
    afterwards: str
    """Beside a job that has ended. cause: it may have ended the job. program: the job's own code caused it. warn: it
    ends no job. nothing. graded: cause if the line says fatal, else warn."""
    action: str
    nvidia: str
    """NVIDIA's own immediate action (its resolution bucket); "" where the catalog gives none."""
    branch: str
    """Drivers and GPUs with this meaning, where others have another; "" for all."""
    meaning: str
    source: str


UNKNOWN = Known("", "", "graded", "graded", "watch", "", "", "an error that is not in our table", "")
PEER_CAUSED = frozenset((21, *range(32, 39), 40))
"""Causes of a link's end (Xid 149) that NVIDIA's catalog sees in the peer, its software or its host."""
RECOVERY = "154"
"""The Xid that says what the driver asks for, or no longer asks for; kernel.toml has its row."""
_NUMBER = r"(?P<what>\d+)"
_NONFATAL = r"(?i:\bnon-?fatal\b)"
_OF_THE_PEER = r"\(0x[\da-fA-F]?(?:[26aAeE][0-68]|[159dD]5)[\da-fA-F]{5}\b"
"""NVLink 5: bits 20 to 25 of the first word after the link tell if the other end caused the error (PEER_CAUSED)."""
_FATAL = rf"(?!.{{0,300}}?{_NONFATAL})(?!.{{0,300}}?{_OF_THE_PEER})(?=.{{0,300}}?(?i:\bfatal\b))"
_ROLES = {
    "cause": {"role": "cause", "slug": "gpu_hw_fault", "weight": 93},
    "warn": {"role": "slower", "slug": "gpu_hw_fault", "weight": 45, "severity": "warn"},
    "program": {"role": "failure", "slug": "app_crash", "weight": 40},
}
"""Of signatures, by `Known.afterwards`."""
_OWN = {("xid", "109"): ("kernel.xid_13", "kernel.xid_31")}
"""Errors of the program itself after which the GPU cannot switch contexts, on the same GPU: then it is sound."""
_OF = {"xid": ("Xid", "GPU", "NVIDIA driver 390 to 590"), "sxid": ("SXid", "NVSwitch", "NVIDIA driver 450 to 590")}


@functools.cache
def _table() -> dict[tuple[str, int], Known]:
    return {(row.log, number): row for row in _read() for number in _numbers(row.number)}


@functools.cache
def _read() -> tuple[Known, ...]:
    text = resources.files(__package__).joinpath(FILE).read_text()
    return tuple(Known(**row) for row in csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def _numbers(written: str) -> range:
    first, _, last = written.partition("..")
    return range(int(first), int(last or first) + 1)


def known(log: str, number: int) -> Known:
    """The row of an error; UNKNOWN if it is not in the table."""
    return _table().get((log, number), UNKNOWN)


def rows(forms: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Rows of signatures for what counts afterwards. `forms`: the pattern of a line, for xid and sxid."""
    for log in _OF:
        numbers = [number for of_log, number in _table() if of_log == log]
        others = f"(?!(?:{_any([*numbers, int(RECOVERY)])})\\b)\\d+"
        yield from _graded(UNKNOWN._replace(log=log), others, forms)
    for row in _read():
        if row.afterwards != "nothing":
            yield from _graded(row, _any(_numbers(row.number)), forms)
    yield from _of_fabric_manager()


def _of_fabric_manager() -> Iterator[dict[str, Any]]:
    """Rows for what the fabric manager's own log says of the same errors."""
    harmless = (row for row in _read() if row.log == "sxid" and row.afterwards == "nothing")
    sound = _any(number for row in harmless for number in _numbers(row.number))
    line = "[ERROR] [tid 841] detected NVSwitch {} error {{}} on fid 0 on NVSwitch pci bus id 00000000:86:00.0 port 33"
    of = r" on .{0,300}?pci bus id (?P<device>[\da-fA-F:.]+)"
    for kind, word, afterwards in (("fatal", "fatal", "cause"), ("nonfatal", "non-fatal", "warn")):
        example = line.format(word)
        yield {
            **_ROLES[afterwards],
            "name": f"fabricmanager.sxid_{kind}",
            "word": f"detected NVSwitch {word} error",
            "pattern": rf"detected NVSwitch {word} error (?P<what>(?!(?:{sound})\b)\d+){of}",
            "says": f"the fabric manager reports a {word} error of the NVSwitch at PCI {{device}} (SXid {{what}})",
            "fix": ACTIONS["fabric"],
            "action": str(OPERATORS["fabric"]),
            "versions": "fabric manager 450 to 590",
            "source": "NVIDIA Fabric Manager guide",
            "example": example.format(12028),
            "near_miss": example.format(22013),
        }


def _any(numbers: Iterable[int]) -> str:
    return "|".join(map(str, numbers))


def _graded(row: Known, numbers: str, forms: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """One for each way in which it counts; a fatal one has another example."""
    if row.afterwards != "graded":
        yield _signature(row, row.afterwards, numbers, forms[row.log])
        return
    for afterwards, more in (("cause", _FATAL), ("warn", f"(?!{_FATAL})")):
        yield _signature(row, afterwards, numbers, forms[row.log] + more, ", Fatal" * (afterwards == "cause"))


def _signature(row: Known, afterwards: str, numbers: str, form: str, says_fatal: str = "") -> dict[str, Any]:
    called, of, versions = _OF[row.log]
    name = f"kernel.{row.log}_{row.number or 'unknown'}{'_fatal' * bool(says_fatal)}"
    example = f"{called} (PCI:0000:3b:00.0): {{}}{says_fatal}, Link 03 (0x00000001)"
    number = str(next(iter(_numbers(row.number)))) if row.number else "90210"
    other = f"{RECOVERY}{number}" if row.number else "79" if row.log == "xid" else "20034"
    return {
        **_ROLES[afterwards],
        "name": name,
        "word": f"{called} (",
        "versions": versions,
        "source": row.source or FILE,
        "pattern": form.replace(_NUMBER, f"(?P<what>{numbers})"),
        "says": f"{called} {{what}} of the {of} at PCI {{device}}: {row.meaning}",
        "fix": f"There: {ACTIONS[row.action]}" if "nvidia-smi" in ACTIONS[row.action] else ACTIONS[row.action],
        "action": str(OPERATORS[row.action]),
        "example": example.format(number),
        "near_miss": example.format(other),
        "unless": _OWN.get((row.log, row.number), ()),
    }
