"""What the cgroups around this process still allow it: memory, CPUs and tasks, by versions 1 and 2.

The limits of all cgroups on the way up count. A container often sees its own cgroup as the top, or as the only one.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from preflight.sdk.files import read

NO_LIMIT = 1 << 60
"""Version 1 shows a number of about this size if there is no limit."""


class Room(NamedTuple):
    limit: int | None
    """None if there is no limit, but an amount that is left."""
    left: int


def tightest(rooms: Iterable[Room | None]) -> Room | None:
    """The room with the least left."""
    return min((room for room in rooms if room), key=lambda room: room.left, default=None)


def memory(root: str = "") -> Room | None:
    """Memory in bytes. Cached file contents that can be dropped do not count as used."""
    return tightest(_memory(folder) for folder in folders("memory", root))


def memory_by_place(root: str = "") -> list[tuple[str, Room]]:
    """Of each cgroup with a limit, by the device and number of its folder: the same in all containers."""
    found = []
    for folder in folders("memory", root):
        if room := _memory(folder):
            known = os.stat(folder)
            found.append((f"{known.st_dev}:{known.st_ino}", room))
    return found


def tasks(root: str = "") -> Room | None:
    """Processes and threads."""
    return tightest(tasks_of(folder) for folder in folders("pids", root))


def cpus(root: str = "") -> float | None:
    """The smallest quota, or the number of CPUs in the cpuset."""
    return min((*_quotas(root), *map(_size, _cpusets(root))), default=None)


def cpuset(root: str = "") -> str:
    """The smallest set of CPUs that a cgroup allows, as the kernel lists them ("0-3,8"); "" if none limits them."""
    return min(_cpusets(root), key=_size, default="")


def cpu_quota(root: str = "") -> float | None:
    """How many CPUs the smallest quota allows."""
    return min(_quotas(root), default=None)


def cpu_periods(root: str = "") -> dict[str, tuple[int, int]]:
    """(periods of the CPU quota until now, those that it was used up in) of each cgroup that has one, by its folder."""
    found = {}
    for folder in folders("cpu", root):
        numbers = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", read(f"{folder}/cpu.stat"), re.MULTILINE))
        if len(numbers) == 2:
            found[folder] = int(numbers["nr_periods"]), int(numbers["nr_throttled"])
    return found


def throttled(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> float:
    """The share of the periods between that a CPU quota was used up in, of the cgroup with the largest."""
    spans = (
        (after[folder][0] - first, after[folder][1] - full)
        for folder, (first, full) in before.items()
        if folder in after
    )
    return max((full / periods for periods, full in spans if periods > 0), default=0.0)


def _memory(folder: str) -> Room | None:
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for name in names if (limit := _number(f"{folder}/{name}")) is not None and limit < NO_LIMIT]
    used = _number(f"{folder}/memory.current") or _number(f"{folder}/memory.usage_in_bytes") or 0
    cached = dict(
        re.findall(r"^(total_inactive_file|inactive_file) (\d+)$", read(f"{folder}/memory.stat"), re.MULTILINE)
    )
    used -= int(cached.get("total_inactive_file") or cached.get("inactive_file") or 0)
    return Room(min(limits), max(0, min(limits) - used)) if limits else None


def tasks_of(folder: str) -> Room | None:
    """Processes and threads of one cgroup."""
    limit, used = _number(f"{folder}/pids.max"), _number(f"{folder}/pids.current") or 0
    return None if limit is None else Room(limit, max(0, limit - used))


def _quotas(root: str) -> Iterator[float]:
    for folder in folders("cpu", root):
        quota, _, period = read(f"{folder}/cpu.max").partition(" ")
        quota = quota or read(f"{folder}/cpu.cfs_quota_us")
        period = period or read(f"{folder}/cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def _cpusets(root: str) -> Iterator[str]:
    """All on the way up: version 2 has these files only in cgroups for which the controller is enabled."""
    for folder in folders("cpuset", root):
        names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        listed = next((found for name in names if (found := read(f"{folder}/{name}"))), "")
        if listed:
            yield listed


def _size(listed: str) -> int:
    return sum(_length(part) for part in listed.split(","))


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def folders(controller: str, root: str) -> list[str]:
    """The cgroups of this process that may limit something, the nearest first."""
    found: list[str] = []
    for line in read(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            found += _upwards(path, *_mount(controllers and controller, root))
    return found


def _mount(controller: str, root: str) -> tuple[str, str]:
    """(the cgroup that is mounted, where), for version 2 ("") or a controller of version 1; ("", "") if not mounted."""
    for line in read(f"{root}/proc/self/mountinfo").splitlines():
        words = line.split(" ")
        kind, _, options = words[words.index("-") + 1 :][:3]
        if kind == ("cgroup" if controller else "cgroup2") and (not controller or controller in options.split(",")):
            return words[3], root + words[4]
    return "", ""


def _upwards(path: str, mounted: str, place: str) -> list[str]:
    """The folders from `path` up to the mount. Without a cgroup namespace a container may not see all of the path."""
    inside = os.path.relpath(path, mounted or "/").split("/")
    parts = [] if inside[0] in (".", "..") else inside
    folders = ["/".join([place, *parts[:length]]) for length in range(len(parts), -1, -1)]
    return [folder for folder in folders if place and os.path.isdir(folder)]


def _number(path: str) -> int | None:
    found = read(path)
    return int(found) if found.isdecimal() else None
