"""What is mounted where: /proc/self/mountinfo, which can be read also where a file system is dead.

The columns are in proc_pid_mountinfo(5). Of the options only those are kept that change how a job reads and writes:
the others hold addresses, which differ between sound nodes, and may hold secrets.
"""

import re
from typing import TypedDict

from preflight.check import read
from preflight.sdk.file_systems import LOCAL, MEMORY, SERVED

SERVER = {"cifs": r"//[^/]+/", "pvfs2": r"\w+://[^/]+/", "smb3": r"//[^/]+/", "wekafs": r"[^/]+/"}
"""What stands before the export's name, by type: //host/share (mount.cifs(8)), backend/file system (docs.weka.io),
tcp://host:port/name (orangefs); as nfs(5), host:/export, are most."""
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
    """The mount of an open file: also where another one lies over it, or the way to it went over a link."""
    found = re.search(r"^mnt_id:\s*(\d+)$", read(f"/proc/self/fdinfo/{descriptor}"), re.MULTILINE)
    return dict(table(read("/proc/self/mountinfo"))).get(int(found[1])) if found else None


def of_path(path: str) -> Mount | None:
    """The same by the path's name alone: nothing is touched, and links are not followed."""
    above = [mount for _, mount in table(read("/proc/self/mountinfo")) if _holds(mount["point"], path)]
    # Of equal ones the last lies over the others.
    return max(reversed(above), key=lambda mount: len(mount["point"]), default=None)


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def table(lines: str) -> list[tuple[int, Mount]]:
    """(id, mount) for each line of mountinfo, in its order; lines that are none are left out."""
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
    """Without what may be secret: a password before the host, and what follows a question mark. The engine knows those
    of URLs; that of curlftpfs and the like is none."""
    return re.sub(r"^[^/@:\s]*:[^@/\s]+@", "[removed]@", source.partition("?")[0])


def is_local(mount: Mount | None) -> bool:
    """What another node writes can never be seen there."""
    return mount is not None and mount["type"] in LOCAL | MEMORY


def is_served(mount: Mount | None) -> bool:
    """What another node writes must be seen there."""
    return mount is not None and mount["type"] in SERVED


def holds(above: Mount, below: Mount) -> bool:
    """`below` is mounted further down: where it is, the node with `above` has mounted nothing."""
    return above["point"] != below["point"] and _holds(above["point"], below["point"])


def kind(mount: Mount) -> tuple[str, ...]:
    """Equal on nodes that are mounted alike: devices have other names, and one export has several servers."""
    if is_local(mount):
        return ("memory" if mount["type"] in MEMORY else "disk", mount["point"])
    before = SERVER.get(mount["type"], ".*:/")
    return (re.sub(r"^nfs4$", "nfs", mount["type"]), re.sub(f"^{before}", "", mount["source"]))


def told(mount: Mount | None) -> str:
    """ "nfs4 from server:/data at /data"."""
    return f"{mount['type']} from {mount['source']} at {mount['point']}" if mount else "an unknown mount"
