"""Whose line it is, where its prefixes do not say: by its file's path, its neighbours, and what NCCL told before.

A wrong rank blames a healthy one. So a number that may be a rank, or a node's (srun -l of one torchrun a node), is
believed only until one line speaks against it.
"""

import os
import re
from collections import Counter

from preflight.explain import prefixes
from preflight.explain.prefixes import Habit, Said

MOST = 1 << 17
"""Processes that are remembered."""
SAMPLE = 1 << 16
"""Bytes of a block, and no more than LINES lines of it, by which a file's habit is told."""
LINES = 1000
HABIT = 0.5
"""So large a part of the lines begins alike, and at least FEW of them."""
FEW = 3
_TORCHRUN = re.compile(r"[/\\]attempt_\d+[/\\](\d{1,5})[/\\]std(?:out|err)\.log(?:\.gz)?\Z")
_LOCAL = re.compile(r"(?i)(?:\A|[^a-z])local[-_.]?rank[-_.=]?(\d{1,5})(?!\d)")
_RANK = re.compile(
    r"(?i)(?:\A|[^a-z]|global[-_.]?)(?<!local[-_.])(?<!node[-_.])(?<!group[-_.])(?:rank|task)[-_.=]?(\d{1,7})(?!\d)"
)
_FOLDER = re.compile(r"(?i)(?:global[-_.]?)?(?:rank|task)[-_.=]?(\d{1,7})")
_TASK = re.compile(r"\.t(\d{1,7})\.")
_INIT = re.compile(r"\bcomm \S{1,40} rank (\d{1,7}) n[rR]anks (\d{1,7})\b(?!.{0,400}\bparent )")
_NUMBERED = re.compile(rb" *(\d{1,6}): ")
_NAMED = re.compile(rb"([A-Za-z][\w.-]{0,120}): ")
_TELLING = re.compile(r"NCCL |\[rank\d")


class Processes:
    """Which rank a process is, by what NCCL says of its largest communicator. One for all inputs."""

    def __init__(self) -> None:
        self._size = 0
        self._ranks: dict[tuple[str, int], dict[int | None, int]] = {}
        self._owners: dict[int, tuple[str, int, int | None]] = {}
        self._sure: dict[tuple[str, int], int] = {}
        self._split: set[int] = set()
        """Sizes of which there are several communicators at once: they are parts of a larger job."""

    def learn(self, said: Said) -> None:
        """From "comm 0x55 rank 3 nranks 8 ..."; a communicator with a parent has ranks of its own. And from a line
        whose labels say both: "(Worker pid=4101, ip=10.0.0.2) [rank3]:"."""
        if said.rank is not None and said.pid is not None and len(self._sure) < MOST:
            self._sure[said.node, said.pid] = said.rank
        init = _INIT.search(said.text)
        if not init or said.pid is None or len(self._owners) > MOST:
            return
        rank, size = int(init[1]), int(init[2])
        if size > self._size:
            self._size, self._ranks, self._owners = size, {}, {}
        owner = (said.node, said.pid, said.gpu)
        known = self._ranks.get(owner[:2], {}).get(said.gpu, rank)
        if size == self._size and (self._owners.setdefault(rank, owner) != owner or known != rank):
            self._split.add(size)
        if size == self._size and size not in self._split:
            self._ranks.setdefault(owner[:2], {})[said.gpu] = rank

    def rank(self, said: Said) -> int | None:
        """A process may drive several GPUs, with a rank each."""
        if said.pid is None:
            return None
        if (sure := self._sure.get((said.node, said.pid))) is not None:
            return sure
        if self._size in self._split:
            return None
        ranks = self._ranks.get((said.node, said.pid), {})
        return next(iter(ranks.values())) if len(ranks) == 1 else ranks.get(said.gpu)


class Sources:
    """Of one file."""

    WORDS = (" nranks ", " nRanks ")
    """Of lines from which there is something to learn."""

    def __init__(self, path: str, processes: Processes) -> None:
        self._processes = processes
        path = os.path.abspath(path) if path != "-" else ""
        local = _TORCHRUN.search(path) or _LOCAL.search(os.path.basename(path))
        self._local_rank = int(local[1]) if local else None
        folder, name = os.path.split(path)
        task = _TASK.search(name) or _RANK.search(name) or _FOLDER.fullmatch(os.path.basename(folder))
        self._task = int(task[1]) if task else None
        self._speakers: dict[int, tuple[str, int]] = {}
        self._tasks_are_ranks = True
        self._block, self._habit = b"", Habit()
        self._looked = False

    def said(self, text: str, block: bytes) -> Said:
        """`text` is a line of `block`, whose other lines show how the file's lines begin."""
        if block is not self._block:
            self._block, self._habit = block, habit(block) if block.count(b"\n") >= FEW else self._habit
        said = prefixes.strip(text, self._habit)
        if said.task is None:
            said.task = self._task
        if said.task is not None and not self._looked:
            self._look(block)
        self._doubt(said)
        self._processes.learn(said)
        if said.rank is None and self._tasks_are_ranks:
            said.rank = said.task
        if said.rank is None:
            said.rank = self._processes.rank(said)
        if said.rank is None:
            said.rank = said.group_rank
        if said.local_rank is None:
            said.local_rank = self._local_rank
        return said

    def _look(self, block: bytes) -> None:
        """Before the first label is believed."""
        self._looked = True
        lines = (line.decode("utf-8", "replace") for line in block[:SAMPLE].splitlines()[:LINES])
        for line in filter(_TELLING.search, lines):
            said = prefixes.strip(line[:LINES], self._habit)
            said.task = self._task if said.task is None else said.task
            self._doubt(said)

    def _doubt(self, said: Said) -> None:
        """A task of which two processes speak, or another rank than its number, is no rank."""
        if said.task is None:
            return
        if said.rank is not None and said.rank != said.task:
            self._tasks_are_ranks = False
        if said.gpu is not None and said.pid is not None and len(self._speakers) < MOST:
            speaker = (said.node, said.pid)
            self._tasks_are_ranks &= self._speakers.setdefault(said.task, speaker) == speaker


def habit(block: bytes) -> Habit:
    """Of the lines of a block."""
    lines = [line for line in block[:SAMPLE].split(b"\n")[:LINES] if line.strip()]
    numbers = [int(fits[1]) for fits in map(_NUMBERED.match, lines) if fits]
    counted = numbers == sorted(set(numbers))  # as an editor numbers lines
    tasks = len(numbers) >= max(FEW, HABIT * len(lines)) and not counted
    names = Counter(fits[1].decode() for fits in map(_NAMED.match, lines) if fits)
    hosts = {name: times for name, times in names.items() if times >= FEW and _is_host(name)}
    return Habit(tasks, frozenset(hosts) if sum(hosts.values()) >= HABIT * len(lines) else frozenset())


def _is_host(name: str) -> bool:
    return any(char.isdigit() or char == "-" for char in name) and not name.endswith(("Error", "Exception"))
