"""What NVML reports about GPUs, as plain typed data: the only module that uses pynvml.

It runs in a Probe, since a call may hang (see nvml_survey.py). A value is None if the driver, the card or a permission
does not provide it, which is normal. `NvmlTrouble` is raised if a GPU no longer answers. New names are tried before old
ones: drivers and versions of nvidia-ml-py lack one or the other.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from preflight.check import Probe
from preflight.checks.gpu.shared.readings import AT_WORK, GpuIdentity, GpuProcess, Handle, Health, Mig, System
from preflight.sdk.gpu_clocks import BRAKE, HW_THERMAL, SLOWED, SW_THERMAL

LOST, RESET, ERROR, NO_PERMISSION = "lost", "reset", "error", "permission"
FATAL = {15: LOST, 28: LOST, 16: RESET, 11: ERROR, 10: ERROR}
"""NVML codes after which no more calls are made on a GPU, since each may cost seconds. 11 is a lost interrupt, 10 a
timeout in the driver."""
_NO_LIBRARY, _NO_PERMISSION, NOT_SUPPORTED, INVALID = 12, 4, 3, 2
_ALL_ONES = (2**32 - 1, 2**64 - 1)
"""What a register reads as if no device answers."""
NORMAL = {2, 3, 4, 6, 13, 21, 22, 25, 26, 27, 29}
"""Codes that only mean that this driver or card does not provide a value."""


class NvmlTrouble(Exception):  # noqa: N818 -- says what is wrong
    def __init__(self, kind: str, call: str, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.kind, self.call, self.text, self.number = kind, call, text, number


class _Reading(threading.local):
    """What this thread reads: GPUs may be read in parallel."""

    def __init__(self) -> None:
        self.about = ""
        """What is announced with each call."""
        self.notes: list[str] = []
        """Answers that are neither a value nor normal, of the group being read."""


_reading = _Reading()


def announce(name: str) -> None:
    """Called before every NVML call, so that a hang can be named."""
    Probe.doing(name + _reading.about)


@contextlib.contextmanager
def about(whom: str) -> Iterator[None]:
    """Adds to the announcement of calls that also concern another GPU: " with GPU 5"."""
    _reading.about = whom
    try:
        yield
    finally:
        _reading.about = ""


def note(text: str) -> None:
    """Records an answer that is neither a value nor a normal error."""
    if text not in _reading.notes:
        _reading.notes.append(text)


def take_notes() -> list[str]:
    """The odd answers since the last call: "nvmlDeviceGetSerial: Unknown Error"."""
    notes, _reading.notes = _reading.notes, []
    return notes


def start() -> None:
    """Opens the driver: seconds without persistence mode. Raises NvmlTrouble; its `number` is NVML's code."""
    import ctypes

    announce("nvmlInit")
    try:  # as pynvml does, whose import is the most that a quick run would do where there is no driver
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise NvmlTrouble(ERROR, "nvmlInit", "NVML Shared Library Not Found", _NO_LIBRARY) from None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlTrouble(ERROR, "nvmlInit", str(error), error.value) from None


def call(name: str, *arguments: Any, strict: bool = False) -> Any:
    """The answer of one function, or None. `strict`: any error raises NvmlTrouble."""
    import pynvml

    function = getattr(pynvml, name, None)
    if function is None:
        return None
    announce(name)
    try:
        answer = function(*arguments)
        return None if isinstance(answer, int) and answer in _ALL_ONES else answer
    except pynvml.NVMLError as error:
        number = error.value
        if strict or number in FATAL:
            kind = NO_PERMISSION if number == _NO_PERMISSION else FATAL.get(number, ERROR)
            raise NvmlTrouble(kind, name, str(error), number) from None
        if number not in NORMAL:
            note(f"{name}: {error!s}")
    except Exception as error:  # its versions differ in their functions' parameters
        assert not strict, f"{name}: {error}"
    return None


def first(names: Sequence[str], *arguments: Any) -> Any:
    return next((answer for name in names if (answer := call(name, *arguments)) is not None), None)


