"""Makes a fixture of a record of NVML's answers: small, and with the names of a machine of the stand-in.

    python -m tests.real_gpu.nvml_fixture RECORD MACHINE FIXTURE

Calls are one a line. What differs with each run of the same card is left out: how long each call took, histories and
the times in them. Of a field's value only the member that its type names is kept. UUID and serial are the machine's.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.standin import expand

MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Of nvmlValue_t, by nvmlValueType_t."""
LEFT_OUT = ("nvmlDeviceGetSamples", "nvmlDeviceGetPdi")
"""Histories; a number of the card's own."""
TIMES = ("referenceTime", "timeStamp")
UNREAD = " object at 0x"
"""What the recorder wrote of an object before it knew how to read it."""


def compact(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """{call: {"value"}, {"type", "value"} of a field, or {"error"}}."""
    calls: Mapping[str, Any] = recorded["calls"]
    kept = (name for name, answer in calls.items() if not name.startswith(LEFT_OUT) and UNREAD not in str(answer))
    return {name: _answer(calls[name]) for name in kept}


def _answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    if "type" in answer:
        return {"type": answer["type"], "value": answer["value"][MEMBERS[answer["type"]]]}
    return {key: _timeless(value) for key, value in answer.items() if key != "us"}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def renamed(text: str, calls: Mapping[str, Any], machine: str) -> str:
    """The text with the machine's UUID and serial instead of those of the card that answered."""
    keys = expand.gpus(expand.spec(machine))[0].keys
    for call, key in (("nvmlDeviceGetUUID()", "uuid"), ("nvmlDeviceGetSerial()", "serial")):
        text = text.replace(calls[call]["value"], str(keys[key])) if "value" in calls[call] else text
    return text


def main() -> None:
    record, machine, fixture = sys.argv[1:]
    recorded = json.loads(Path(record).read_text())
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in compact(recorded).items()]
    Path(fixture).write_text(renamed("{\n" + ",\n".join(lines) + "\n}\n", recorded["calls"], machine))


if __name__ == "__main__":
    main()
