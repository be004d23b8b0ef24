"""Which GPUs this process may use, told apart by UUID. Asks NVML only: no torch, no CUDA context."""

import re
from collections.abc import Mapping


def visible(environ: Mapping[str, str]) -> tuple[list[str] | None, str]:
    """(UUIDs in the order of CUDA_VISIBLE_DEVICES, ""), or (None, why NVML cannot tell)."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            everyone = [_uuid(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return None, str(error)
    return choose(everyone, environ.get("CUDA_VISIBLE_DEVICES")), ""


def _uuid(pynvml: object, index: int) -> str:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[attr-defined]
    uuid = pynvml.nvmlDeviceGetUUID(handle)  # type: ignore[attr-defined]
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def choose(everyone: list[str], wanted: str | None) -> list[str]:
    """What CUDA makes of CUDA_VISIBLE_DEVICES (CUDA C++ programming guide, environment variables): indices or
    (the beginnings of) UUIDs; the list ends at the first entry that names no device; a MIG UUID stands for
    itself."""
    if wanted is None:
        return everyone
    chosen: list[str] = []
    for word in (word.strip() for word in wanted.split(",")):
        if word.startswith("MIG-"):
            chosen.append(word)
        elif re.fullmatch("[0-9]{1,9}", word) and int(word) < len(everyone):
            chosen.append(everyone[int(word)])
        elif word.startswith("GPU-") and (match := next((u for u in everyone if u.startswith(word)), None)):
            chosen.append(match)
        else:
            break
    return chosen
