"""When a job is silent: is it slow, or does it hang?"""

import contextlib
import os
import time
from dataclasses import dataclass

from preflight.core import rank_ranges
from preflight.debug.job import RunningJob
from preflight.debug.ranks import Ranks
from preflight.debug.stack_sample import StackSample, look
from preflight.engine import child

APART_S = 3.0
"""From the first look to the last: longer than a step of most jobs, and than a collective that is on its way."""
LOOKS = 5
"""A loop that spends its time in one line stands there in two of them, not in each."""
STARTS_S = 600.0
"""From the job's start: as long as no rank has come, and its processes work (they import, unpack, compile), it hangs no
earlier. Not for ever: ranks that this hook does not reach may spin in a collective."""
BUSY = 0.1
"""Of a core: more than a launcher takes that only looks after its ranks. Who waits for a core (a loaded host) or for
storage (state R or D) takes less, and works too."""


@dataclass
class StallDetector:
    """Watches one job."""

    after_s: float | None
    """Seconds without output and without a rank that comes or goes; None: nothing is called a hang."""
    folder: str
    has_explained: bool = False
    _since: float = 0.0

    def due_s(self, job: RunningJob, ranks: Ranks) -> float:
        """Seconds until it is to be looked at."""
        if self.after_s is None:
            return 3600.0
        return max(_latest(job, ranks), self._since) + self.after_s - time.monotonic()

    def look(self, job: RunningJob, ranks: Ranks) -> tuple[str, bool]:
        """What is to be told of it, and whether it hangs. Takes APART_S and as long as the ranks take to answer."""
        silent_s, before = time.monotonic() - job.latest_output, _latest(job, ranks)
        ranks.look()  # the kernel's word of one that came may be missing
        may_start = not ranks.came and time.monotonic() < job.started + STARTS_S
        work, seen = [_work(job.pid)] if may_start else [], look(ranks.living, self.folder, 1)
        for number in range(2, LOOKS + 1):
            if not _stays_silent(job, ranks, before, APART_S / (LOOKS - 1)):
                return self._go_on(ranks, "")
            earlier, seen = seen, look(ranks.living, self.folder, number)
            if may_start:
                work.append(_work(job.pid))
            if moved := seen.moved_since(earlier):
                return self._go_on(ranks, f"no output for {silent_s:.0f} s, but {_who(moved, ranks)} moved within"
                                   f" {APART_S:.0f} s: slow, not hung; going on")  # fmt: skip
        if may_start and _works(work):
            return self._go_on(ranks, f"no output for {silent_s:.0f} s and no rank yet, but its processes work:"
                               " it starts; going on")  # fmt: skip
        return _hung(silent_s, seen), True

    def _go_on(self, ranks: Ranks, why: str) -> tuple[str, bool]:
        """What was seen is no trace of a later failure. Why it goes on is told once."""
        self._since = time.monotonic()
        message, self.has_explained = "" if self.has_explained else why, self.has_explained or bool(why)
        ranks.forget_recorders()
        stacks = os.path.join(self.folder, "stacks")
        with contextlib.suppress(OSError):
            for name in os.listdir(stacks):
                if name.startswith(f"{os.uname().nodename}."):
                    os.truncate(os.path.join(stacks, name), 0)
        return message, False


def _latest(job: RunningJob, ranks: Ranks) -> float:
    """When it wrote last, or a rank came or went."""
    return max(job.latest_output, ranks.latest_event)


def _stays_silent(job: RunningJob, ranks: Ranks, before: float, seconds: float) -> bool:
    """Whether it has neither ended nor told anything new after so many seconds; it returns when it has."""
    end = time.monotonic() + seconds
    while (same := job.code is None and _latest(job, ranks) == before) and time.monotonic() < end:
        ranks.note(job.wait(min(0.25, end - time.monotonic()), ranks.descriptors))
    return same


def _work(pid: int) -> tuple[float, bool]:
    """Seconds of CPU that this process and what it has started have taken so far, and whether one of them is in state R
    or D."""
    import psutil  # only a silent job needs it

    spent_s, runs = 0.0, False
    with contextlib.suppress(psutil.Error):
        for member in (process := psutil.Process(pid), *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                spent_s += sum(member.cpu_times()[:4])  # its own, and of children that it has waited for
                runs |= child.state_of(member.pid) in ("R", "D")
    return spent_s, runs


def _works(work: list[tuple[float, bool]]) -> bool:
    """By what `_work` told in each look."""
    return (work[-1][0] - work[0][0]) / APART_S > BUSY or sum(runs for _, runs in work) > LOOKS / 2


def _who(moved: list[int], ranks: Ranks) -> str:
    numbers = {rank.rank for rank in ranks.living if rank.pid in moved}
    return rank_ranges.ranks(numbers) if numbers else rank_ranges.count(len(moved), "DataLoader worker")


def _hung(silent_s: float, seen: StackSample) -> str:
    about = f"no process moved within {APART_S:.0f} s" if seen.places else "no rank told where it stands"
    return f"the job hangs: no output for {silent_s:.0f} s, and {about}; it is ended"
