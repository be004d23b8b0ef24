"""Limits of the whole node that the kernel keeps: ports, tracked connections, open files, processes."""

from collections.abc import Iterator, Mapping
from typing import TypedDict

from preflight.check import Code, Finding, Node, Run, Severity, option, ranges, read, vote
from preflight.checks.node.limits.side_by_side import MUCH_LESS

PORTS_A_RANK = option(int, 64, "ephemeral ports that a rank needs")
"""Measured with gloo: 4 ranks of a node with 4 process groups had 46 local ports, of which 17 were listening, one for
each group of each rank."""
PORTS = Code(
    "A node has few ephemeral ports, or others than the other nodes.",
    fix="On that node: sysctl -w net.ipv4.ip_local_port_range='{expected}', and in /etc/sysctl.d; open these ports in "
    "the firewalls between the nodes.",
)
CONNTRACK = Code(
    "The table of tracked connections is nearly full: packets of new connections will be dropped.",
    fix="On that node: sysctl -w net.netfilter.nf_conntrack_max={expected}; conntrack -S shows drops; or leave the "
    "traffic between nodes untracked (iptables -t raw -j CT --notrack).",
)
FILE_MAX = Code(
    "The node's table of open files is nearly full.",
    fix="On that node: ls /proc/*/fd 2>/dev/null | wc -l counts them, lsof shows who holds them; sysctl -w "
    "fs.file-max={expected}.",
)
PID_MAX = Code(
    "The node can start few further processes and threads, of all users.",
    fix="On that node: ps -eLf shows who has them; sysctl kernel.pid_max kernel.threads-max: raise the smaller one "
    "to {expected} (pid_max at most to 4194304).",
)
DEFAULT_PORTS = "32768 60999"
CONNECTIONS_A_RANK, LEAST_TRACKED = 64, 1000
"""NCCL connects each rank to a few others; and what goes on beside the job."""
FILES_A_RANK, TASKS_A_RANK = 1024, 64
"""Linux's default limit per process (INR_OPEN_CUR of include/uapi/linux/fs.h); as for a user's own limit."""

PORTS_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
CONNTRACK_FILES = "/proc/sys/net/netfilter/nf_conntrack_"
FILES = "/proc/sys/fs/file-nr"
TASKS = "/proc/sys/kernel/"


class KernelLimits(TypedDict):
    """None where the kernel does not tell, as without connection tracking."""

    ports: tuple[int, int] | None
    """The first and the last ephemeral port of this network namespace (ip-sysctl.rst)."""
    tracked: tuple[int, int] | None
    """Connections that are tracked, rounded up to 100, and the most that may be: beyond, packets of new ones are
    dropped (nf_conntrack-sysctl.rst)."""
    open_files: tuple[int, int] | None
    """Of all processes, rounded up to 1,000, and the most: beyond, open() and socket() fail with ENFILE (fs.rst)."""
    all_tasks: tuple[int, int] | None
    """Processes and threads of all users, rounded up to 100, and the most: beyond, fork() fails with EAGAIN
    (kernel.rst, threads-max and pid_max)."""


def measure(root: str = "") -> KernelLimits:
    ports = _numbers(f"{root}{PORTS_FILE}")
    files = _numbers(f"{root}{FILES}")
    return {
        "ports": (ports[0], ports[1]) if len(ports) == 2 else None,
        "tracked": _pair(_numbers(f"{root}{CONNTRACK_FILES}count"), _numbers(f"{root}{CONNTRACK_FILES}max"), 100),
        "open_files": _pair(files[:1], files[2:], 1000),
        "all_tasks": _pair(_running(root), _most_tasks(root), 100),
    }


def _numbers(path: str) -> list[int]:
    words = read(path).split()
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else []


def _pair(used: list[int], most: list[int], step: int) -> tuple[int, int] | None:
    """Rounded, so that equal nodes have equal facts. More than the most is no count of this limit: a container may have
    a pid_max of its own, and sees the tasks of all."""
    return (-(-used[0] // step) * step, most[0]) if used and most and used[0] <= most[0] else None


def _running(root: str) -> list[int]:
    """The number behind the stroke in "0.20 0.18 0.12 1/80 11206" (proc(5))."""
    total = read(f"{root}/proc/loadavg").split(" ")[3:4]
    return [int(total[0].rpartition("/")[2])] if total else []


def _most_tasks(root: str) -> list[int]:
    known = [*_numbers(f"{root}{TASKS}threads-max"), *_numbers(f"{root}{TASKS}pid_max")]
    return [min(known)] if known else []


def findings(known: Mapping[int, KernelLimits], run: Run) -> Iterator[Finding]:
    """`known`: by the rank that read its node."""
    for rank, limits in known.items():
        node = run.job.node_of(rank)
        yield from _few_ports(limits, node, run)
        yield from _nearly_full(limits, node, run)
    yield from _other_ports({rank: limits["ports"] for rank, limits in known.items() if limits["ports"]}, run)


def _few_ports(limits: KernelLimits, node: Node, run: Run) -> Iterator[Finding]:
    least = run[PORTS_A_RANK] * len(node.ranks)
    if limits["ports"] and (size := _size(limits["ports"])) < least:
        text = f"{size:,} ephemeral ports ({_range(limits['ports'])}), expected at least {least:,} {_for(node)}"
        yield PORTS.warn(text, node=node.node, evidence={"expected": DEFAULT_PORTS})


def _nearly_full(limits: KernelLimits, node: Node, run: Run) -> Iterator[Finding]:
    ranks_ = len(node.ranks)
    connected = ranks_ * (run.job.world_size if run.job.backend == "gloo" else CONNECTIONS_A_RANK)
    for code, used, what, least in (
        (CONNTRACK, limits["tracked"], "connections can be tracked", max(connected, LEAST_TRACKED)),
        (FILE_MAX, limits["open_files"], "files can be opened by all processes of the node", ranks_ * FILES_A_RANK),
        (PID_MAX, limits["all_tasks"], "processes and threads can be started on the node", ranks_ * TASKS_A_RANK),
    ):
        if used and (left := max(0, used[1] - used[0])) < least:
            text = f"{left:,} more {what}, of {used[1]:,}, expected at least {least:,} {_for(node)}"
            yield code.warn(text, node=node.node, evidence={"expected": 2 * used[1]})


def _other_ports(ports: Mapping[int, tuple[int, int]], run: Run) -> Iterator[Finding]:
    """Another range is a warning where it is far smaller. Else it matters only to a firewall that opens some ports."""
    votes = vote({rank: (first, last) for rank, (first, last) in ports.items()})
    for rank, range_ in votes.odd():
        node, size = run.job.node_of(rank), _size(range_)
        if size >= run[PORTS_A_RANK] * len(node.ranks):  # else it is told
            usual, severity = votes.usual, Severity.WARN if size * MUCH_LESS < _size(votes.usual) else Severity.INFO
            text = f"the ephemeral ports are {_range(range_)}, expected {_range(usual)} as on {votes.share('node')}"
            yield PORTS.finding(severity, text, node=node.node, evidence={"expected": f"{usual[0]} {usual[1]}"})


def _size(ports: tuple[int, int]) -> int:
    return max(0, ports[1] - ports[0] + 1)


def _range(ports: tuple[int, int]) -> str:
    return f"{ports[0]}-{ports[1]}"


def _for(node: Node) -> str:
    return f"for {ranges.count(len(node.ranks), 'rank')}"
