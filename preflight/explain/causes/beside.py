"""Logs of machines (a kernel's, a BMC's) beside a job's: what they say is of all that ran there, at any time."""

from collections.abc import Collection, Iterator
from math import inf

from preflight.explain.logs.ends import wall_times
from preflight.explain.timeline import FAILED, Timeline
from preflight.failure_book.book import Signature

ROWS = ("kernel.", "bmc.", "fabricmanager.")
"""Prefixes of the names of rows that such logs have."""
LONG_BEFORE_S = 3600.0
"""From such a line to a job's first step: then it is none of this job's, which had begun without it."""
WAIT_S = 900.0
"""From such a line to a step that a job does not reach if it has lost a rank: NCCL gives up after 600."""

ZONES_S = 26 * 3600.0
"""Two clocks without a zone may be so far apart: a container's is often UTC, its host's seldom."""


def find_logs(timeline: Timeline) -> set[str]:
    """Files with such a row, in which no rank speaks and no step is shown."""
    matches = [match for match, _ in timeline.seen.with_times()]
    files = {match.line.file for match in matches if match.signature.name.startswith(ROWS)}
    speaks = {match.line.file for match in matches if match.line.rank is not None}
    speaks |= {traceback.line.file for traceback in timeline.tracebacks.all()}
    return {file for file in files - speaks if not timeline.course(file).steps}


def is_earlier(timeline: Timeline, row: Signature, logs: Collection[str]) -> bool:
    """Whether each of its lines was there long before a job that made steps."""
    return row.role in FAILED and all(gaps[1:] and gaps[0] > LONG_BEFORE_S for gaps in _gaps(timeline, row, logs))


def is_outlived(timeline: Timeline, row: Signature, logs: Collection[str]) -> bool:
    """Whether the job made two steps after each of its lines, the last of them much later, or ended its training."""
    gaps_of_lines = _gaps(timeline, row, logs)
    return row.role in FAILED and all(gaps[1:] and gaps[-2] > 0 and gaps[-1] > WAIT_S for gaps in gaps_of_lines)


def _gaps(timeline: Timeline, row: Signature, logs: Collection[str]) -> Iterator[list[float]]:
    """Of each of its lines, the seconds at least to each step of the job, ascending; [] outside of `logs`, and where no
    clock tells. To a training's end it is for ever."""
    for match, times in timeline.seen[row.name].with_times():
        gaps: set[float] = set()
        for kind, time in wall_times(times).items() if match.line.file in logs else ():
            since = time + (ZONES_S if kind == "local" else 0)
            steps = [(step, at[kind] - since) for step, at in timeline.all_steps() if kind in at]
            gaps |= {inf if gap > 0 and step.startswith("epoch.end") else gap for step, gap in steps}
        yield sorted(gaps)
