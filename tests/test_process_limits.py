"""A node that can start no process or thread, or open no file: the limit is named, with its value and its owner, once,
and no healthy rank is blamed."""

import errno
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight.check import Scope
from preflight.cli.surroundings import LEAST_FILES
from preflight.core.outcome import Outcome
from preflight.hangs import blame
from preflight.sdk import process_limits
from tests import made, running
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
    reads = "+dac_override,+dac_read_search"  # as root the tests may run from a folder that others cannot read
    keeps = (f"--inh-caps={reads}", f"--ambient-caps={reads}")
    limited = ["setpriv", f"--reuid={user}", "--clear-groups", *keeps, "prlimit", "--nproc=4"]
    finished = run_nodes(tmp_path, 1, wrap=limited)
    (found,) = found_by(finished, 1)
    assert ELSEWHERE["ulimit_u"].is_told_by([found]), finished.told()
    assert f"the 4 processes and threads that user {user} may have on this host (ulimit -u)" in found["message"]
    assert finished.left_over == [], finished.told()


@pytest.mark.skipif(not shutil.which("prlimit"), reason="prlimit of util-linux sets the limit")
@pytest.mark.parametrize("limit", [33, pytest.param(31, marks=pytest.mark.more)])
def test_few_open_files(limit: int, tmp_path: Path) -> None:
    """The fewest that preflight takes are enough for it, and fewer are refused in one sentence."""
    finished = run_nodes(tmp_path, 1, f"prlimit --pid $PPID --nofile={limit}:4096")
    if limit >= LEAST_FILES:
        assert found_by(finished, 1) == [] and finished.exit_codes == [0, 0], finished.told()
    else:
        assert f"may open {limit} files at once, expected {LEAST_FILES} or more: ulimit -n" in finished.output
        assert finished.exit_codes == [1, 3], finished.told()


def test_a_sound_host_reaches_no_limit() -> None:
    before = process_limits.refusals()
    for said in ("", "ValueError: on purpose", "SIGSEGV", "no answer within 5 s", "connection refused"):
        assert process_limits.hit(before, said) == ""


@pytest.mark.parametrize(
    ("folder", "owner"),
    [
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_77/step_0", "Slurm's for this job"),
        ("/sys/fs/cgroup/pids/slurm/uid_1000/job_77", "Slurm's for this job"),
        ("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope", "the container's"),
        ("/sys/fs/cgroup/system.slice/docker-f00.scope", "the container's"),
        ("/sys/fs/cgroup/user.slice/user-1000.slice", "systemd's TasksMax"),
        ("/sys/fs/cgroup/system.slice/preflight.service", "systemd's TasksMax"),
        ("/sys/fs/cgroup/mine", "set there"),
    ],
)
def test_who_sets_the_limit_of_a_cgroup(folder: str, owner: str) -> None:
    assert process_limits.owner_of(folder).startswith(owner)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_files_are_told_by_the_error_alone(number: int) -> None:
    limit = process_limits.hit(process_limits.refusals(), number=number)
    assert "open files" in limit and limit.endswith("are all in use")


def test_a_rank_that_skipped_is_no_culprit_beside_one_that_could_start_nothing() -> None:
    job = made.job(3)
    outcomes = {
        0: Outcome("skipped", reason="no GPU here"),
        1: Outcome("raised", reason="pids.max is 4", slug="no_process", measures_no_more=True),
        2: Outcome("timed_out", 9.0, aborted=True, reason="rank 1 could not continue"),
    }
    (found,) = blame.findings("comm.init", Scope.WORLD, outcomes, job)
    assert found.where["rank"] == 1 and found.code == "comm.init.no_process" and found.severity == "fail"
    assert "pids.max is 4" in found.message and found.noticed_by == "2"


def _cgroup_tree(root: Path, files: Mapping[str, str]) -> str:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text("0::/a.slice/b.service\n")
    (root / "proc" / "self" / "mountinfo").write_text("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (root / "sys/fs/cgroup/a.slice/b.service").mkdir(parents=True)
    for name, text in files.items():
        (root / "sys/fs/cgroup/a.slice" / name).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({}, 0),
        ({"b.service/pids.events": "max 3\n"}, 3),
        ({"pids.events": "max 9\n", "b.service/pids.events": "max 0\n"}, 0),
        ({"pids.events": "max 9\n", "pids.events.local": "max 0\n", "b.service/pids.events.local": "max 0\n"}, 0),
        ({"pids.events.local": "max 2\n", "b.service/pids.events.local": "max 0\n"}, 2),
        ({"b.service/pids.events": "max 5\n", "b.service/pids.events.local": "max 0\n"}, 0),
    ],
    ids=[
        "none",
        "its own",
        "another service's",
        "another service's, since 6.11",
        "of the slice around it",
        "of a cgroup below it",
    ],
)
def test_what_other_services_are_refused_is_not_ours(files: Mapping[str, str], refused: int, tmp_path: Path) -> None:
    assert process_limits.refusals(_cgroup_tree(tmp_path, files)) == refused
