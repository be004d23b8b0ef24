"""Who may ask a rank under `preflight debug` for its flight recorder, and how often."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from preflight.debug import command, environment, stack_sample
from preflight.debug.ranks import WatchedRank
from preflight.errors import UsageError
from tests.running import environment as clean

PATIENCE_S = 90.0
NOBODY = 65534
RANK = """
import os, sys, time, preflight_debug_rank
import torch.distributed as dist
write = preflight_debug_rank.Rank.write_recorder
def counted(self):
    write(self)
    with open(os.environ["DUMPS"], "a") as file:
        file.write("%f\\n" % time.monotonic())
preflight_debug_rank.Rank.write_recorder = counted
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print("ready", flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to other users, as a folder of --report on shared storage is; with a long path."""
    with tempfile.TemporaryDirectory(prefix="asked-" + "long-" * 18) as path:
        os.chmod(path, 0o755)
        for name in environment.FOLDERS:
            (Path(path) / name).mkdir()
        command._make_private(os.path.join(path, environment.SOCKETS))
        yield Path(path)


@contextmanager
def a_rank(folder: Path) -> Iterator[WatchedRank]:
    more = {"PREFLIGHT_DEBUG": str(folder), "PYTHONPATH": environment.HOOK, "DUMPS": str(folder / "dumps")}
    with subprocess.Popen(
        [sys.executable, "-c", RANK], env={**clean(RANK="0", WORLD_SIZE="1"), **more}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield WatchedRank("", process.pid, 0, -1)
        process.stdin.close()


def ask(folder: Path, rank: WatchedRank) -> dict[int, str]:
    return stack_sample._ask_recorders([rank], str(folder))


def dumps(folder: Path, wanted: int) -> list[float]:
    """The times of the dumps, once there are so many."""
    end, path = time.monotonic() + PATIENCE_S, folder / "dumps"
    while time.monotonic() < end:
        times = path.read_text().split() if path.exists() else []
        if len(times) >= wanted:
            return [float(text) for text in times]
        time.sleep(0.01)
    raise AssertionError(f"{wanted} dumps did not come")


def as_another_user(deed: Callable[[], None]) -> str:
    """The name of the exception that it raised, or ""."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            deed()
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as file:
        return file.read()


def test_the_user_of_the_job_is_answered_once_a_second(folder: Path) -> None:
    with a_rank(folder) as rank:
        for _ in range(4):
            (path,) = ask(folder, rank).values()
        times = dumps(folder, 4)
        assert '"entries"' in Path(path).read_text()
    assert min(after - before for before, after in pairwise(times)) >= 0.99


@needs_root
def test_another_user_can_not_ask(folder: Path) -> None:
    with a_rank(folder) as rank:
        assert (
            as_another_user(lambda: stack_sample._connect(str(folder / "sockets"), socket_of(rank)))
            == "PermissionError"
        )
        assert as_another_user(lambda: (folder / "sockets" / "mine").touch()) == "PermissionError"


@needs_root
def test_another_user_is_not_answered_even_through_an_open_folder(folder: Path) -> None:
    with a_rank(folder) as rank:
        (folder / "sockets").chmod(0o777)
        (folder / "sockets" / socket_of(rank)).chmod(0o777)
        for _ in range(5):
            assert as_another_user(lambda: stack_sample._connect(str(folder / "sockets"), socket_of(rank))) == ""
        asked = time.monotonic()
        ask(folder, rank)  # is served after them
        assert min(dumps(folder, 1)) >= asked


@needs_root
def test_a_rank_does_not_listen_in_a_folder_of_another_user(folder: Path) -> None:
    os.chown(folder / "sockets", NOBODY, NOBODY)
    with a_rank(folder) as rank:
        assert list((folder / "sockets").iterdir()) == []
        assert ask(folder, rank) == {}


@pytest.mark.process
@needs_root
def test_a_folder_that_another_user_has_prepared_is_refused(folder: Path) -> None:
    os.chown(folder / "sockets", NOBODY, NOBODY)
    with pytest.raises(UsageError, match=r"cannot be written .*sockets is another user's"):
        command._prepare(str(folder))
    (folder / "sockets").rmdir()
    (folder / "sockets").symlink_to("/tmp")
    with pytest.raises(UsageError, match="sockets is another user's"):
        command._prepare(str(folder))
    assert os.stat("/tmp").st_mode & 0o777 == 0o777


@needs_root
def test_an_abstract_name_is_no_door_and_can_not_be_taken(folder: Path) -> None:
    with a_rank(folder) as rank, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        with pytest.raises(ConnectionRefusedError):
            bell.sendto(b"look", f"\0preflight-debug-{rank.pid}")
        names = Path("/proc/net/unix").read_text()
        assert f"@preflight-debug-{rank.pid}" not in names


def socket_of(rank: WatchedRank) -> str:
    return f"{os.uname().nodename}.{rank.pid}.sock"
