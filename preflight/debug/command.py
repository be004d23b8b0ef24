"""`preflight debug`: runs a job with the right logging on; when it fails or hangs, explains why."""

import contextlib
import errno
import glob
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import NoReturn

from preflight.debug import environment
from preflight.debug.arguments import DebugRequest
from preflight.debug.job import CannotStart, RunningJob, signals_held
from preflight.debug.ranks import Ranks
from preflight.debug.stall import StallDetector
from preflight.engine import shutdown
from preflight.errors import UsageError
from preflight.results.destinations import Output
from preflight.results.report import Report
from preflight.sdk import paths

EXPLAIN_S = 300.0
"""Time to read what the job left, 60 GB at 200 MB/s: a scheduler waits for this process."""
HUNG = 124
"""The exit code of timeout(1)."""
NUMBERED = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "NODE_RANK", "GROUP_RANK")
"""If one of them is set, a launcher has started several of this command, maybe with one folder."""


class TooMuch(Exception):  # noqa: N818 -- as it reads where it is caught
    """The job left more than can be read in EXPLAIN_S."""


@dataclass(frozen=True)
class JobFolder:
    """Where the job's traces are written."""

    path: str
    """Absolute."""
    is_ours: bool
    """The user did not ask for it: it is removed if the job does not fail."""

    @property
    def kept(self) -> str:
        """Path of the kept output, without its ending; with host and number if several of this command may write
        here."""
        number = next((os.environ[name] for name in NUMBERED if os.environ.get(name, "").isdecimal()), None)
        return os.path.join(self.path, "job" if number is None else f"job.{socket.gethostname()}.{number}")


def run(asked: DebugRequest) -> NoReturn:
    """Exits with the job's code. Raises UsageError before the job is started."""
    with signals_held() as mask:
        folder, job, ranks, kept = _started(asked, mask)
    hung = _wait(job, ranks, StallDetector(asked.hang_after_s, folder.path))
    code = HUNG if hung else job.code or 0
    try:
        job.finish()
        ranks.finish()
        _report(asked, folder, job, code, kept)
    except KeyboardInterrupt:
        say("interrupted: the job is not explained")
    except TooMuch as why:
        say(f"{why}: not explained; run preflight explain {os.path.relpath(folder.path)}, which has no limit")
    except Exception:
        Output().report_fault()
    shutdown.leave(code)


def _started(asked: DebugRequest, mask: Collection[int]) -> tuple[JobFolder, RunningJob, Ranks, tuple[str, ...]]:
    """With the user's settings that were kept; ends with the shell's code where the job cannot be started."""
    folder = _prepare(asked.folder)
    prepared = environment.prepared(os.environ, folder.path, asked.command)
    ranks = Ranks(folder.path)  # before the ranks start
    try:
        return folder, RunningJob(asked.command, prepared.environ, folder.kept, mask), ranks, prepared.kept
    except CannotStart as why:
        _remove(folder, everything=folder.is_ours)
        say(str(why))
        shutdown.leave(why.code)


def say(text: str) -> None:
    """On stderr: stdout is the job's."""
    Output().complain(f"debug: {text}")


def _prepare(asked: str | None) -> JobFolder:
    named = f"--report {asked}" if asked else "a folder for the job's traces"
    return JobFolder(paths.ask(named, lambda: _made_folder(asked, named)), not asked)


def _made_folder(asked: str | None, named: str) -> str:
    """Runs in another process: its file system may not answer. Raises UsageError."""
    try:
        folder = JobFolder(os.path.abspath(asked) if asked else _make_own_folder(), not asked)
        for name in environment.FOLDERS:
            os.makedirs(os.path.join(folder.path, name), exist_ok=True)
        _make_private(os.path.join(folder.path, environment.SOCKETS))
    except OSError as error:
        raise UsageError(f"{named}: cannot be written ({error.strerror})", everywhere=False) from None
    earlier = f"{folder.kept}.out"
    if os.path.exists(earlier):
        text = f"--report {asked}: holds an earlier job's traces ({os.path.basename(earlier)}): name another folder"
        raise UsageError(text, everywhere=False)
    return folder.path


def _make_private(path: str) -> None:
    """Raises OSError where another user has made it. What is made here is ours, whomever a server that maps root calls
    its owner."""
    try:
        os.mkdir(path, 0o700)
        return
    except FileExistsError:
        pass
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{path} is another user's")
    os.chmod(path, 0o700)


def _make_own_folder() -> str:
    """In the current folder, or in the one for temporary files."""
    prefix = time.strftime("preflight-debug-%Y%m%d-%H%M%S-")
    try:
        return tempfile.mkdtemp(prefix=prefix, dir=os.getcwd())
    except OSError:
        return tempfile.mkdtemp(prefix=prefix)


