"""Every command and option that takes a path, on a file system that never answers: it ends, names the path, says how
long it has waited and what to do. They are those of the parsers, so that a new option is held, too."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from preflight.cli import arguments
from preflight.sdk import files, system_call, watch
from tests import ahead, fuse, path_arguments, running
from tests.fuse import NUMBERS, SILENT, Call, File
from tests.path_arguments import ALL, SLOW, in_slurm, words_of

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="a dead mount: root and /dev/fuse"),
]
SOONER = (
    "import sys; from preflight.sdk import paths, watch; from preflight.planning import toml_file;"
    "from preflight.engine import baseline, loading; from preflight.cluster import gate;"
    "watch.ANSWER_S = 1.5; paths.ask.__defaults__ = (2.0,); toml_file.READ_S = baseline.READ_S = 4.0;"
    "gate.DISK_S = loading.PLUGIN_S = 4.0; from preflight.__main__ import command; command()"
)
"""The command, with shorter waits: what never answers does not answer later either."""
RAN, REFUSED, UNFINISHED = 0, 2, 3
"""Exit codes: of a run whose sinks got nothing, which changes no verdict (docs/history.md); of a path that a run needs;
and of a command that could not do its work."""
ENDS_WITH = {
    ("run", "--history"): (RAN,), ("run", "--textfile"): (RAN,), ("run", "--post-token"): (RAN,),
    ("run", "--code"): (1, UNFINISHED), ("run", "--data"): (1, UNFINISHED), ("run", "--model"): (1, UNFINISHED),
    ("run", "--checkpoint"): (1, UNFINISHED), ("run", "--plugin"): (UNFINISHED, REFUSED), ("gate", "--report"): (1,),
}  # fmt: skip
"""Where it is neither 2 nor 3: measured (a failure of the machine), or told by the command's own contract."""


CASES = [pytest.param(*it, id=" ".join(it), marks=[pytest.mark.more] * (it in SLOW)) for it in ALL]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return path_arguments.sound(tmp_path_factory.mktemp("sound"))


def outcome(words: list[str], folder: Path, **environ: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", SOONER, *words], cwd=folder, env=running.environment(**environ), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=running.HUNG_S, check=False,
    )  # fmt: skip
    return done.returncode, " ".join(done.stdout.split())


Asked = tuple[bool, str, int, str]
"""(whether the dead file system was asked, its folder, the exit code, what was printed)."""


def ask(case: tuple[str, str], folder: Path, given: Mapping[str, str]) -> Asked:
    command, option = case
    with fuse.mounted(folder / "dead", {Call.LOOKUP: SILENT}) as system:
        dead = str(system.folder / "x.py")
        environ = in_slurm(folder) if command == "pick" else {}
        code, said = outcome([command, *words_of(command, option, dead, given)], folder, **environ)
        return system.asked.is_set(), str(system.folder), code, said


@pytest.fixture(scope="module")
def asked(
    request: pytest.FixtureRequest, given: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, str]], Asked]]:
    cases = ahead.chosen(request, "test_a_path_that_does_not_answer", "command", "option")
    with ahead.outcomes(cases, lambda case: ask(case, tmp_path_factory.mktemp("dead"), given)) as outcomes:
        yield outcomes


@pytest.mark.parametrize(("command", "option"), CASES)
def test_a_path_that_does_not_answer(command: str, option: str, asked: Callable[[tuple[str, str]], Asked]) -> None:
    was_asked, folder, code, said = asked((command, option))
    assert was_asked, f"nothing looked at the path: {said}"
    assert code in ENDS_WITH.get((command, option), (REFUSED, UNFINISHED)), said
    assert folder in said and "fault of preflight" not in said, said
    assert any(word in said for word in (" s (", " s: ", " s;", " s,", "within", "after")), f"not how long: {said}"


def test_no_command_is_left_out() -> None:
    """A new command is either watched or starts processes, and says so."""
    assert {*watch.WATCHED, *arguments.STARTING} == {*arguments.COMMANDS}


READERS = {"explain": ["x"], "show": ["x"], "history": ["x"], "nodes": ["--bad", "x"]}


def read(case: tuple[str, Call], folder: Path) -> tuple[str, int, str]:
    """The name is found, as where the client of NFS has it in its cache; then nothing comes. (The path, the exit code,
    what was printed.)"""
    command, silent = case
    files: dict[int, File] = {next(NUMBERS): ("x", bytearray(b"{" + b" " * 5000))}
    with fuse.mounted(folder / "dead", {silent: SILENT}, files=files) as system:
        dead = str(system.folder / "x")
        return dead, *outcome([command, *(dead if word == "x" else word for word in READERS[command])], folder)


