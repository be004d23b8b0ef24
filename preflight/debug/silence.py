"""When a job is silent: is it slow, or does it hang?"""

import contextlib
import os
import time
from dataclasses import dataclass

from preflight import ranges
from preflight.debug.job import Job
from preflight.debug.look import Look, look
from preflight.debug.ranks import Ranks

APART_S = 3.0
"""From the first look to the last: longer than a step of most jobs, and than a collective that is on its way."""
LOOKS = 5
"""A loop that spends its time in one line stands there in two of them, not in each."""


@dataclass
class Silence:
    """Watches one job."""

    after_s: float | None
    """Seconds without output and without a rank that comes or goes; None: nothing is called a hang."""
    folder: str
    said: bool = False
    _since: float = 0.0

    def due_s(self, job: Job, ranks: Ranks) -> float:
        """Seconds until it is to be looked at."""
        if self.after_s is None:
            return 3600.0
        return max(job.latest_output, ranks.latest_event, self._since) + self.after_s - time.monotonic()

    def look(self, job: Job, ranks: Ranks) -> tuple[str, bool]:
        """What is to be told of it, and whether it hangs. Takes APART_S and as long as the ranks take to answer."""
        silent_s = time.monotonic() - job.latest_output
        before, seen = job.latest_output, look(ranks.living, self.folder, 1)
        for number in range(2, LOOKS + 1):
            if not _stays_silent(job, before, APART_S / (LOOKS - 1)):
                self._go_on()
                return "", False
            earlier, seen = seen, look(ranks.living, self.folder, number)
            if moved := seen.moved_since(earlier):
                self._go_on()
                told, self.said = "" if self.said else _slow(silent_s, moved, ranks), True
                return told, False
        return _hung(silent_s, seen), True

    def _go_on(self) -> None:
        """What was seen is no trace of a later failure."""
        self._since = time.monotonic()
        stacks = os.path.join(self.folder, "stacks")
        with contextlib.suppress(OSError):
            for name in os.listdir(stacks):
                if name.startswith(f"{os.uname().nodename}."):
                    os.truncate(os.path.join(stacks, name), 0)


def _stays_silent(job: Job, before: float, seconds: float) -> bool:
    """Whether it has neither written nor ended after so many seconds; it returns when it has."""
    end = time.monotonic() + seconds
    while job.code is None and job.latest_output == before and time.monotonic() < end:
        job.wait(min(0.25, end - time.monotonic()))
    return job.code is None and job.latest_output == before


def _slow(silent_s: float, moved: list[int], ranks: Ranks) -> str:
    numbers = {one.rank for one in ranks.living if one.pid in moved}
    who = ranges.ranks(numbers) if numbers else ranges.count(len(moved), "DataLoader worker")
    return f"no output for {silent_s:.0f} s, but {who} moved within {APART_S:.0f} s: slow, not hung; going on"


def _hung(silent_s: float, seen: Look) -> str:
    about = f"no process moved within {APART_S:.0f} s" if seen.places else "no rank told where it stands"
    return f"the job hangs: no output for {silent_s:.0f} s, and {about}; it is ended"
