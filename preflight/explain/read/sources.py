"""Which rank wrote a line, if its prefixes do not say: by the file's path, neighboring lines, and earlier NCCL lines.

A wrong rank blames a healthy one. So a number that may be a rank's, or a node's (srun -l with one torchrun per node),
is used only until a line contradicts it.
"""

import os
import re
from collections import Counter

from preflight.explain.read import prefixes
from preflight.explain.read.prefixes import Habit
from preflight.failure_book.line import Line

MOST = 1 << 17
"""Processes to remember."""
SAMPLE = 1 << 16
"""Bytes of a block, and at most LINES lines of it, that show a file's habit."""
LINES = 1000
HABIT = 0.5
"""This share of the lines begins the same way, and at least FEW of them."""
FEW = 3
_TORCHRUN = re.compile(r"[/\\]attempt_\d+[/\\](\d{1,5})[/\\]std(?:out|err)\.log(?:\.gz)?\Z")
_LOCAL = re.compile(r"(?i)(?:\A|[^a-z])local[-_.]?rank[-_.=]?(\d{1,5})(?!\d)")
_RANK = re.compile(
    r"(?i)(?:\A|[^a-z]|global[-_.]?)(?<!local[-_.])(?<!node[-_.])(?<!group[-_.])(?:rank|task)[-_.=]?(\d{1,7})(?!\d)"
)
_FOLDER = re.compile(r"(?i)(?:global[-_.]?)?(?:rank|task)[-_.=]?(\d{1,7})")
_TASK = re.compile(r"\.t(\d{1,7})\.")
_NODE = re.compile(r"(?i)(?:\A|[_.-])((?:node|host|worker|nid|dgx)(?:-?\d{1,6}|-[a-z]))(?![a-z\d])")
_KERNEL_LOG = "dmesg|kern(?:el)?|kmsg|console|serial|journal(?:ctl)?|syslog|messages|sel|bmc"
_HOST = r"(?!(?:run|job|slurm|attempt|try|step|boot|part|day|week|log|old|new|rank|task|v)[-_]?\d)[a-z][a-z\d-]{0,60}\d"
_NODE_OF_KERNEL_LOG = re.compile(
    rf"(?i)(?:({_HOST})[._-](?:{_KERNEL_LOG})|(?:{_KERNEL_LOG})(?:\.log)?[._-]({_HOST}))"
    r"(?:[._-](?:log|txt|out|old|err))*(?:\.gz)?\Z"
)
"""Such a log says nowhere whose it is: whoever collects them from many nodes says it in the file's name."""
_INIT = re.compile(r"\bcomm \S{1,40} rank (\d{1,7}) n[rR]anks (\d{1,7})\b(?!.{0,400}\bparent )")
_NUMBERED = re.compile(rb" *(\d{1,6}): ")
_NAMED = re.compile(rb"([A-Za-z][\w.-]{0,120})(?<!Error)(?<!Exception): ")
_TELLING = re.compile(r"NCCL |\[rank\d")


class RanksByProcess:
    """Which rank a process is, by NCCL's lines about its largest communicator. One for all inputs."""

    def __init__(self) -> None:
        self._size = 0
        self._ranks: dict[tuple[str, int], dict[int | None, int]] = {}
        self._owners: dict[int, tuple[str, int, int | None]] = {}
        self._sure: dict[tuple[str, int], int] = {}
        self._split: set[int] = set()
        """Sizes with several communicators at once: they are parts of a larger job."""

    def learn(self, line: Line) -> None:
        """From "comm 0x55 rank 3 nranks 8 ..."; a communicator with a parent has ranks of its own. And from a line
        whose labels say both: "(Worker pid=4101, ip=10.0.0.2) [rank3]:"."""
        if line.rank is not None and line.pid is not None and len(self._sure) < MOST:
            self._sure[line.node, line.pid] = line.rank
        init = _INIT.search(line.text)
        if not init or line.pid is None or len(self._owners) > MOST:
            return
        rank, size = int(init[1]), int(init[2])
        if size > self._size:
            self._size, self._ranks, self._owners = size, {}, {}
        owner = (line.node, line.pid, line.gpu)
        known = self._ranks.get(owner[:2], {}).get(line.gpu, rank)
        if size == self._size and (self._owners.setdefault(rank, owner) != owner or known != rank):
            self._split.add(size)
        if size == self._size and size not in self._split:
            self._ranks.setdefault(owner[:2], {})[line.gpu] = rank

    def rank(self, line: Line) -> int | None:
        """The rank of a line's process. A process may drive several GPUs, with one rank each."""
        if line.pid is None:
            return None
        if (sure := self._sure.get((line.node, line.pid))) is not None:
            return sure
        if self._size in self._split:
            return None
        ranks = self._ranks.get((line.node, line.pid), {})
        return next(iter(ranks.values())) if len(ranks) == 1 else ranks.get(line.gpu)


