"""Output, signals and exit code of a job under `preflight debug`, with tiny commands."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running import environment

PATIENCE_S = 60.0
COUNTS = """
import signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, _: got.append(number))
print("ready", flush=True)
while not got: time.sleep(0.01)
time.sleep(0.3)  # a second one would come now
print(got, flush=True)
sys.exit(5)
"""
STARTS_SLOWLY = """
import os, subprocess, time
class Slow(subprocess.Popen):
    def __init__(self, *words, **more):
        super().__init__(*words, **more)
        while not os.path.exists("sent"): time.sleep(0.01)
subprocess.Popen = Slow
from preflight.__main__ import command
command()
"""


def words(*command: str, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "preflight", "debug", *options, "--", *command]


def debug(folder: Path, *command: str, options: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        words(*command, options=options), cwd=folder, env=environment(), capture_output=True, timeout=PATIENCE_S
    )


@contextmanager
def started(folder: Path, *command: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Once the job has printed a line."""
    with subprocess.Popen(
        words(*command), cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=_heed_signals,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()  # the job is told to end, then


def _heed_signals() -> None:
    """Under nohup, say, the tests ignore some, and so would the job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_jobs(script: str, code: int, tmp_path: Path) -> None:
    done = debug(tmp_path, "sh", "-c", script)
    assert done.returncode == code
    assert len(list(tmp_path.glob("preflight-debug-*"))) == (code != 0)


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command, code, said in (("no-such-command", 127, "there is no such command"), (str(plain), 126, "denied")):
        done = debug(tmp_path, command)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
        assert said in done.stderr.decode()
    assert list(tmp_path.iterdir()) == [plain]


def test_usage(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "job.out").write_text("yesterday's")
    for command in (["--"], ["--report", "old", "--", "true"], ["--hang-after", "soon", "--", "true"]):
        command = [sys.executable, "-m", "preflight", "debug", *command]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=PATIENCE_S)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_output_passes_byte_for_byte_and_is_kept(tmp_path: Path) -> None:
    done = debug(tmp_path, "printf", r"\000\377no end\r50%%", options=("--report", "left"))
    assert (done.stdout, done.stderr) == (b"\0\xffno end\r50%", b"")
    assert (tmp_path / "left" / "job.out").read_bytes() == done.stdout


def test_stdout_and_stderr_stay_apart(tmp_path: Path) -> None:
    done = debug(tmp_path, "sh", "-c", "echo out; echo err >&2; cat", options=("--report", "left"))
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    assert (tmp_path / "left" / "job.err").read_bytes() == b"err\n"


def test_who_stays_in_the_background_does_not_hold_it_up(tmp_path: Path) -> None:
    done = debug(tmp_path, "sh", "-c", "sleep 300 & echo $!")
    assert done.returncode == 0
    os.kill(int(done.stdout), signal.SIGKILL)  # it lives on, as it would without `debug`


def test_a_reader_that_has_gone_ends_the_job_as_it_would_without(tmp_path: Path) -> None:
    with started(tmp_path, "sh", "-c", "echo ready; exec yes") as process:
        assert process.stdout
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_once(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path, sys.executable, "-c", COUNTS) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert f"[{int(number)}]" in out.decode()
    assert f"after {number.name} was passed to it" in err.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_first_moment_ends_the_job(number: signal.Signals, tmp_path: Path) -> None:
    """The job sends it to `debug`, which goes on only afterwards, as on a loaded host."""
    job = f"echo $$ > pid; kill -{number.name.removeprefix('SIG')} $PPID; touch sent; exec sleep 300"
    done = subprocess.run(
        [sys.executable, "-c", STARTS_SLOWLY, "debug", "--", "sh", "-c", job], cwd=tmp_path, env=environment(),
        capture_output=True, timeout=PATIENCE_S, preexec_fn=_heed_signals,
    )  # fmt: skip
    assert done.returncode == 128 + number, done.stderr.decode()
    assert f"after {number.name} was passed to it" in done.stderr.decode()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_ctrl_c_on_a_terminal_arrives_once(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.execve(sys.executable, words(sys.executable, "-c", COUNTS), environment())
    said = _until(terminal, b"ready")
    os.write(terminal, b"\x03")
    said = _until(terminal, b"what every rank left")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert b"[2]" in said
    os.close(terminal)


def _until(terminal: int, words: bytes) -> bytes:
    said, end = b"", time.monotonic() + PATIENCE_S
    while words not in said and select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
        said += os.read(terminal, 4096)
    assert words in said
    return said


def test_the_job_does_not_outlive_it(tmp_path: Path) -> None:
    """It is told by SIGTERM."""
    ended = tmp_path / "ended"
    job = f"trap 'echo TERM > {ended}; exit 1' TERM; echo ready; while :; do sleep 0.05; done"
    with started(tmp_path, "sh", "-c", job) as process:
        process.kill()
    end = time.monotonic() + PATIENCE_S
    while not (ended.exists() and ended.read_text()) and time.monotonic() < end:
        time.sleep(0.01)
    assert ended.read_text() == "TERM\n"


# Silence


@pytest.mark.more
def test_a_silent_job_is_ended_as_timeout_does(tmp_path: Path) -> None:
    done = debug(tmp_path, "sleep", "300", options=("--hang-after", "3"))
    assert done.returncode == 124
    assert b"no rank could be asked where it is; ending it" in done.stderr
    assert b"[explain.slow_rank_timeout]" in done.stderr


@pytest.mark.more
def test_a_job_that_starts_is_no_hung_one(tmp_path: Path) -> None:
    """It imports, unpacks or compiles, and has no rank yet."""
    starts = "import time; end = time.monotonic() + 9\nwhile time.monotonic() < end: pass"
    done = debug(tmp_path, sys.executable, "-c", starts, options=("--hang-after", "3"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().count("still starting; going on") == 1


@pytest.mark.more
def test_a_job_that_starts_on_a_loaded_host_is_no_hung_one(tmp_path: Path) -> None:
    """It gets next to nothing of its core, since another process takes it."""
    spin = f"import os, time; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])\n"
    spin += "{}\nend = time.monotonic() + 8\nwhile time.monotonic() < end: pass"
    idle = spin.format("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))")
    with subprocess.Popen([sys.executable, "-c", spin.format("")]):
        done = debug(tmp_path, sys.executable, "-c", idle, options=("--hang-after", "3"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().count("still starting; going on") == 1


@pytest.mark.more
def test_a_job_whose_ranks_come_is_no_hung_one(tmp_path: Path) -> None:
    """Its launcher waits; a rank comes soon after it is first looked at, and ends its wait for a slow one."""
    rank = f"exec env RANK=0 WORLD_SIZE=1 {sys.executable} -c 'import time; time.sleep(2)'"
    done = debug(tmp_path, "sh", "-c", f"sleep 3.3; {rank}", options=("--hang-after", "3"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


def test_a_slow_job_is_no_hung_one(tmp_path: Path) -> None:
    """Its rank is found at another line each time."""
    lines = "\n".join("    time.sleep(0.05)" for _ in range(200))
    script = tmp_path / "train.py"
    script.write_text(f"import time\nend = time.monotonic() + 9\nwhile time.monotonic() < end:\n{lines}\n    pass\n")
    done = debug(tmp_path, "env", "RANK=0", "WORLD_SIZE=1", sys.executable, "train.py", options=("--hang-after", "3"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().count("rank 0 moved within 3 s: slow, not hung; going on") == 1


@pytest.mark.more
def test_a_stopped_rank_is_told(tmp_path: Path) -> None:
    stops = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    done = debug(tmp_path, "env", "RANK=0", "WORLD_SIZE=2", sys.executable, "-c", stops, options=("--hang-after", "3"))
    assert done.returncode == 124
    assert b"explain.external_signal" in done.stderr
    assert b"is stopped (state T)" in done.stderr
