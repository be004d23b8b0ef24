"""When a job is silent: is it slow, or does it hang?"""

import contextlib
import os
import time
from dataclasses import dataclass

from preflight.core import rank_ranges
from preflight.debug.job import RunningJob
from preflight.debug.ranks import Ranks
from preflight.debug.stack_sample import sample_stacks
from preflight.sdk import files

APART_S = 3.0
"""From the first sample to the last: longer than a step of most jobs, and than a running collective."""
SAMPLES = 5
"""A loop that spends its time in one line is there in two samples, but not in each."""
STARTS_S = 600.0
"""From the job's start: as long as no rank has started and its processes work (they import, unpack, compile), it does
not hang. Not forever: ranks without this hook may spin in a collective."""
BUSY = 0.1
"""Share of a core: more than a launcher takes that only watches its ranks. A process that waits for a core (a loaded
host) or for storage (state R or D) takes less, but works, too."""


@dataclass
class StallDetector:
    after_s: float | None
    """Seconds without output and without a rank that starts or ends; None: nothing is called a hang."""
    folder: str
    has_explained: bool = False
    _since: float = 0.0

    def due_s(self, job: RunningJob, ranks: Ranks) -> float:
        """Seconds until the next `check`."""
        if self.after_s is None:
            return 3600.0
        return max(_latest_event(job, ranks), self._since) + self.after_s - time.monotonic()

    def check(self, job: RunningJob, ranks: Ranks) -> tuple[str, bool]:
        """A message for the user, and whether the job hangs. Takes APART_S, and as long as the ranks take to answer."""
        silent_s, before = time.monotonic() - job.latest_output, _latest_event(job, ranks)
        ranks.list_records()  # the kernel's event for a new one may be missing
        may_start = not ranks.any_seen and time.monotonic() < job.started + STARTS_S
        work, sample = [_work(job.pid)] if may_start else [], sample_stacks(ranks.living, self.folder, 1)
        for number in range(2, SAMPLES + 1):
            if not _stays_silent(job, ranks, before, APART_S / (SAMPLES - 1)):
                return self._go_on(ranks, "")
            earlier, sample = sample, sample_stacks(ranks.living, self.folder, number)
            if may_start:
                work.append(_work(job.pid))
            if moved := sample.moved_since(earlier):
                return self._go_on(ranks, f"no output for {silent_s:.0f} s, but {_who(moved, ranks)} moved within"
                                   f" {APART_S:.0f} s: slow, not hung; going on")  # fmt: skip
        if may_start and _works(work):
            return self._go_on(ranks, f"no output for {silent_s:.0f} s and no rank yet, but its processes are busy:"
                               " still starting; going on")  # fmt: skip
        about = f"no process moved within {APART_S:.0f} s" if sample.places else "no rank could be asked where it is"
        return f"the job hangs: no output for {silent_s:.0f} s, and {about}; ending it", True

    def _go_on(self, ranks: Ranks, why: str) -> tuple[str, bool]:
        """Drops the samples, which are not traces of a later failure. The reason for continuing is given once."""
        self._since = time.monotonic()
        message, self.has_explained = "" if self.has_explained else why, self.has_explained or bool(why)
        ranks.forget_recorders()
        stacks = os.path.join(self.folder, "stacks")
        with contextlib.suppress(OSError):
            for name in os.listdir(stacks):
                if name.startswith(f"{os.uname().nodename}."):
                    os.truncate(os.path.join(stacks, name), 0)
        return message, False


def _latest_event(job: RunningJob, ranks: Ranks) -> float:
    """When it last wrote, or a rank started or ended."""
    return max(job.latest_output, ranks.latest_event)


def _stays_silent(job: RunningJob, ranks: Ranks, before: float, seconds: float) -> bool:
    """Whether nothing happened to it for this long; returns as soon as something does."""
    end = time.monotonic() + seconds
    while (same := job.code is None and _latest_event(job, ranks) == before) and time.monotonic() < end:
        ranks.note(job.wait(min(0.25, end - time.monotonic()), ranks.descriptors))
    return same


def _work(pid: int) -> tuple[float, bool]:
    """Seconds of CPU that this process and its descendants have used, and whether one of them is in state R or D."""
    import psutil  # only a silent job needs it

    spent_s, runs = 0.0, False
    with contextlib.suppress(psutil.Error):
        for member in (process := psutil.Process(pid), *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                spent_s += sum(member.cpu_times()[:4])  # its own, and of children that it has waited for
                runs |= files.state_of(member.pid) in ("R", "D")
    return spent_s, runs


def _works(work: list[tuple[float, bool]]) -> bool:
    """By what `_work` returned at each sample."""
    return (work[-1][0] - work[0][0]) / APART_S > BUSY or sum(runs for _, runs in work) > SAMPLES / 2


def _who(moved: list[int], ranks: Ranks) -> str:
    numbers = {rank.rank for rank in ranks.living if rank.pid in moved}
    return rank_ranges.ranks(numbers) if numbers else rank_ranges.count(len(moved), "DataLoader worker")
