"""The processes that touch a path: killed, stopped, or left alone by the worker that started them."""

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from preflight.checks.node.storage import mounts, one_file, path_calls
from preflight.checks.node.storage.one_file import Bounds
from preflight.checks.node.storage.path_probe import PathFacts, PathProbe, answers
from tests import running

NAME = ".preflight-test"
pytestmark = pytest.mark.process


@contextmanager
def probing(folder: Path) -> Iterator[PathProbe]:
    with closing(PathProbe(str(folder), NAME)) as path:
        yield path


def ask(probe: PathProbe, what: str, *arguments: object, within_s: float = running.DEADLINE_S) -> None:
    probe.ask(what, *arguments)
    assert list(answers([probe], within_s)) == [probe]


def test_a_folder(tmp_path: Path) -> None:
    with probing(tmp_path) as probe:
        ask(probe, "look", True)
        facts = probe.facts
        assert facts["written"] and facts["opened"] and not facts["read_only"] and facts["failed"] is None
        assert facts["mount"] and len(facts["stat_ms"]) == len(facts["fsync_ms"]) == len(facts["write_ms"]) == 2
        (file,) = tmp_path.iterdir()
        assert file.name == NAME and file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size == path_calls.SIZE
        ask(probe, "see", {"0": NAME, "1": "another"}, 0.0)
        assert probe.facts["seen"] == {"0": "yes", "1": "no"}
        ask(probe, "remove")
        assert list(tmp_path.iterdir()) == [] and probe.facts["left"] == ""


