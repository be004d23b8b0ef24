"""`preflight gate`: runs a launcher's preflight, and ends with 0 or 1 according to the verdict of this run."""

import glob
import os
import sys
import tempfile
import time
from typing import Any

from preflight.cluster import reason
from preflight.cluster.arguments import GateRequest
from preflight.core import words
from preflight.debug.job import TO_ALL, CannotStart, RunningJob, signals_held
from preflight.errors import UsageError
from preflight.results import report_files
from preflight.results.destinations import Output
from preflight.results.report import Report
from preflight.results.report_nodes import bad_nodes
from preflight.sdk.probe import NoReply, Probe

DISK_S = 10.0
"""Time for one answer of the file system that holds the report."""
WRITTEN_S, AGAIN_S = 10.0, 0.2
"""Time for rank 0, which may be on another node, to write its report after this node's ranks ended; and a pause."""
NO_REPORT = (2, 126, 127)
"""Exit codes for a usage error, and from a shell that could not start a command."""


class Undecided(Exception):  # noqa: N818 -- an event
    """There is no verdict. Its text says why."""


class SignalCame(Exception):  # noqa: N818 -- an event
    """A signal ended the launcher, and also ends this command."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted: the job must not start")
        self.code = 128 + number


def run(asked: GateRequest) -> int:
    """Returns the exit code: 0 open, 1 closed, 128 or more after a signal."""
    screen = take_stdout() if asked.reason else None
    try:
        report, folder = verdict(asked)
    except SignalCame as why:
        say(str(why))
        return why.code
    except Undecided as why:
        say(f"{why}, so the job is {'held (--closed)' if asked.closed else 'not held'}")
        return int(asked.closed)
    if report is None:
        return 0
    if screen is not None:
        os.write(screen, f"{reason.line(report, asked.reason)}\n".encode())
    if report.exit_code == 1:
        bad = words.some(bad_nodes(report), 16) or "none is named"
        say(f"a failure was found, so the job is held; bad nodes: {bad} (report: {folder})")
    return report.exit_code


def say(text: str) -> None:
    Output().complain(f"gate: {text}")


def take_stdout() -> int:
    """Sends the launcher's stdout to stderr from now on. Returns a descriptor of the original stdout."""
    sys.stdout.flush()
    screen = os.dup(1)
    os.dup2(2, 1)
    return screen


def verdict(asked: GateRequest) -> tuple[Report | None, str]:
    """(this run's report with exit code 0 or 1, its folder); None for the report if the launcher's exit code is enough.
    Raises Undecided and SignalCame."""
    with Probe(_Disk()) as disk:
        folder = _folder(asked, disk)
        before = _run_id(_ask(disk, "read", folder))
        own = set(_ask(disk, "failed_alone", folder))
    code, hung = _launch(asked, folder)  # which may end all children of this process
    with Probe(_Disk()) as disk:
        try:
            return _read(disk, folder, before, code, hung, asked), folder
        except Undecided:
            alone = [report for path, report in _ask(disk, "failed_alone", folder).items() if path not in own]
            if alone:
                return Report.from_json(alone[0]), folder
            raise


class _Disk:
    """Runs in a separate process: a file system may be dead."""

    def make(self, path: str) -> str:
        """Makes the folder and returns its absolute path; "" makes a new temporary one."""
        if not path:
            try:
                return tempfile.mkdtemp(prefix="preflight-", dir=os.getcwd())
            except OSError:
                return tempfile.mkdtemp(prefix="preflight-")
        os.makedirs(path, exist_ok=True)
        return os.path.abspath(path)

    def read(self, folder: str) -> dict[str, Any] | str:
        """The report as JSON, or why it cannot be read."""
        try:
            return report_files.load(folder)[0].to_json()
        except UsageError as error:
            return str(error)

    def failed_alone(self, folder: str) -> dict[str, Any]:
        """By name and run, the reports in the folder of ranks that found a failure and did not get to rank 0, or of a
        rank 0 that did not get to the others: the job cannot start. Rank 0's comes first."""
        found = {}
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "report.rank-*.json")), key=_rank_of):
            report = self.read(path)
            if isinstance(report, dict) and report["exit_code"] == 1:
                found[f"{path} {report['run']}"] = report
        return found


def _rank_of(path: str) -> tuple[int, str]:
    rank = os.path.basename(path).removeprefix("report.rank-").removesuffix(".json")
    return int(rank) if rank.isdecimal() else sys.maxsize, rank


def _ask(disk: Probe, name: str, *arguments: str) -> Any:
    answer = disk.ask(name, *arguments, deadline_s=DISK_S)
    if isinstance(answer, NoReply):
        where = f"{arguments[0]}: " if arguments[0] else ""
        raise Undecided(f"no place for the report: {where}{answer.text.partition(': ')[2] or answer.text}")
    return answer.value


def _folder(asked: GateRequest, disk: Probe) -> str:
    """The folder for the report. In a Slurm job its name has the job's number, and a requeue gets a new one."""
    job, count = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_RESTART_COUNT", "0")
    return str(_ask(disk, "make", asked.folder or (f"preflight-{job}-{count}" if job else "")))


def _run_id(read: dict[str, Any] | str) -> str | None:
    return read["run"] if isinstance(read, dict) else None


def _launch(asked: GateRequest, folder: str) -> tuple[int, bool]:
    """(the launcher's exit code as in a shell, whether it had to be ended). Raises Undecided and SignalCame."""
    try:
        with signals_held() as mask:
            job = RunningJob((*asked.launcher, "--report", folder), os.environ, None, mask)
    except CannotStart as why:
        if why.code > 128:
            raise SignalCame(why.code - 128) from None
        raise Undecided(str(why)) from None
    end = time.monotonic() + asked.limit_s
    while job.code is None and (left_s := end - time.monotonic()) > 0:
        job.wait(left_s)
    hung = job.code is None
    if hung:
        job.end()
    job.finish()
    if ending := [number for number in job.passed if number in TO_ALL]:
        raise SignalCame(ending[0])
    return job.code or 0, hung


def _read(disk: Probe, folder: str, before: str | None, code: int, hung: bool, asked: GateRequest) -> Report | None:
    end = time.monotonic() + (0.0 if asked.reason else WRITTEN_S)  # a hook's preflight runs on this node only
    while True:
        read = _ask(disk, "read", folder)
        if isinstance(read, dict) and read["run"] != before:
            if read["exit_code"] in (0, 1):
                return Report.from_json(read)
            raise Undecided(f"preflight could not finish its own work (exit code {read['exit_code']} in {folder})")
        if code == 0 and not hung and not asked.closed and not asked.reason:
            return None  # all ranks that this launcher has started ended with 0
        if code in NO_REPORT or hung or time.monotonic() > end:
            break
        time.sleep(AGAIN_S)
    if hung:
        raise Undecided(f"the launcher did not end within {asked.limit_s:g} s (--limit) and was ended")
    there = "only an earlier run's report" if before else "no report"
    raise Undecided(f"the launcher ended with exit code {code}, and {there} is in {folder}")
