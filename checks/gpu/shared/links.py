"""What NVML reports about a GPU's links: PCIe, NVLink, fabric, and how it reaches other GPUs (see nvml.py)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from preflight.checks.gpu.shared import nvml
from preflight.checks.gpu.shared.nvml import NvmlTrouble, bus_id, call, field_values, flag, handle_of, pstate
from preflight.checks.gpu.shared.readings import Fabric, GpuPlace, NvLink, NvLinkPort, Pcie, Peer

Counts = Mapping[str, int | None]
_PCIE_FIELDS = {
    "correctable": "NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS",
    "naks_received": "NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED",
    "naks_sent": "NVML_FI_DEV_PCIE_COUNT_NAKS_SENT",
    "receiver": "NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR",
    "bad_tlp": "NVML_FI_DEV_PCIE_COUNT_BAD_TLP",
    "bad_dllp": "NVML_FI_DEV_PCIE_COUNT_BAD_DLLP",
    "non_fatal": "NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR",
    "fatal": "NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR",
    "lcrc": "NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR",
    "lane": "NVML_FI_DEV_PCIE_COUNT_LANE_ERROR",
}


def pcie(index: int) -> Pcie:
    gpu = handle_of(index)
    counters = dict(zip(_PCIE_FIELDS, field_values(gpu, [(name, 0) for name in _PCIE_FIELDS.values()]), strict=True))
    return {
        "width": call("nvmlDeviceGetCurrPcieLinkWidth", gpu),
        "width_max": call("nvmlDeviceGetMaxPcieLinkWidth", gpu),
        "generation": call("nvmlDeviceGetCurrPcieLinkGeneration", gpu),
        "generation_max": call("nvmlDeviceGetMaxPcieLinkGeneration", gpu),
        "generation_gpu_max": call("nvmlDeviceGetGpuMaxPcieLinkGeneration", gpu),
        "virtual": flag(call("nvmlDeviceGetVirtualizationMode", gpu)),  # 0 is none
        "pstate": pstate(gpu),
        "replays": call("nvmlDeviceGetPcieReplayCounter", gpu),
        "errors": {name: count for name, count in counters.items() if count is not None},
    }


def nvlink(index: int) -> NvLink:
    """The GPU's NVLinks. Links are counted by their state, up to the first that the driver does not know."""
    gpu = handle_of(index)
    states = list(_states(gpu))
    unread = len(states) == 1 and states[0] is None  # one link's answer holds for all
    return {"links": None if unread else _ports(gpu, states), "fabric": _fabric(gpu)}


MOST_LINKS = 64


def _states(gpu: Any) -> Iterator[bool | None]:
    """The state of each link; a single None if not even the first can be read."""
    for link in range(MOST_LINKS):
        try:
            yield bool(call("nvmlDeviceGetNvLinkState", gpu, link, strict=True))
        except NvmlTrouble as trouble:
            if trouble.number in nvml.FATAL:
                raise
            if trouble.number in (nvml.INVALID, nvml.NOT_SUPPORTED):
                return
            if trouble.number not in nvml.NORMAL:
                nvml.note(f"nvmlDeviceGetNvLinkState: {trouble.text}")
            yield None
            if link == 0:
                return


_LINK_FIELDS = {
    "malformed_packets": "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
    "buffer_overruns": "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
    "rcv_errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
    "rcv_remote_errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS",
    "rcv_general_errors": "NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS",
    "local_link_integrity": "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
    "xmit_discards": "NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS",
    "recovery_failed": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
    "recovery": "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "effective_errors": "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
}
"""Counters of NVLink 5, which has none of the older ones."""
_OLD_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc": 4}


def _ports(gpu: Any, states: Sequence[bool | None]) -> list[NvLinkPort]:
    """The active ports. A value that one link lacks is not queried for the card's others."""
    active = [link for link, state in enumerate(states) if state]
    if not active:
        return [_down(link, state) for link, state in enumerate(states)]
    version = call("nvmlDeviceGetNvLinkVersion", gpu, active[0])
    first_ones = {name: _old_counter(gpu, active[0], name) for name in _OLD_COUNTERS}
    counters = {
        link: {name: _old_counter(gpu, link, name) for name, count in first_ones.items() if count is not None}
        for link in active[1:]
    }
    counters[active[0]] = first_ones
    fields = _fields(gpu, active)
    return [
        _port(gpu, link, version, *fields[link], counters[link]) if state else _down(link, state)
        for link, state in enumerate(states)
    ]


def _old_counter(gpu: Any, link: int, name: str) -> int | None:
    count: int | None = call("nvmlDeviceGetNvLinkErrorCounter", gpu, link, _OLD_COUNTERS[name])
    return count