def write_some(folder: Path, monkeypatch: pytest.MonkeyPatch, good: int, error: int) -> PathFacts:
    """So many writes succeed, the next gives `error`; the file may not be removed."""
    write, done = os.pwrite, list[int]()

    def sometimes(descriptor: int, content: bytes, offset: int) -> int:
        if len(done) == good:
            raise OSError(error, "")
        done.append(offset)
        return write(descriptor, content, offset)

    def refused(_file: str) -> None:
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(os, "pwrite", sometimes)
    monkeypatch.setattr(os, "unlink", refused)
    with probing(folder) as probe:
        ask(probe, "look", False)
        return probe.facts


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_that_can_be_written_once(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client of an object store lets it, which need not let it be removed, either."""
    facts = write_some(tmp_path, monkeypatch, 1, error)
    assert facts["written"] and facts["failed"] is None and facts["left"] == str(tmp_path / NAME)
    assert len(facts["write_ms"]) == len(facts["fsync_ms"]) == 2


@pytest.mark.parametrize(("good", "error"), [(0, errno.EINVAL), (1, errno.EIO), (1, errno.ENOSPC)])
def test_what_fails_at_once_or_for_another_reason(
    good: int, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = write_some(tmp_path, monkeypatch, good, error)
    assert not facts["written"] and facts["failed"] is not None
    assert (facts["failed"]["call"], facts["failed"]["error"]) == ("write", errno.errorcode[error])


def test_a_link_leads_to_the_mount_of_its_target(tmp_path: Path) -> None:
    shm, link = Path("/dev/shm"), tmp_path / "link"
    link.symlink_to(shm)
    with probing(link) as probe:
        assert probe.facts["mount"] == mounts.of_path(str(tmp_path))
        ask(probe, "look", False)
        assert probe.facts["mount"] == mounts.of_path(str(shm)) != mounts.of_path(str(tmp_path))
        assert not (shm / NAME).exists()


def test_a_file_that_comes_late(tmp_path: Path) -> None:
    """As one does where a client keeps for a while what is not there."""
    with probing(tmp_path / "here") as here:
        (tmp_path / "here").mkdir()
        here.ask("see", {"0": NAME}, running.DEADLINE_S)
        with probing(tmp_path / "here") as there:
            ask(there, "look", True)
            assert list(answers([here], running.DEADLINE_S)) == [here]
        assert here.facts["seen"] == {"0": "yes"}


@pytest.mark.parametrize("made", ["file", "link"])
def test_what_is_not_ours_is_left_alone(made: str, tmp_path: Path) -> None:
    other, mine = tmp_path / "other", tmp_path / NAME
    other.write_text("kept")
    mine.write_text("kept") if made == "file" else mine.symlink_to(other)
    with probing(tmp_path) as probe:
        ask(probe, "look", False)
        assert probe.facts["failed"] == {"call": "create", "error": "EEXIST", "text": "File exists"}
    assert other.read_text() == mine.read_text() == "kept"


@pytest.mark.parametrize(("deed", "ended"), [(signal.SIGKILL, "ended by SIGKILL"), (signal.SIGSTOP, "was stopped")])
def test_a_process_that_somebody_disturbs(tmp_path: Path, deed: signal.Signals, ended: str) -> None:
    with probing(tmp_path) as probe:
        ask(probe, "look", True)
        os.kill(probe.probe.pid or 0, deed)
        ask(probe, "remove", within_s=0.2 if deed is signal.SIGSTOP else running.DEADLINE_S)
        assert probe.disturbed == f"the process that looked at {tmp_path} {ended}"
        assert probe.facts["hang"] is None


def slow_for(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For so long, from now on, looking up a name takes longer than what is called slow."""
    look_up, end = os.stat, time.monotonic() + seconds

    def slow(path: str) -> os.stat_result:
        if time.monotonic() < end:
            time.sleep(3 * path_calls.BUSY_STAT_MS / 1000)
        return look_up(path)

    monkeypatch.setattr(os, "stat", slow)


def test_look_ups_that_wait_for_a_cpu_make_no_path_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_for(path_calls.BUSY_S / 2, monkeypatch)
    with probing(tmp_path) as probe:
        ask(probe, "look", False)
        best, worst = probe.facts["stat_ms"]
        assert best < path_calls.BUSY_STAT_MS < worst


def test_a_slow_path_stays_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_for(running.DEADLINE_S, monkeypatch)
    with probing(tmp_path) as probe:
        ask(probe, "look", False)
        assert probe.facts["stat_ms"][0] > path_calls.BUSY_STAT_MS


@pytest.mark.parametrize("deed", [signal.SIGKILL, signal.SIGTERM])
def test_the_file_goes_when_the_worker_is_killed(deed: signal.Signals, tmp_path: Path) -> None:
    code = f"""import sys
import time
from preflight.checks.node.storage.path_probe import PathProbe, answers
probe = PathProbe({str(tmp_path)!r}, {NAME!r})
probe.ask("look", True)
list(answers([probe], 60))
print(probe.probe.pid, flush=True)
sys.stdin.read()"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=running.environment()
    ) as worker:
        assert worker.stdout
        probe = os.pidfd_open(int(worker.stdout.readline()))
        with closing(os.fdopen(probe)):
            assert (tmp_path / NAME).exists()
            worker.send_signal(deed)
            assert select.select([probe], [], [], running.DEADLINE_S)[0], "it has not ended"
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_comes_too_late_blames_nothing(tmp_path: Path) -> None:
    """The writer has waited for it, and has taken its file away."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in __all__

    store = HashStore()
    bounds, now = Bounds.within(running.DEADLINE_S, 15.0), time.monotonic()
    with probing(tmp_path) as probe:
        ask(probe, "look", True)
        one_file.tell(store, 0, 0, probe)
        one_file.look_for_all(store, 1, [0, 1], [probe], bounds, now)
        assert probe.facts["seen"] == {"0": "yes"}
        ask(probe, "remove")
        one_file.look_for_all(store, 1, [0, 1], [probe], bounds, now)
        assert probe.facts["seen"] == {"0": "no"}
        assert one_file.count_in(store, 2)
        one_file.all_have_looked(store, now)
        one_file.look_for_all(store, 1, [0, 1], [probe], bounds, now)
        assert probe.facts["seen"] == {}