class Sources:
    """Finds out who wrote the lines of one file."""

    WORDS = (" nranks ", " nRanks ")
    """In lines that show which rank a process is."""

    def __init__(self, path: str, processes: RanksByProcess) -> None:
        self._processes = processes
        path = os.path.abspath(path) if path != "-" else ""
        local = _TORCHRUN.search(path) or _LOCAL.search(os.path.basename(path))
        self._local_rank = int(local[1]) if local else None
        folder, name = os.path.split(path)
        task = _TASK.search(name) or _RANK.search(name) or _FOLDER.fullmatch(os.path.basename(folder))
        self._task = int(task[1]) if task else None
        node = _NODE.search(name) or _NODE_OF_KERNEL_LOG.match(name)
        self._node = next(filter(None, node.groups())) if node else ""
        """From the file's name, until a line names another."""
        self._speakers: dict[int, tuple[str, int]] = {}
        self._tasks_are_ranks = True
        self._block, self._habit = b"", Habit()
        self._looked = False

    def read(self, text: str, block: bytes) -> Line:
        """`text` is a line of `block`, whose other lines show how the file's lines begin."""
        if block is not self._block:
            self._block, self._habit = block, habit(block) if block.count(b"\n") >= FEW else self._habit
        line = prefixes.strip(text, self._habit)
        if line.task is None:
            line.task = self._task
        if line.node not in ("", self._node):
            self._node = ""
        line.node = line.node or self._node
        if line.task is not None and not self._looked:
            self._scan_block(block)
        self._doubt(line)
        self._processes.learn(line)
        if line.rank is None and self._tasks_are_ranks:
            line.rank = line.task
        if line.rank is None:
            line.rank = self._processes.rank(line)
        if line.rank is None:
            line.rank = line.group_rank
        if line.local_rank is None:
            line.local_rank = self._local_rank
        return line

    def _scan_block(self, block: bytes) -> None:
        """Before the first label is used."""
        self._looked = True
        texts = (text.decode("utf-8", "replace") for text in block[:SAMPLE].splitlines()[:LINES])
        for text in filter(_TELLING.search, texts):
            line = prefixes.strip(text[:LINES], self._habit)
            line.task = self._task if line.task is None else line.task
            self._doubt(line)

    def _doubt(self, line: Line) -> None:
        """A task with two processes, or with a rank that differs from its number, is not a rank."""
        if line.task is None:
            return
        if line.rank is not None and line.rank != line.task:
            self._tasks_are_ranks = False
        if line.gpu is not None and line.pid is not None and len(self._speakers) < MOST:
            speaker = (line.node, line.pid)
            self._tasks_are_ranks &= self._speakers.setdefault(line.task, speaker) == speaker


def habit(block: bytes) -> Habit:
    """How the lines of a block begin."""
    lines = [line for line in block[:SAMPLE].split(b"\n")[:LINES] if line.strip()]
    numbers = [int(fits[1]) for fits in map(_NUMBERED.match, lines) if fits]
    counted = numbers == sorted(set(numbers))  # as an editor numbers lines
    tasks = len(numbers) >= max(FEW, HABIT * len(lines)) and not counted
    names = Counter(fits[1].decode() for fits in map(_NAMED.match, lines) if fits)
    hosts = {name: times for name, times in names.items() if times >= FEW and re.search(r"[\d-]", name)}
    return Habit(tasks, frozenset(hosts) if sum(hosts.values()) >= HABIT * len(lines) else frozenset())