def _wait(job: RunningJob, ranks: Ranks, stall: StallDetector) -> bool:
    """Waits until the job ends, or hangs: then ends it, and returns True."""
    while job.code is None:
        ranks.note(job.wait(min(ranks.due_s(), max(0.0, stall.due_s(job, ranks))), ranks.descriptors))
        if ranks.due_s() == 0.0:
            ranks.list_records()
        if job.code is None and stall.due_s(job, ranks) <= 0.0:
            message, hangs = stall.check(job, ranks)
            if message:
                say(message)
            if hangs:
                job.end()
                return True
    return False


def _report(asked: DebugRequest, folder: JobFolder, job: RunningJob, code: int, kept: tuple[str, ...]) -> None:
    _remove(folder, everything=folder.is_ours and code == 0)
    if code == 0 and folder.is_ours:
        return
    passed = sorted({signal.Signals(number).name for number in job.passed} - {"SIGTSTP"})
    _write_end(folder, job, code, passed)
    made = _explain(folder, asked, code)
    if code == 0:
        return
    say(_describe_end(job, code, passed))
    if not os.path.isdir(os.path.join(folder.path, "records")):  # an empty one is removed
        say("no rank left a record: no Python process on this host had RANK set or joined a process group, or Python")
        say("ignored PYTHONPATH (-I, -E, -S)")
    for stream in job.streams:
        if stream.kept.failed:
            say(f"its output was not kept completely ({stream.kept.failed})")
    if kept:
        say(f"left as you set them: {', '.join(kept)}")
    _show(folder, made)
    say(f"what every rank left is in {os.path.relpath(folder.path)}")


def _write_end(folder: JobFolder, job: RunningJob, code: int, passed: list[str]) -> None:
    """Writes how the job ended for `preflight explain`: a signature matches it (signatures/debug.toml)."""
    names = " ".join(name for name in passed if not name.startswith("SIGUSR")) or "none"
    how = "hung and was ended" if job.was_ended else "ended"
    with contextlib.suppress(OSError), open(f"{folder.kept}.end", "w") as file:
        file.write(f"preflight debug: job {how}, status {code}, signals passed on: {names}\n")


def _describe_end(job: RunningJob, code: int, passed: list[str]) -> str:
    more = f", after {' and '.join(passed)} was passed to it" if passed else ""
    if job.was_ended:
        return f"the job hung{more}, exit code {code}"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"the job was ended by {signal.Signals(code - 128).name}{more}, exit code {code}"
    return f"the job failed with exit code {code}{more}"


def _explain(folder: JobFolder, asked: DebugRequest, code: int) -> Report:
    """Makes, writes and returns the report. For a job that succeeded it holds only slower paths: an exception in its
    log was caught."""
    from preflight.explain import command, output

    elsewhere = [path for pattern in environment.elsewhere(os.environ, asked.command) for path in glob.glob(pattern)]
    made = command.explain_paths([folder.path, *elsewhere], _stop_at(time.monotonic() + EXPLAIN_S))
    if code == 0:
        made = _only_slower_paths(made)
    try:
        output.write(made, folder=folder.path)
    except UsageError as error:
        say(f"the report could not be written ({error})")
    return made


def _stop_at(end: float) -> Callable[[int, int], None]:
    def read(done: int, whole: int) -> None:
        if time.monotonic() > end:
            raise TooMuch(f"{done >> 20} of {whole >> 20} MiB of traces were read in {EXPLAIN_S:.0f} s")

    return read


def _only_slower_paths(report: Report) -> Report:
    checks = []
    for check in report.checks:
        findings = [finding for finding in check.findings if finding.code == "explain.degraded_path"]
        checks.append(replace(check, findings=findings, status="warn" if findings else "pass"))
    verdict = "warn" if any(check.findings for check in checks) else "pass"
    return replace(report, checks=checks, verdict=verdict, exit_code=0)


def _show(folder: JobFolder, made: Report) -> None:
    from preflight.explain import console
    from preflight.explain.artifacts import hang_stacks, processes
    from preflight.results import progress

    patterns = ("records/*.json", "stacks/*.stack")
    paths = [sorted(glob.glob(os.path.join(glob.escape(folder.path), name))) for name in patterns]
    places = hang_stacks.describe_places(processes.read_processes(*paths))
    stood = ["", "where the ranks stood:", *(f"      {place}" for place in places)] if places else []
    progress.show([*stood, "", *console.lines(made)], sys.stderr)


def _remove(folder: JobFolder, *, everything: bool) -> None:
    """Removes the whole folder, or only empty files and folders."""
    if everything:
        shutil.rmtree(folder.path, ignore_errors=True)
        return
    for parent, _, names in os.walk(folder.path, topdown=False):
        for path in (os.path.join(parent, name) for name in names if name.endswith((".stack", ".tmp", ".sock"))):
            own_socket = path.endswith(".sock") and os.path.basename(path).startswith(f"{os.uname().nodename}.")
            if own_socket or (os.path.isfile(path) and not os.path.getsize(path)):
                os.unlink(path)
        if parent != folder.path and not os.listdir(parent):
            os.rmdir(parent)
