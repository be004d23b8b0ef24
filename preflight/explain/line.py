"""One line of a log, and where it comes from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """What an input's prefixes say of a line, and the line without them."""

    text: str
    """Without colours, time stamps of containers, launchers' labels ("[1,12]<stdout>:", "[rank3]:", "12: ") and the
    words that NCCL puts before its own message ("host:pid:tid [gpu] file.cc:123 NCCL WARN ")."""
    raw: str
    """As it stands in the file, without its end; at most LONGEST characters."""
    file: str
    """As the user named it, or its path in the folder that he named."""
    number: int
    """Of the line in its file, from 1."""
    order: int
    """In which it was read, over all inputs."""
    level: str = ""
    """NCCL's own ("INFO", "WARN", ...), or torch's C++ logger's letter ("I", "W", "E", "F"); "" of other lines."""
    place: str = ""
    """The source file and line that the message says it comes from: "init.cc:795", "ProcessGroupNCCL.cpp:616"."""
    rank: int | None = None
    """Global. None: the line, its block and its file do not say."""
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


LONGEST = 8192
"""Characters of a line that are kept."""
RANKS = 1 << 17
"""A larger number is no rank."""
