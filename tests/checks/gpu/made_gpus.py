"""Facts of nodes full of GPUs, as gpu.inventory has them, for tests of judge()."""

from collections.abc import Iterator, Mapping
from typing import Any

NAME = "NVIDIA H100 80GB HBM3"
GIB = 2**30


def handles(node: int, gpus: int = 8, name: str = NAME) -> dict[str, dict[str, Any]]:
    """By NVML's number."""
    return {
        str(gpu): {
            "uuid": f"GPU-{node}-{gpu}", "bus": f"0000:{16 + gpu:02x}:00.0", "name": name,
            "serial": f"16500{node:04}{gpu}", "minor": gpu,
        }
        for gpu in range(gpus)
    }  # fmt: skip


def identity(**more: Any) -> dict[str, Any]:
    return {
        "vbios": "96.00.74.00.01", "board": "692-2G520", "inforom": "G520.0200.00.05", "module": 1,
        "subsystem": 0x16C110DE, "memory_total": 80 * GIB,
        "memory_free": 79 * GIB, "memory_reserved": GIB // 2, "compute_mode": 0, "numa": None,
        "mig": {"current": False, "pending": False, "devices": []}, **more,
    }  # fmt: skip


def look(gpus: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What a rank got of these GPUs: {uuid: values}."""
    numbers = {uuid: number for number, uuid in enumerate(gpus)}
    return {"gpus": dict(gpus), "numbers": numbers, "troubles": [], "notes": {}, **more}


def trouble(gpu: int | None, met_in: str, kind: str = "hangs", **more: Any) -> dict[str, Any]:
    """Of a GPU that did not tell its UUID."""
    return {
        "gpu": gpu, "uuid": None, "bus": None, "serial": None, "hidden": False, "kind": kind,
        "call": "nvmlDeviceGetName", "text": "no answer", "seconds": 5.0, "met_in": met_in, **more,
    }  # fmt: skip


def rank_of(node: int, local_rank: int, gpus: int = 8, **more: Any) -> dict[str, Any]:
    """What one rank says; the first of a node looks at its GPUs."""
    seen = handles(node, gpus)
    uuids = [handle["uuid"] for handle in seen.values()]
    system = {"driver": "535.161.08", "cuda": 12020, "count": gpus, "excluded": []}
    identities = {uuid: identity() for uuid in uuids} if local_rank == 0 else {}
    return {
        "seen": {"system": system, "gpus": seen, "pci": [handle["bus"] for handle in seen.values()]},
        "look": look(identities),
        "visible": uuids, "wanted": None, "names_none": "", "order": "", "confined": False, "unbound": {},
        "local_rank": local_rank, "torch": None, **more,
    }  # fmt: skip


def inventory(*sizes: int, gpus: int | None = None) -> dict[int, dict[str, Any]]:
    """A node for each size, with a GPU a rank or `gpus`."""
    found: Iterator[dict[str, Any]] = (
        rank_of(node, local_rank, size if gpus is None else gpus)
        for node, size in enumerate(sizes)
        for local_rank in range(size)
    )
    return dict(enumerate(found))


def on_nodes(*sizes: int) -> dict[str, range]:
    return {f"node-{number}": range(sum(sizes[:number]), sum(sizes[: number + 1])) for number in range(len(sizes))}
