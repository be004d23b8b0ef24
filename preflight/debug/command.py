"""`preflight debug`: runs a job with the right logging on; when it fails or hangs, tells why."""

import contextlib
import glob
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from preflight.debug import environment
from preflight.debug.arguments import DebugRequest
from preflight.debug.job import CannotStart, RunningJob
from preflight.debug.ranks import Ranks
from preflight.debug.stall import StallDetector
from preflight.engine import shutdown
from preflight.errors import UsageError
from preflight.results.destinations import Output

EXPLAIN_S = 300.0
"""For reading what the job has left: at 200 MB/s and more that is 60 GB. A scheduler waits for this process."""
HUNG = 124
"""As timeout(1) ends."""
NUMBERED = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "NODE_RANK", "GROUP_RANK")
"""Where one of them is set, a launcher has started several of this command, maybe with one folder."""


class TooMuch(Exception):  # noqa: N818 -- as it is read where it is caught
    """The job has left more than can be read in EXPLAIN_S."""


@dataclass(frozen=True)
class JobFolder:
    """The folder for what the job leaves."""

    folder: str
    """Absolute."""
    is_ours: bool
    """Nobody has asked for it: it goes where the job did not fail."""

    @property
    def kept(self) -> str:
        """Path of what is kept of the job's output, without its end: "job", or with host and number where several of
        this command may write into one folder."""
        number = _number(os.environ)
        return os.path.join(self.folder, "job" if number is None else f"job.{socket.gethostname()}.{number}")


def run(asked: DebugRequest) -> NoReturn:
    """To its exit, with the job's code. Raises UsageError before the job is started."""
    place = _prepare(asked.folder)
    prepared = environment.prepared(os.environ, place.folder, asked.command)
    ranks = Ranks(place.folder)  # before them
    try:
        job = RunningJob(asked.command, prepared.environ, place.kept)
    except CannotStart as why:
        _remove(place, everything=place.is_ours)
        say(str(why))
        shutdown.leave(why.code)
    hung = _wait(job, ranks, StallDetector(asked.hang_after_s, place.folder))
    code = HUNG if hung else job.code or 0
    try:
        job.finish()
        ranks.finish()
        _tell(asked, place, job, code, prepared.kept)
    except KeyboardInterrupt:
        say("interrupted: the job is not explained")
    except TooMuch as why:
        say(f"{why}: not explained; run preflight explain {os.path.relpath(place.folder)}, which has no limit")
    except Exception:
        sys.stderr.write(f"preflight: a fault of preflight itself; please report it:\n{traceback.format_exc()}")
    shutdown.leave(code)


def say(text: str) -> None:
    """On stderr: stdout is the job's."""
    Output().complain(f"debug: {text}")


def _prepare(folder: str | None) -> JobFolder:
    """Makes the folder. Raises UsageError."""
    try:
        place = JobFolder(os.path.abspath(folder), False) if folder else JobFolder(_folder_of_its_own(), True)
        for name in environment.FOLDERS:
            os.makedirs(os.path.join(place.folder, name), exist_ok=True)
    except OSError as error:
        named = f"--report {folder}" if folder else "a folder for what the job leaves"
        raise UsageError(f"{named}: cannot be written ({error.strerror})", everywhere=False) from None
    earlier = os.path.basename(f"{place.kept}.out")
    if os.path.exists(f"{place.kept}.out"):
        raise UsageError(
            f"--report {folder}: holds an earlier job's traces ({earlier}): name another", everywhere=False
        )
    return place


def _folder_of_its_own() -> str:
    """In the current folder, or where that cannot be written, in that for temporary files."""
    prefix = time.strftime("preflight-debug-%Y%m%d-%H%M%S-")
    try:
        return tempfile.mkdtemp(prefix=prefix, dir=os.getcwd())
    except OSError:
        return tempfile.mkdtemp(prefix=prefix)


def _number(environ: Mapping[str, str]) -> str | None:
    numbers = (environ[name] for name in NUMBERED if environ.get(name, "").isdecimal())
    return next(numbers, None)


def _wait(job: RunningJob, ranks: Ranks, silence: StallDetector) -> bool:
    """For the job's end, or until it hangs: then it is ended, and True returned."""
    while job.code is None:
        ranks.note(job.wait(min(ranks.due_s(), max(0.0, silence.due_s(job, ranks))), ranks.descriptors))
        if ranks.due_s() == 0.0:
            ranks.look()
        if job.code is None and silence.due_s(job, ranks) <= 0.0:
            message, hangs = silence.look(job, ranks)
            if message:
                say(message)
            if hangs:
                job.end()
                return True
    return False


