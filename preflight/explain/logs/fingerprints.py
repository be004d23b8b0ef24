"""What torch prints of a collective under TORCH_DISTRIBUTED_DEBUG=DETAIL, without what two ranks have in common.

The form is that of torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, 1.9 to 2.13.
"""

import re
from collections.abc import Collection, Mapping

_INSIDE = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"
_PRINT = re.compile(rf"CollectiveFingerPrint\({_INSIDE}\)")
FORMS = {
    "OpType": ("{}", re.compile(r"\bOpType=(\w+)")),
    "SequenceNumber": (" #{}", re.compile(r"\bSequenceNumber=(\d+)")),
    "TensorShape": (" of {}", re.compile(r"\bTensorShape=(\[[^A-Za-z]*\])")),
    "TensorDtypes": (" {}", re.compile(r"\bTensorDtypes=([\w, ]+?)(?=, Tensor|\))")),
    "TensorDeviceTypes": (" on {}", re.compile(r"\bdevice=(\w+)")),
}
"""By part of a fingerprint: how a sentence says it, and where it stands."""


def shortened(text: str) -> str:
    """ "rank 0 runs ALLREDUCE of [1, 4096], but rank 1 runs ALLREDUCE of [1, 2048]"."""
    prints = [_parts(found[0]) for found in _PRINT.finditer(text)]
    differ = [name for name in FORMS if len({parts.get(name) for parts in prints}) > 1 or name == "OpType"]
    shown = iter(prints)
    return _PRINT.sub(lambda _: _words(next(shown), differ if len(prints) > 1 else FORMS), text) if prints else text


def _parts(text: str) -> dict[str, str]:
    found = {name: pattern.search(text) for name, (_, pattern) in FORMS.items()}
    return {name: fits[1] for name, fits in found.items() if fits}


def _words(parts: Mapping[str, str], names: Collection[str]) -> str:
    return "".join(FORMS[name][0].format(parts[name]) for name in names if name in parts)