def text_of(value: object) -> str | None:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return text.strip() if isinstance(text, str) and text.strip() else None


def bus_id(text: object) -> str:
    """ "00000000:1B:00.0" of NVML as sysfs writes it: "0000:1b:00.0"."""
    domain, _, rest = (text_of(text) or "").lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else domain


def system() -> System:
    excluded = []
    for number in range(call("nvmlGetExcludedDeviceCount") or 0):
        info = call("nvmlGetExcludedDeviceInfoByIndex", number)
        excluded += [bus_id(info.pci.busId)] if info is not None else []
    return {
        "driver": text_of(call("nvmlSystemGetDriverVersion")),
        "cuda": first(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")),
        "count": int(call("nvmlDeviceGetCount", strict=True)),
        "excluded": excluded,
    }


def handle_of(index: int) -> Any:
    return call("nvmlDeviceGetHandleByIndex", index, strict=True)


def handle(index: int) -> Handle:
    """A GPU's names. Raises NvmlTrouble also if the look-up is refused."""
    gpu = handle_of(index)
    pci = call("nvmlDeviceGetPciInfo", gpu)
    return {
        "uuid": text_of(call("nvmlDeviceGetUUID", gpu, strict=True)) or f"GPU-{index}",
        "bus": bus_id(pci.busId) if pci is not None else "",
        "name": text_of(call("nvmlDeviceGetName", gpu)) or "unknown GPU",
        "serial": text_of(call("nvmlDeviceGetSerial", gpu)),
        "minor": call("nvmlDeviceGetMinorNumber", gpu),
    }


def identity(index: int) -> GpuIdentity:
    gpu = handle_of(index)
    pci = call("nvmlDeviceGetPciInfo", gpu)
    total, _used, reserved, free = _memory(gpu)
    return {
        "vbios": text_of(call("nvmlDeviceGetVbiosVersion", gpu)),
        "board": text_of(call("nvmlDeviceGetBoardPartNumber", gpu)),
        "inforom": text_of(call("nvmlDeviceGetInforomImageVersion", gpu)),
        "module": _module(gpu),
        "subsystem": int(pci.pciSubSystemId) if pci is not None else 0,
        "numa": call("nvmlDeviceGetNumaNodeId", gpu),
        "memory_total": total,
        "memory_free": free,
        "memory_reserved": reserved,
        "compute_mode": call("nvmlDeviceGetComputeMode", gpu),
        "mig": _mig(gpu),
    }


def _module(gpu: Any) -> int | None:
    """The GPU's slot. All versions of pynvml accept a reference and return NVML's code; older ones accept nothing else,
    and would use a number as an address."""
    import ctypes

    number = ctypes.c_uint()
    return number.value if call("nvmlDeviceGetModuleId", gpu, ctypes.byref(number)) == 0 else None


def _memory(gpu: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """(total, used, reserved, free) in bytes. The old function counts the driver's reserve as used."""
    import pynvml

    info = call("nvmlDeviceGetMemoryInfo", gpu, getattr(pynvml, "nvmlMemory_v2", 0x02000028))
    if info is not None:
        return int(info.total), int(info.used), int(info.reserved), int(info.free)
    info = call("nvmlDeviceGetMemoryInfo", gpu)
    return (int(info.total), int(info.used), None, int(info.free)) if info is not None else (None,) * 4


def _mig(gpu: Any) -> Mig | None:
    mode = call("nvmlDeviceGetMigMode", gpu)
    if mode is None:
        return None
    places = int(call("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0) if mode[0] else 0
    instances = (call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number) for number in range(places))
    uuids = (text_of(call("nvmlDeviceGetUUID", instance)) for instance in instances if instance is not None)
    return {"current": bool(mode[0]), "pending": bool(mode[1]), "devices": [uuid for uuid in uuids if uuid]}


def health(index: int) -> Health:
    gpu = handle_of(index)
    mode = call("nvmlDeviceGetEccMode", gpu)
    total, used, reserved, _ = _memory(gpu)
    bar1 = call("nvmlDeviceGetBAR1MemoryInfo", gpu)
    names = ("NVML_FI_DEV_MEMORY_TEMP", "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", *THROTTLED.values())
    memory_temperature, recovery_action, *throttled = field_values(gpu, [(name, 0) for name in names])
    remapped, margin = _remapped(gpu), call("nvmlDeviceGetMarginTemperature", gpu)
    rates = call("nvmlDeviceGetUtilizationRates", gpu)
    utilization = int(rates.gpu) if rates is not None else None
    return {
        "ecc": bool(mode[0]) if mode else None,
        "ecc_pending": bool(mode[1]) if mode else None,
        "ecc_errors": _ecc_errors(gpu),
        "sram": _sram(gpu),
        "remapped": remapped,
        "retired": _retired(gpu) if remapped is None else _NO_PAGES,
        "recovery_action": recovery_action,
        "throttle": first(("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), gpu),
        "throttled_ns": dict(zip(THROTTLED, throttled, strict=True)),
        "temperature": first(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), gpu, 0),
        "temperature_limits": _temperature_limits(gpu, margin),
        "temperature_margin": margin,
        "memory_temperature": memory_temperature,
        "persistence": flag(call("nvmlDeviceGetPersistenceMode", gpu)),
        "pstate": pstate(gpu),
        "power_limit_mw": call("nvmlDeviceGetEnforcedPowerLimit", gpu),
        "power_default_mw": call("nvmlDeviceGetPowerManagementDefaultLimit", gpu),
        "clocks": _clocks(gpu),
        "bar1": int(bar1.bar1Total) if bar1 is not None else None,
        "memory_bus_bits": call("nvmlDeviceGetMemoryBusWidth", gpu),
        "memory_total": total,
        "memory_used": used,
        "memory_reserved": reserved,
        "processes": _processes(gpu),
        "inforom_valid": _inforom_valid(gpu),
        "utilization": utilization,
        "pcie_kbs": _pcie_kbs(gpu) if (utilization or 0) >= AT_WORK else None,
    }


THROTTLED = {
    SLOWED[SW_THERMAL]: "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    SLOWED[HW_THERMAL]: "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    SLOWED[BRAKE]: "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
"""The counters of lowered clocks that are no part of normal work, as the software's power cap is: a card at work often
meets it."""


def _pcie_kbs(gpu: Any) -> int | None:
    """0 is what it sends, 1 what it receives; each takes 20 ms."""
    ways = [call("nvmlDeviceGetPcieThroughput", gpu, counter) for counter in (0, 1)]
    return sum(ways) if None not in ways else None


def flag(value: Any) -> bool | None:
    return bool(value) if value is not None else None


def pstate(gpu: Any) -> int | None:
    state = call("nvmlDeviceGetPerformanceState", gpu)
    return state if state is not None and state < 16 else None  # 32 is "unknown"


def _ecc_errors(gpu: Any) -> dict[str, int | None]:
    counters = {"volatile": 0, "aggregate": 1}
    types = {"corrected": 0, "uncorrected": 1}
    return {
        f"{counter}_{kind}": call("nvmlDeviceGetTotalEccErrors", gpu, types[kind], counters[counter])
        for counter in counters
        for kind in types
    }


def _sram(gpu: Any) -> dict[str, int] | None:
    import ctypes

    import pynvml

    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    if call("nvmlDeviceGetSramEccErrorStatus", gpu, ctypes.byref(status)) is None:
        return None
    return {
        "volatile_uncorrected": int(status.volatileUncParity + status.volatileUncSecDed),
        "aggregate_uncorrected": int(status.aggregateUncParity + status.aggregateUncSecDed),
        "threshold_exceeded": int(status.bThresholdExceeded),
    }


def _remapped(gpu: Any) -> dict[str, int] | None:
    rows = call("nvmlDeviceGetRemappedRows", gpu)
    names = ("corrected", "uncorrected", "pending", "failed")
    return dict(zip(names, map(int, rows), strict=True)) if rows is not None else None


def _temperature_limits(gpu: Any, margin: int | None) -> dict[str, int | None]:
    """A card that reports the degrees left has no other limits for the GPU."""
    names = ("shutdown", "slowdown", "memory_max", "gpu_max")
    return {
        name: call("nvmlDeviceGetTemperatureThreshold", gpu, number) if margin is None or name == "memory_max" else None
        for number, name in enumerate(names)
    }


_NO_PAGES: dict[str, int | None] = {"single_bit": None, "double_bit": None, "pending": None}
"""For cards that remap rows instead: Ampere and newer."""


def _retired(gpu: Any) -> dict[str, int | None]:
    pages = {"single_bit": 0, "double_bit": 1}
    counts = {name: call("nvmlDeviceGetRetiredPages", gpu, cause) for name, cause in pages.items()}
    pending = call("nvmlDeviceGetRetiredPagesPendingStatus", gpu)
    return {
        **{name: len(pages_) if pages_ is not None else None for name, pages_ in counts.items()},
        "pending": pending,
    }


def _clocks(gpu: Any) -> dict[str, int | None]:
    """Clock types: 0 is graphics, 1 is SM, 2 is memory."""
    return {
        "sm": call("nvmlDeviceGetClockInfo", gpu, 1),
        "memory": call("nvmlDeviceGetClockInfo", gpu, 2),
        "sm_max": call("nvmlDeviceGetMaxClockInfo", gpu, 1),
        "memory_max": call("nvmlDeviceGetMaxClockInfo", gpu, 2),
        **{
            f"{name}_application{'_default' if default else ''}": call(
                f"nvmlDeviceGet{default}ApplicationsClock", gpu, number
            )
            for number, name in enumerate(("graphics", "sm", "memory"))
            for default in ("", "Default")
        },
    }


def _processes(gpu: Any) -> list[GpuProcess] | None:
    kinds = ("Compute", "Graphics", "MPSCompute")
    lists = [
        first([f"nvmlDeviceGet{kind}RunningProcesses{version}" for version in ("_v3", "_v2")], gpu) for kind in kinds
    ]
    if lists[0] is None:
        return None
    found: dict[int, GpuProcess] = {}
    computes = {int(process.pid) for listed in (lists[0], lists[2]) for process in listed or ()}
    for process in (process for listed in lists for process in listed or ()):
        pid, memory = int(process.pid), process.usedGpuMemory
        found[pid] = {"pid": pid, "memory": int(memory) if memory is not None else None}
        found[pid] |= {"draws": True} if pid not in computes else {}
    return [found[pid] for pid in sorted(found)]


def _inforom_valid(gpu: Any) -> bool | None:
    """False only for code 14, corrupted."""
    try:
        call("nvmlDeviceValidateInforom", gpu, strict=True)
    except NvmlTrouble as trouble:
        if trouble.number in FATAL:
            raise
        return False if trouble.number == 14 else None
    return True


def field_values(gpu: Any, wanted: Sequence[tuple[str, int]]) -> list[int | None]:
    """The values of (pynvml's name of a field, scope: a link), each None if not provided."""
    import pynvml

    ids = [(getattr(pynvml, field, None), scope) for field, scope in wanted]
    known = [(id_, scope) for id_, scope in ids if id_ is not None]
    values = (
        value
        for at in range(0, len(known), FIELDS_AT_ONCE)
        for value in _field_values(gpu, known[at : at + FIELDS_AT_ONCE])
    )
    return [next(values) if id_ is not None else None for id_, _ in ids]


FIELDS_AT_ONCE = 100
"""No limit is documented; NVIDIA's own tools query about as many."""


def _field_values(gpu: Any, known: list[tuple[int, int]]) -> Iterator[int | None]:
    answers = call("nvmlDeviceGetFieldValues", gpu, known)
    yield from map(_field, answers) if answers is not None else [None] * len(known)


def _field(answer: Any) -> int | None:
    """The member of the union that its type names (nvml.h, nvmlValueType_t)."""
    members = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    member = members.get(answer.valueType)
    return int(getattr(answer.value, member)) if answer.nvmlReturn == 0 and member else None
