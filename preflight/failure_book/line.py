"""One line of a log, and where it comes from."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Line:
    """A line's text, and what its prefixes, its neighbors and its file say of its source. It is filled in while it is
    read, and does not change afterwards."""

    text: str = ""
    """Without colors, time stamps of containers, launchers' labels ("[1,12]<stdout>:", "[rank3]:", "12: ") and the
    words that NCCL puts before its own message ("host:pid:tid [gpu] file.cc:123 NCCL WARN ")."""
    raw: str = ""
    """As in the file, without its end; at most LONGEST characters."""
    file: str = ""
    """As the user named it, or its path in the folder that the user named."""
    number: int = 0
    """The line's number in its file, from 1."""
    order: int = 0
    """In which it was read, over all inputs."""
    level: str = ""
    """NCCL's own ("INFO", "WARN", ...), or torch's C++ logger's letter ("I", "W", "E", "F"); "" for other lines."""
    place: str = ""
    """The source file and line that the message names: "init.cc:795", "ProcessGroupNCCL.cpp:616"."""
    rank: int | None = None
    """Global. None: the line, its block and its file do not say."""
    group_rank: int | None = None
    """torch's "[Rank 3]": in the process group that speaks, mostly the default one, where it is the global rank."""
    task: int | None = None
    """The number that the launcher of tasks (srun -l, mpirun) prints: the rank, if each task is one rank."""
    local_rank: int | None = None
    node: str = ""
    """Host, pod or container, as it is written."""
    gpu: int | None = None
    """NCCL's: the CUDA index in the process."""
    pid: int | None = None
    time: float | None = None
    """Seconds. Comparable with lines of the same `clock` only: a clock may lack year or time zone."""
    clock: str = ""
    """The form of the time stamp: "nccl", "glog", "iso", "elapsed", ...; "" without one."""
    bare: bool = True
    """No prefix names a source: the line may belong to the one above."""
    repeats: int = 0
    """Not 0: the last of this many lines that came out once, since they differ from earlier ones in their time only."""
    front: "Line | None" = None
    """The text before a prefix in the middle of the line: a progress bar, or another writer's unfinished line."""


LONGEST = 8192
"""Characters of a line that are kept."""
RANKS = 1 << 17
"""A larger number is not a rank."""