def _tell(asked: DebugRequest, place: JobFolder, job: RunningJob, code: int, kept: tuple[str, ...]) -> None:
    """Why it failed, after its own output."""
    _remove(place, everything=place.is_ours and code == 0)
    if code == 0 and place.is_ours:
        return
    _note(place, job, code)
    made = _explained(place, _elsewhere(asked), code)
    if code == 0:
        return
    say(_how(job, code))
    if not os.path.isdir(os.path.join(place.folder, "records")):  # an empty one is removed
        say("no rank of it has left a record: no Python on this host had RANK set, or joined a process group;")
        say("or it ignores PYTHONPATH (-I, -E, -S)")
    for stream in job.streams:
        if stream.kept.failed:
            say(f"its output was not kept as a whole ({stream.kept.failed})")
    if kept:
        say(f"kept as you had set them: {', '.join(kept)}")
    _show(place, made)
    say(f"what every rank left is in {os.path.relpath(place.folder)}")


def _note(place: JobFolder, job: RunningJob, code: int) -> None:
    """For `preflight explain`, now and later: a signature fits it (signatures/debug.toml)."""
    passed = " ".join(name for name in _passed(job) if not name.startswith("SIGUSR")) or "none"
    how = "hung and was ended" if job.was_ended else "ended"
    with contextlib.suppress(OSError), open(f"{place.kept}.end", "w") as file:
        file.write(f"preflight debug: job {how}, status {code}, signals passed on: {passed}\n")


def _passed(job: RunningJob) -> list[str]:
    return sorted({signal.Signals(number).name for number in job.passed} - {"SIGTSTP"})


def _how(job: RunningJob, code: int) -> str:
    passed = _passed(job)
    more = f", after {' and '.join(passed)} was passed to it" if passed else ""
    if job.was_ended:
        return f"the job hung{more}, exit code {code}"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"the job was ended by {signal.Signals(code - 128).name}{more}, exit code {code}"
    return f"the job failed with exit code {code}{more}"


def _elsewhere(asked: DebugRequest) -> list[str]:
    """What the user has put into places of his own."""
    return [path for pattern in environment.elsewhere(os.environ, asked.command) for path in glob.glob(pattern)]


def _explained(place: JobFolder, more: list[str], code: int) -> dict[str, Any]:
    """The report, which is written, too. Of a job that ended well only slower paths are told: an exception that its
    log holds was caught."""
    from preflight.explain import command, output

    made = command.explain_paths([place.folder, *more], _until(time.monotonic() + EXPLAIN_S))
    if code == 0:
        _keep_slower_paths(made)
    try:
        output.write_folder(place.folder, made)
    except OSError as error:
        say(f"the report could not be written ({error.strerror})")
    return made


def _until(end: float) -> Callable[[int, int], None]:
    def read(done: int, whole: int) -> None:
        if time.monotonic() > end:
            raise TooMuch(f"{done >> 20} of {whole >> 20} MiB of traces were read in {EXPLAIN_S:.0f} s")

    return read


def _keep_slower_paths(made: dict[str, Any]) -> None:
    for check in made["checks"]:
        check["findings"] = [finding for finding in check["findings"] if finding["code"] == "explain.degraded_path"]
        check["status"] = "warn" if check["findings"] else "pass"
    made["verdict"] = max((check["status"] for check in made["checks"]), key=("pass", "warn").index)
    made["exit_code"] = 0


def _show(place: JobFolder, made: dict[str, Any]) -> None:
    from preflight.explain import console
    from preflight.explain.artifacts import hang_stacks, processes
    from preflight.results import progress

    def paths(name: str) -> list[str]:
        return sorted(glob.glob(os.path.join(glob.escape(place.folder), name)))

    seen = hang_stacks.describe_places(processes.read_processes(paths("records/*.json"), paths("stacks/*.stack")))
    stood = ["", "where the ranks stood:", *(f"      {line}" for line in seen)] if seen else []
    progress.show([*stood, "", *console.lines(made)], sys.stderr)


def _remove(place: JobFolder, *, everything: bool) -> None:
    """What nobody needs: all, or files without a word and the folders that are empty then."""
    if everything:
        shutil.rmtree(place.folder, ignore_errors=True)
        return
    for folder, _, names in os.walk(place.folder, topdown=False):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith((".stack", ".tmp")) and os.path.isfile(path) and not os.path.getsize(path):
                os.unlink(path)
        if folder != place.folder and not os.listdir(folder):
            os.rmdir(folder)
