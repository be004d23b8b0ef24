"""What is mounted where: /proc/self/mountinfo, which can be read even if a file system is dead.

The columns are in proc_pid_mountinfo(5). Only options that change how a job reads and writes are kept: the
others contain addresses, which differ between sound nodes, and may contain secrets.
"""

import re
from typing import TypedDict

from preflight.check import read
from preflight.sdk.file_systems import LOCAL, MEMORY, SERVED

SERVER = {"cifs": r"//[^/]+/", "pvfs2": r"\w+://[^/]+/", "smb3": r"//[^/]+/", "wekafs": r"[^/]+/"}
"""What precedes the export's name, by type: //host/share (mount.cifs(8)), backend/file system (docs.weka.io),
tcp://host:port/name (orangefs). Most others look like nfs(5): host:/export."""
KEPT = re.compile(
    r"(ro|sync|dirsync|soft|softerr|hard|noac|nocto|nolock|flock|localflock|(vers|proto|rsize|wsize|actimeo|acregmax|"
    r"acdirmax|lookupcache|local_lock|nconnect|timeo|retrans|cache)=\w+(\.\w+)?)"
)


class Mount(TypedDict):
    point: str
    type: str
    source: str
    """A device, or a server and what it exports."""
    options: list[str]


def of_descriptor(descriptor: int) -> Mount | None:
    """The mount of an open file, even if another mount hides it or its path has links."""
    found = re.search(r"^mnt_id:\s*(\d+)$", read(f"/proc/self/fdinfo/{descriptor}"), re.MULTILINE)
    return dict(table(read("/proc/self/mountinfo"))).get(int(found[1])) if found else None


def of_path(path: str) -> Mount | None:
    """The same from the path's name alone: touches nothing, and follows no links."""
    above = [mount for _, mount in table(read("/proc/self/mountinfo")) if _holds(mount["point"], path)]
    # Of equal ones, the last hides the others.
    return max(reversed(above), key=lambda mount: len(mount["point"]), default=None)


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def table(lines: str) -> list[tuple[int, Mount]]:
    """(id, mount) for each line of mountinfo, in order; malformed lines are left out."""
    found: list[tuple[int, Mount]] = []
    for line in lines.splitlines():
        left, dash, right = line.partition(" - ")
        about, file_system = left.split(" "), right.split(" ")
        if dash and len(about) >= 6 and len(file_system) >= 2 and about[0].isdecimal():
            options = {*about[5].split(","), *(file_system[2].split(",") if len(file_system) > 2 else ())}
            point, kind, source = _plain(about[4]), file_system[0], shown(_plain(file_system[1]))
            kept = sorted(option for option in options if KEPT.fullmatch(option))
            found.append((int(about[0]), {"point": point, "type": kind, "source": source, "options": kept}))
    return found


def _plain(word: str) -> str:
    """A space is written \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def shown(source: str) -> str:
    """The source without what may be secret: a password before the host, and what follows a question mark. The engine's
    scrubber knows URLs, but not the form of curlftpfs and the like."""
    return re.sub(r"^[^/@:\s]*:[^@/\s]+@", "[removed]@", source.partition("?")[0])


def is_local(mount: Mount | None) -> bool:
    """Whether another node's writes can never be seen there."""
    return mount is not None and mount["type"] in LOCAL | MEMORY


def is_served(mount: Mount | None) -> bool:
    """Whether another node's writes must be seen there."""
    return mount is not None and mount["type"] in SERVED


def holds(above: Mount, below: Mount) -> bool:
    """Whether `below` is mounted inside `above`: the node with `above` has mounted nothing there."""
    return above["point"] != below["point"] and _holds(above["point"], below["point"])


def kind(mount: Mount) -> tuple[str, ...]:
    """Equal on nodes with the same kind of mount: device names differ, and one export has several servers."""
    if is_local(mount):
        return ("memory" if mount["type"] in MEMORY else "disk", mount["point"])
    before = SERVER.get(mount["type"], ".*:/")
    return (re.sub(r"^nfs4$", "nfs", mount["type"]), re.sub(f"^{before}", "", mount["source"]))


def describe(mount: Mount | None) -> str:
    """ "nfs4 from server:/data at /data"."""
    return f"{mount['type']} from {mount['source']} at {mount['point']}" if mount else "an unknown mount"
