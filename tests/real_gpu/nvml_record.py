"""Everything that NVML answers on this machine, as JSON: for a machine of the stand-in, and for questions of later.

    python -m tests.real_gpu.nvml_record FILE

Each getter of the system and of the first GPU is called in a thread of its own with a bound, with the numbers of
ARGUMENTS beside the handle; what wants a struct is left to `tests.checks.gpu.read_all`. A call that crashes costs only
itself: all are made in a child, which another one replaces. No setter is called. UUIDs and serials are in the file;
`tests.real_gpu.nvml_fixture` replaces them.
"""

import ctypes
import functools
import inspect
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pynvml

WAIT_S = 2.0
FIELDS = range(1, 301)
ARGUMENTS: dict[str, tuple[int, ...]] = {
    "apiType": (0, 1), "clockType": (0, 1, 2, 3), "pstate": (0, 2), "counter": (0, 1), "cpuSetSize": (4,),
    "scope": (0, 1), "nodeSetSize": (2,), "encoderQueryType": (0, 1), "errorType": (0, 1), "counterType": (0, 1),
    "locationType": tuple(range(6)), "fan": (0, 1), "infoRomObject": (0, 1, 2), "level": (0, 10, 20, 30, 40, 50),
    "link": tuple(range(18)), "capability": tuple(range(6)), "memoryClockMHz": (2619, 3201), "pid": (1,),
    "perfPolicyType": tuple(range(8)), "sampling_type": tuple(range(6)), "timeStamp": (0,), "sensor": (0,),
    "sensorindex": (0, 15), "sourceFilter": (0, 1), "threshold": tuple(range(8)), "type": (0, 1, 2, 3),
    "id": (0, 1, 2, 3), "p2pIndex": (0, 1, 2, 3, 4, 5),
}  # fmt: skip
SAME_GPU = "device2"
LEFT_OUT = ("HandleBy", "EventSet", "GetFieldValues", "GpuInstance", "VgpuType", "ConfComputeGpuAttestation", "Vgpu")
"""Look-ups of handles, what needs further objects, and (attestation) what takes seconds and proves nothing here."""
MOST_CRASHES = 20
Answer = dict[str, Any]


def plain(value: Any) -> Any:
    """A value of NVML's as JSON: structs by field, texts decoded."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [plain(each) for each in list(value)[:64]]
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return plain(vars(value))
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    return value if isinstance(value, str | int | float | bool | type(None)) else repr(value)


def ask(function: Callable[..., Any], *arguments: Any) -> Answer:
    """{"value"} or {"error"} with microseconds; {"silent"} where no answer came in time."""
    answer: Answer = {}

    def call() -> None:
        began = time.perf_counter()
        try:
            answer["value"] = plain(function(*arguments))
        except pynvml.NVMLError as error:
            answer["error"] = int(error.value)
        except Exception as error:
            answer["python"] = f"{type(error).__name__}: {error}"
        answer["us"] = round((time.perf_counter() - began) * 1e6)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return dict(answer) if not thread.is_alive() else {"silent": WAIT_S}


def getters(prefix: str) -> Iterator[tuple[str, Callable[..., Any], list[str]]]:
    """(name, function, names of its arguments)."""
    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        if name.startswith((f"{prefix}Get", f"{prefix}Is", f"{prefix}Validate")) and not any(
            word in name for word in LEFT_OUT
        ):
            parameters = inspect.signature(function).parameters.values()
            yield name, function, [each.name for each in parameters if each.default is inspect.Parameter.empty]


def calls() -> Iterator[tuple[str, Callable[[], Answer]]]:
    """(what is called, the call) of all."""
    for name, function, arguments in getters("nvmlSystem"):
        if not arguments:
            yield name, functools.partial(ask, function)
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    for name, function, arguments in getters("nvmlDevice"):
        others = arguments[1:]
        if arguments and all(each in ARGUMENTS or each == SAME_GPU for each in others):
            for numbers in itertools.product(*(ARGUMENTS.get(each, (None,)) for each in others)):
                given = [gpu if number is None else number for number in numbers]
                yield f"{name}({', '.join(map(str, numbers))})", functools.partial(ask, function, gpu, *given)
    for field in FIELDS:
        yield f"field {field}", functools.partial(_field, gpu, field)


def _field(handle: Any, field: int) -> Answer:
    answer = ask(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if not isinstance(answer.get("value"), list):
        return answer
    (found,) = answer["value"]
    if found["nvmlReturn"]:
        return {"error": found["nvmlReturn"], "us": answer["us"]}
    return {"type": found["valueType"], "value": found["value"], "us": answer["us"]}


def record() -> dict[str, Any]:
    """{"calls": {call: answer}, "seconds"}."""
    began, found = time.monotonic(), dict[str, Answer]()
    for _ in range(MOST_CRASHES):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            _answer_all(writing, frozenset(found))
        os.close(writing)
        with os.fdopen(reading) as lines:
            last = _gather(lines, found)
        _, status = os.waitpid(child, 0)
        if last is None:
            break
        found[last] = {"crashed": os.waitstatus_to_exitcode(status)}
    return {"calls": found, "seconds": round(time.monotonic() - began, 2)}


def _gather(lines: Iterable[str], found: dict[str, Answer]) -> str | None:
    """The call in which the child ended before its answer; None where it came to its end."""
    asked: str | None = "nvmlInit"
    for line in lines:
        name, answer = json.loads(line)
        asked = None if name is None else name
        if name is not None and answer is not None:
            found[name] = answer
    return asked


def _answer_all(writing: int, known: frozenset[str]) -> NoReturn:
    with os.fdopen(writing, "w", buffering=1) as lines:
        pynvml.nvmlInit()
        for name, call in calls():
            if name not in known:
                print(json.dumps([name, None]), file=lines)
                print(json.dumps([name, call()], default=repr), file=lines)
        print(json.dumps([None, None]), file=lines)
    os._exit(0)


def summary(recorded: dict[str, Any]) -> str:
    answers = recorded["calls"].values()
    counts = {
        "answered": sum("value" in answer for answer in answers),
        "not supported": sum(answer.get("error") == 3 for answer in answers),
        "other errors": sum(answer.get("error", 3) != 3 for answer in answers),
        "silent": sum("silent" in answer for answer in answers),
        "crashed": sum("crashed" in answer for answer in answers),
        "not asked": sum("python" in answer for answer in answers),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items()) + f" in {recorded['seconds']} s"


def main() -> None:
    recorded = record()
    Path(sys.argv[1]).write_text(json.dumps(recorded, indent=1, default=repr))
    print(summary(recorded))


if __name__ == "__main__":
    main()