def _fields(gpu: Any, links: Sequence[int]) -> dict[int, tuple[int | None, dict[str, int | None]]]:
    """(speed, counters) of each link. Before Hopper each speed has its own field."""
    names = ["NVML_FI_DEV_NVLINK_GET_SPEED", *_LINK_FIELDS.values()]
    values = iter(field_values(gpu, [(name, link) for link in links for name in names]))
    found = {link: [next(values) for _ in names] for link in links}
    lacking = [link for link, (speed, *_) in found.items() if speed is None]
    old = field_values(gpu, [(f"NVML_FI_DEV_NVLINK_SPEED_MBPS_L{link}", 0) for link in lacking])
    speeds = dict(zip(lacking, old, strict=True))
    return {
        link: (speeds.get(link, speed), dict(zip(_LINK_FIELDS, counts, strict=True)))
        for link, (speed, *counts) in found.items()
    }


def _down(link: int, active: bool | None) -> NvLinkPort:
    """A link that is down: it has no other end, and reading its counters may block."""
    return {
        "link": link,
        "active": active,
        "version": None,
        "speed_mbps": None,
        "remote": None,
        "remote_type": None,
        "errors": {},
    }


def _port(gpu: Any, link: int, version: int | None, speed: int | None, counts: Counts, old: Counts) -> NvLinkPort:
    remote = call("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)
    kind = call("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
    errors = {**counts, **{name: count for name, count in old.items() if count is not None}}
    return {
        "link": link,
        "active": True,
        "version": version,
        "speed_mbps": speed,
        "remote": bus_id(remote.busId) if remote is not None else None,
        "remote_type": {0: "gpu", 1: "npu", 2: "switch"}.get(kind, "unknown") if kind is not None else None,
        "errors": {name: count for name, count in errors.items() if count is not None},
    }


UUID_BYTES = 16
"""Bytes of a cluster's UUID, as drivers write it (nvml.h)."""


def _fabric(gpu: Any) -> Fabric | None:
    import ctypes

    import pynvml

    for kind, name in (
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        struct: Any = getattr(pynvml, kind, None)
        if struct is None or struct.clusterUuid.size != UUID_BYTES:  # c_nvmlGpuFabricInfo_t of pynvml 13.580 has 80
            continue
        info = struct()
        if call(name, gpu, ctypes.byref(info)) is not None:
            return {
                "state": int(info.state),
                "status": int(info.status),
                "health_mask": _number(info, "healthMask"),
                "health_summary": _number(info, "healthSummary"),
                "clique": int(info.cliqueId),
                "cluster": bytes(info.clusterUuid).hex(),
            }
    return None


def _number(info: Any, name: str) -> int | None:
    return int(getattr(info, name)) if hasattr(info, name) else None


def place(index: int, others: Sequence[int]) -> GpuPlace:
    """Where a GPU is. `others`: numbers of the GPUs that answer. Raises NvmlTrouble only for this GPU."""
    gpu = handle_of(index)
    peers = {}
    for other in others:
        if other != index and (found := _peer(gpu, other)) is not None:
            peers[found[0]] = found[1]
    return {
        "peers": peers,
        "cpus": _bits(call("nvmlDeviceGetCpuAffinity", gpu, _words_for_cpus())),
        "numa": call("nvmlDeviceGetNumaNodeId", gpu),
        "memory_nodes": _bits(call("nvmlDeviceGetMemoryAffinity", gpu, 4, 0)),
    }


def _peer(gpu: Any, other: int) -> tuple[str, Peer] | None:
    """(UUID, how it is reached) of another GPU; None if that is lost."""
    statuses = ("read", "write", "nvlink", "atomics")  # in the order of nvmlGpuP2PCapsIndex_t
    try:
        peer = handle_of(other)
        uuid = nvml.text_of(call("nvmlDeviceGetUUID", peer, strict=True))
        with nvml.about(f" with GPU {other}"):
            read, write, link, atomics = (
                call("nvmlDeviceGetP2PStatus", gpu, peer, number) for number in range(len(statuses))
            )
            ancestor = call("nvmlDeviceGetTopologyCommonAncestor", gpu, peer)
    except NvmlTrouble:
        return None
    found: Peer = {"ancestor": ancestor, "read": read, "write": write, "nvlink": link, "atomics": atomics}
    return (uuid, found) if uuid else None


def _words_for_cpus() -> int:
    """Words of 64 CPUs; a mask that is too short would be an error."""
    return -(-(os.cpu_count() or 1) // 64) + 16


def _bits(words: Any) -> list[int] | None:
    if words is None:
        return None
    return [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
