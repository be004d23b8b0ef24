"""Starts real runs of preflight on real ranks, and holds what they leave against what every run must leave."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from preflight.engine import local_launch
from tests import entering, warm
from tests.hosts import Host
from tests.made import assert_valid

ROOT = Path(__file__).parent.parent
PLUGINS = ROOT / "tests" / "plugins"
DEADLINE_S = 60
MARK = warm.MARK
Process = subprocess.Popen[bytes] | warm.Child
KERNEL = "node.kernel"
HUNG_S = 400.0
"""What takes longer has hung: this only ends the test, and is generous, since the machine may be loaded."""
PATIENCE_S = 30.0
"""Beyond a run's own deadline: for imports on a loaded machine. A run that takes longer has hung."""
_SWEEPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_VARIANTS = {
    "ddp": "plain", "fsdp2": "plain", "fsdp": "full_shard", "tp": "matrices", "pp": "gpipe", "hybrid": "hsdp",
    "compile": "fsdp2",
}  # fmt: skip
ONE_VARIANT = tuple(
    word for name, variant in _VARIANTS.items() for word in ("--set", f"train.{name}.variants={variant}")
)
"""All of them are under tests/train_smoke and in tests/checks/train/test_ddp.py."""
SMALL = (
    *(word for name in _SWEEPS for word in ("--set", f"comm.{name}.max_mib=1")),
    *ONE_VARIANT,
)
"""For runs that ask who meets whom, not how fast: large messages and many variants are most of what `--all` takes on a
CPU."""