@pytest.fixture(scope="module")
def were_read(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, Call]], tuple[str, int, str]]]:
    cases = ahead.chosen(request, "test_one_that_stops_to_answer_later", "command", "silent")
    with ahead.outcomes(cases, lambda case: read(case, tmp_path_factory.mktemp("dead"))) as outcomes:
        yield outcomes


@pytest.mark.parametrize("silent", [Call.OPEN, Call.READ, Call.GETATTR], ids=lambda call: call.name)
@pytest.mark.parametrize("command", READERS)
def test_one_that_stops_to_answer_later(
    command: str, silent: Call, were_read: Callable[[tuple[str, Call]], tuple[str, int, str]]
) -> None:
    dead, code, said = were_read((command, silent))
    assert code == UNFINISHED and f"{dead}: its file system has not answered for " in said, said


def test_a_command_that_waits_for_its_reader_or_its_writer_is_not_ended(given: dict[str, str], tmp_path: Path) -> None:
    """A terminal's user may be slow, and so may the job whose output comes through a pipe."""
    job = subprocess.Popen(
        [sys.executable, "-c", SOONER, "explain", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=running.environment(), cwd=tmp_path,
    )  # fmt: skip
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(4.0)  # well above ANSWER_S: the wait itself is the case
    told, _ = job.communicate("step 1\n", timeout=running.HUNG_S)
    assert job.returncode == 0 and "nothing wrong found" in " ".join(told.split())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_that_waits(number: signal.Signals, tmp_path: Path) -> None:
    with fuse.mounted(tmp_path / "dead", {Call.LOOKUP: SILENT}) as system:
        job = subprocess.Popen(
            [sys.executable, "-m", "preflight", "show", str(system.folder / "x")], env=running.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert system.asked.wait(running.HUNG_S)
        job.send_signal(number)
        job.communicate(timeout=running.HUNG_S)
        assert job.returncode in (UNFINISHED, -number)


@pytest.mark.parametrize("command", ["history", "show", "profile", "explain"])
def test_what_is_no_file_is_refused_at_once(command: str, tmp_path: Path) -> None:
    """A pipe without a writer, and a file of /proc whose reader waits for the kernel's next message."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    code, said = outcome([command, str(pipe)], tmp_path)
    assert code in (REFUSED, UNFINISHED) and "regular file" in said and str(pipe) in said, said
    code, said = outcome([command, "/proc/kmsg"], tmp_path)
    assert code in (REFUSED, UNFINISHED) and "/proc/kmsg" in said and "has not answered" not in said, said


def test_both_machines_have_the_calls_by_which_a_path_is_touched() -> None:
    """The numbers are the kernel's (asm/unistd_64.h, asm-generic/unistd.h)."""
    for machine in ("x86_64", "aarch64"):
        by_path = {name for name, _ in system_call.BY_PATH[machine].values()}
        assert {"openat", "newfstatat", "readlinkat", "statfs", "mkdirat", "unlinkat", "statx"} <= by_path
        assert {"read", "write", "pread64", "getdents64", "fsync", "close"} <= {
            *system_call.BY_DESCRIPTOR[machine].values()
        }
        assert not {*system_call.BY_PATH[machine]} & {*system_call.BY_DESCRIPTOR[machine]}


PRINTS = "import os; from preflight.sdk import watch; watch.run(lambda: os._exit(print('x' * {}) or 0), 'it', [])"


@pytest.mark.parametrize("letters", [200_000, 20_000_000])
def test_a_command_whose_reader_has_gone_ends(letters: int) -> None:
    printing = subprocess.Popen([sys.executable, "-c", PRINTS.format(letters)], stdout=-1, stderr=-1)
    assert printing.stdout and printing.stdout.read(1) == b"x"
    printing.stdout.close()
    printing.wait(running.HUNG_S)


def test_a_command_whose_reader_does_not_read_can_be_ended() -> None:
    """All that it prints is in the pipes, or not yet: in both cases a signal is heard."""
    printing = subprocess.Popen([sys.executable, "-c", PRINTS.format(100_000)], stdout=-1)
    assert printing.stdout and printing.stdout.read(1) == b"x"
    while os.path.exists(f"/proc/{printing.pid}/task/{printing.pid}/children") and _children(printing.pid):
        pass  # its child has ended
    printing.terminate()
    assert printing.wait(running.HUNG_S) == -signal.SIGTERM


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()


def test_a_writer_that_is_silent_is_no_dead_file_system(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.DEVNULL)
    with fifo.open("w"):
        while system_call.wait_of(reader.pid) is not None or files.state_of(reader.pid) != "S":
            pass  # it is not in read(2) yet
        assert system_call.wait_of(reader.pid) is None
    reader.wait(running.HUNG_S)
