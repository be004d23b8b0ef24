"""A node that can start no process or thread, or open no file: the limit is named, with its value and its owner, once,
and no healthy rank is blamed."""

import itertools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight.sdk import process_limits
from tests import running
from tests.faults import ELSEWHERE
from tests.running import Finished

PIDS = Path("/sys/fs/cgroup/pids") if Path("/sys/fs/cgroup/pids").is_dir() else Path("/sys/fs/cgroup")
_NUMBERS = itertools.count()
WORDS = ("--only", "env.launch,env.variables,gpu.inventory,comm.init")
CODES = re.compile(r"preflight\.run\.no_process|[a-z]+\.[a-z_]+\.no_process")


def _can_make_cgroups() -> bool:
    return os.geteuid() == 0 and os.access(PIDS, os.W_OK) and (PIDS / "cgroup.procs").exists()


needs_cgroups = pytest.mark.skipif(
    not _can_make_cgroups(), reason="a cgroup with pids.max needs root and a writable one"
)
needs_users = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("prlimit"),
    reason="a process of another user needs root and util-linux (setpriv, prlimit)",
)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    folder = PIDS / f"pf-{os.getpid()}-{next(_NUMBERS)}"
    folder.mkdir()
    if not (folder / "pids.max").exists():
        folder.rmdir()
        pytest.skip("this host's cgroups do not count processes")
    yield folder
    folder.rmdir()


def run_nodes(folder: Path, bad: int, before: str = "", **more: Any) -> Finished:
    """Two ranks, each a node of its own; `bad` is the rank with the limit."""
    run = running.Run(folder, 40)
    for rank, env in enumerate(running.plain_ranks(2)):
        place = {"NODE_RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        own = {"before": before, **more} if rank == bad else {}
        run.start_rank(rank, [*WORDS, "--report", str(folder), "--deadline", "40"], {**env, **place}, **own)
    return run.finish()


def found_by(finished: Finished, bad: int) -> list[Mapping[str, Any]]:
    """What all reports say, but that the node's rank never came, where it could not."""
    reports = [finished.report_named(path.name) for path in sorted(finished.folder.glob("report*.json"))]
    found = [each for report in reports for each in finished.findings(report)]
    consequences = [each for each in found if each["code"] in ("preflight.run.lost", "preflight.run.store_lost")]
    assert all(each["where"].get("rank", bad) == bad for each in consequences), finished.told()
    return [each for each in found if each not in consequences and each["code"] != "preflight.run.rendezvous"]


@needs_cgroups
@pytest.mark.parametrize(
    ("bad", "limit"),
    [(1, 2), (1, 4), (0, 5), (0, 6), *(pytest.param(*case, marks=pytest.mark.more) for case in (
        (1, 1), (1, 3), (1, 5), (0, 1), (0, 2), (0, 3), (0, 4), (0, 7), (0, 8),
    ))],
)  # fmt: skip
def test_a_cgroup_that_allows_few_processes(bad: int, limit: int, cgroup: Path, tmp_path: Path) -> None:
    """Where the limit is met depends on its value: in the supervisor, in a child, in a check's own processes."""
    (cgroup / "pids.max").write_text(str(limit))
    finished = run_nodes(tmp_path, bad, f"echo $PPID > {cgroup}/cgroup.procs")
    (found,) = found_by(finished, bad)
    told = finished.told()
    assert found["severity"] == "fail" and CODES.fullmatch(found["code"]), told
    assert found["where"]["node"] == f"node-{bad}", told
    assert f"pids.max of the cgroup {cgroup} is {limit}, and all are in use" in found["message"], told
    assert finished.exit_codes[bad] == 1 and finished.left_over == [], told
    if (bad, limit) == (1, 2):
        assert ELSEWHERE["pids_max"].is_told_by([found]), told
    if (bad, limit) == (1, 4):
        assert ELSEWHERE["pids_max_in_a_check"].is_told_by([found]), told


@needs_users
def test_a_user_that_may_have_few_processes(tmp_path: Path) -> None:
    """root is exempt from `ulimit -u`. A user that nobody else is: the count is of all its processes on the host."""
    user = 61000 + os.getpid() % 4000
    limited = ["setpriv", f"--reuid={user}", "--clear-groups", "prlimit", "--nproc=4"]
    finished = run_nodes(tmp_path, 1, wrap=limited)
    (found,) = found_by(finished, 1)
    assert ELSEWHERE["ulimit_u"].is_told_by([found]), finished.told()
    assert f"the 4 processes and threads that user {user} may have on this host (ulimit -u)" in found["message"]
    assert finished.left_over == [], finished.told()


@pytest.mark.parametrize("limit", [18, 24, pytest.param(30, marks=pytest.mark.more)])
def test_few_open_files(limit: int, tmp_path: Path) -> None:
    """Set once preflight has started: below 32 it does not begin."""
    if not shutil.which("prlimit"):
        pytest.skip("prlimit of util-linux sets it")
    finished = run_nodes(tmp_path, 1, f"prlimit --pid $PPID --nofile={limit}:4096")
    for found in found_by(finished, 1):
        assert CODES.fullmatch(found["code"]) and found["where"]["node"] == "node-1", finished.told()
        assert f"the {limit} open files that a process may have (ulimit -n)" in found["message"], finished.told()
    print(finished.told())