@dataclass
class Finished:
    """What a run left."""

    exit_codes: list[int]
    output: str
    folder: Path
    seconds: float
    left_over: list[str] = field(default_factory=list)

    @property
    def report(self) -> dict[str, Any]:
        """Rank 0's report, valid by the schema."""
        return self.report_named("report.json")

    def report_named(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        assert path.exists(), f"no {name} was written: {self.told()}"
        return load(path)

    def check(self, id_: str) -> dict[str, Any]:
        return next(check for check in self.report["checks"] if check["check"] == id_)

    def findings(self, report: Mapping[str, Any] | None = None, *, finds: Iterable[str] = ()) -> list[dict[str, Any]]:
        """All but info, and but what the log of this machine's kernel says in a test of something else. Infos only
        where `finds` ("info CODE") asks for them."""
        checks = (report or self.report)["checks"]
        about_it = {check["check"] for check in checks} <= {"preflight.run", KERNEL}
        chosen = [check for check in checks if about_it or check["check"] != KERNEL]
        found = [finding for check in chosen for finding in check["findings"]]
        return [f for f in found if f["severity"] != "info" or f"info {f['code']}" in finds]

    def told(self) -> str:
        """For the message of a failed assertion."""
        return f"exit codes {self.exit_codes}, {self.seconds:.1f} s\n{self.output}"


def load(path: Path) -> dict[str, Any]:
    """A report, valid by the schema."""
    loaded: dict[str, Any] = json.loads(path.read_text())
    assert_valid(loaded)
    return loaded


def environment(**more: str) -> dict[str, str]:
    """A clean one: nothing of the launcher that may run the tests themselves. Modules are compiled once, and not by
    each of the thousand processes that the tests start."""
    prefixes = (
        "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "TORCHELASTIC", "SLURM", "OMPI_", "PMI", "NCCL_",
        "PYTHONDONTWRITEBYTECODE",
    )  # fmt: skip
    kept = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    paths = [str(ROOT), str(PLUGINS)]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def without_numpy(environ: Mapping[str, str]) -> dict[str, str]:
    """Of a rank for which NumPy is not installed. `environ`: with a PYTHONPATH."""
    folder = ROOT / "tests" / "absent" / "without_numpy"
    return {**environ, "PYTHONPATH": f"{folder}{os.pathsep}{environ['PYTHONPATH']}"}


free_port = local_launch.free_port


def plain_ranks(world: int, port: int | None = None, **more: str) -> list[dict[str, str]]:
    """The environments of a plain launch on this machine. The store looks up the name of each client: a DNS server that
    is slow just then costs it a second, not five."""
    chosen = str(port or free_port())
    more = {"RES_OPTIONS": "timeout:1 attempts:1", **more}
    return [
        environment(
            RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=chosen, **more,
        )
        for rank in range(world)
    ]  # fmt: skip


def run_to_end(
    command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """What a command on no rank prints, and how it ends. `env`: of the whole process."""
    return subprocess.run(
        command, env=environment() if env is None else env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=HUNG_S, check=False,
    )  # fmt: skip


def preflight(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "preflight", *arguments]


def torchrun(world: int, *arguments: str, options: Sequence[str] = ("--standalone",)) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", str(world)]
    return [*launcher, "-m", "preflight", *arguments]


def start_on(
    host: Host | None, rank: int, words: Sequence[str], env: Mapping[str, str], folder: Path, log: int, *,
    cold: bool = False, before: str = "", wrap: Sequence[str] = (), module: str = "preflight",
) -> Process:  # fmt: skip
    """`python -m` this module with these words, on a host or on this machine; forked from a process that has imported
    torch, unless it is to be `cold`, its environment does not allow it, or words `wrap` its command. `before`: lines of
    a shell, done first (entering.prepare)."""
    usual = environment()
    if not cold and not wrap and warm.fits(env, usual):
        return warm.start(rank, words, {MARK: uuid.uuid4().hex, **env}, usual, folder, log, host, before, module)
    command = [*wrap, sys.executable, "-m", module, *words]
    if before:
        command = entering.prepared(before, str(folder), command)
    return subprocess.Popen(
        host.command(command) if host else command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


class Run:
    """Processes of one run, all with one mark in their environment."""

    def __init__(self, folder: Path, deadline_s: float = DEADLINE_S) -> None:
        self.folder = folder
        self.deadline_s = deadline_s
        self.processes: list[Process] = []
        self._mark = uuid.uuid4().hex
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the run
        self._started = time.monotonic()
        self._shared_memory = set(os.listdir("/dev/shm"))

    def start(
        self, command: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None, session: bool = True
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            list(command), env={**env, MARK: self._mark}, cwd=cwd or self.folder, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=session,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def start_rank(
        self, rank: int, words: Sequence[str], env: Mapping[str, str], *, cwd: Path | None = None,
        host: Host | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """`preflight` with these words, as `start_on` starts it. `more`: its other arguments."""
        marked, log = {**env, MARK: self._mark}, self._log.fileno()
        self.processes.append(start_on(host, rank, words, marked, cwd or self.folder, log, **more))

    def marked(self) -> list[psutil.Process]:
        """All living processes of this run, whoever their parent is now."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():  # a zombie has none
                    found.append(psutil.Process(pid))
        return found

    def finish(self, stopped: Sequence[int] = ()) -> Finished:
        """Waits for all; kills and complains if that takes longer than the run's deadline. Those that the
        test has `stopped` (by their place in the order of starting) are killed when the others have ended."""
        end = self._started + self.deadline_s + PATIENCE_S
        try:
            for place, process in enumerate(self.processes):
                if place not in stopped:
                    process.wait(timeout=max(0.1, end - time.monotonic()))
            seconds = time.monotonic() - self._started
            for place in stopped:
                self.processes[place].kill()
            codes = [process.wait(timeout=5.0) for process in self.processes]
            return Finished(codes, self.output(), self.folder, seconds, self._left_over())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {self.deadline_s + PATIENCE_S} s\n{self.output()}") from None
        finally:
            self.kill()

    def finish_but_for(self, spared: Callable[[], int]) -> Finished:
        """The same, where one process of the user's own must have survived; then it is ended, too."""
        for process in self.processes:
            process.wait(timeout=self.deadline_s + PATIENCE_S)
        os.kill(spared(), signal.SIGKILL)  # ProcessLookupError: it was killed with ours
        return self.finish()

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _left_over(self) -> list[str]:
        """What is still there a moment after the last process has ended (a kill takes the kernel a moment)."""
        end = time.monotonic() + 5.0
        while (found := self._found()) and time.monotonic() < end:
            psutil.wait_procs(self.marked(), timeout=0.2)
        return found

    def _found(self) -> list[str]:
        """Tests run beside each other: what another one has in shared memory is gone a moment later, or its own."""
        own = self.marked()
        files = [Path("/dev/shm", name) for name in set(os.listdir("/dev/shm")) - self._shared_memory]
        others = set(psutil.pids()) - {process.pid for process in own} if files else set()
        held: set[int | None] = {None, *(inode for pid in others for inode in _shared_memory_of(pid))}
        return [f"process {process}" for process in own] + [str(path) for path in files if _inode(path) not in held]

    def kill(self) -> None:
        for process in self.marked():
            with contextlib.suppress(psutil.Error):
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
        for child in self.processes:
            child.wait()


def _shared_memory_of(pid: int) -> Iterator[int]:
    """Inodes of the files in shared memory that a process has mapped; a semaphore has another name there."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if "/dev/shm/" in line:
                yield int(line.split()[4])


def _inode(path: Path) -> int | None:
    """None where it is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def output_of(module: str, *words: str, limit_s: float, **more: str) -> str:
    """What a module of the tests prints that starts ranks itself, without preflight's engine. `more`: its variables
    over the usual ones."""
    run = Run(ROOT, limit_s)
    run.start_rank(0, words, environment(**{"PYTHONPATH": str(ROOT), **more}), module=module)
    finished = run.finish()
    assert finished.exit_codes == [0], finished.told()
    return finished.output


def run_ranks(
    folder: Path,
    ranks: Sequence[Mapping[str, str]],
    *arguments: str,
    deadline_s: float = DEADLINE_S,
    stopped: Sequence[int] = (),
    cold: bool = False,
) -> Finished:
    """One process for each environment. `cold`: each imports torch itself."""
    run = Run(folder, deadline_s)
    words = _arguments(folder, arguments, deadline_s)
    for rank, env in enumerate(ranks):
        if cold:
            run.start(preflight(*words), env)
        else:
            run.start_rank(rank, words, env)
    return run.finish(stopped)


def run_torchrun(
    folder: Path,
    world: int,
    *arguments: str,
    options: Sequence[str] = ("--standalone",),
    deadline_s: float = DEADLINE_S,
    **more: str,
) -> Finished:
    run = Run(folder, deadline_s)
    run.start(torchrun(world, *_arguments(folder, arguments, deadline_s), options=options), environment(**more))
    return run.finish()


def _arguments(folder: Path, arguments: Sequence[str], deadline_s: float) -> list[str]:
    ours = ["--report", str(folder), "--deadline", str(deadline_s)]
    return [*arguments, *(ours if "--json" not in arguments else ours[2:])]


def await_file(path: Path, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.01)  # nobody tells of a file


@contextlib.contextmanager
def store_server() -> Iterator[tuple[int, int]]:
    """(port, pid) of a store in a process of its own, as a launcher's agent serves one."""
    reader, writer = os.pipe()
    with open(reader) as told:
        server = start_on(None, 0, [], environment(), ROOT, writer, module="tests.serve_store")
        os.close(writer)
        try:
            yield int(told.readline()), server.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGCONT)
            server.kill()
            server.wait(HUNG_S)
