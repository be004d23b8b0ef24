"""What `preflight debug` keeps, sets, and puts into ranks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from preflight.debug import command, environment, stack_sample, stall
from preflight.debug.injected import preflight_debug_rank
from preflight.debug.job import RunningJob
from preflight.debug.output import KeptOutput
from preflight.debug.ranks import Ranks, recorder_path
from preflight.debug.ranks import _status as read_status
from preflight.debug.stall import StallDetector
from preflight.explain.command import explain_paths
from tests import made
from tests.running import environment as clean


def test_the_beginning_and_the_end_of_much_output_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    kept = KeptOutput(str(path), head=10, tail=4)
    kept.write(b"0123456789" + b"abcd" + b"efgh" + b"ijkl" + b"mn")
    assert path.read_bytes() == b"0123456789"
    assert (tmp_path / "job.out.before").read_bytes().endswith(b"ijkl")
    assert (tmp_path / "job.out.last").read_bytes().endswith(b"mn")
    assert b"kept nothing of" in (tmp_path / "job.out.last").read_bytes()


def test_a_full_disk_ends_the_keeping_only(tmp_path: Path) -> None:
    (tmp_path / "job.out").symlink_to("/dev/full")
    kept = KeptOutput(str(tmp_path / "job.out"))
    kept.write(b"words")
    kept.write(b"more")
    assert kept.failed == "No space left on device"


def test_of_a_job_that_ended_well_only_slower_paths_are_told() -> None:
    slow = made.finding("warn", code="explain.degraded_path")
    both = made.made_report(made.result(made.finding(code="explain.app_crash"), slow))
    kept = command._only_slower_paths(both)
    assert (kept.verdict, kept.exit_code, kept.findings, kept.checks[0].status) == ("warn", 0, [slow], "warn")
    none = command._only_slower_paths(made.made_report(made.result(made.finding(code="explain.app_crash"))))
    assert (none.verdict, none.exit_code, none.findings, none.checks[0].status) == ("pass", 0, [], "pass")


def test_more_than_can_be_read_in_time_is_not_explained() -> None:
    command._stop_at(time.monotonic() + 60)(1 << 20, 2 << 20)
    with pytest.raises(command.TooMuch, match="1 of 2 MiB"):
        command._stop_at(time.monotonic() - 1)(1 << 20, 2 << 20)


def test_what_the_user_has_set_stays() -> None:
    user = {"NCCL_DEBUG": "WARN", "PYTHONPATH": "/mine", "PET_TEE": "1", "HOME": "/root"}
    prepared = environment.prepared(user, "/left", ["torchrun", "train.py"])
    assert prepared.environ["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG_FILE" not in prepared.environ, "he wants NCCL's words on his screen"
    assert prepared.environ["PYTHONPATH"] == f"{environment.HOOK}:/mine"
    assert (prepared.environ["PET_TEE"], prepared.environ["PET_LOG_DIR"]) == ("1", "/left/ranks")
    assert prepared.kept == ("NCCL_DEBUG=WARN", "PET_TEE=1")


def test_the_environment_of_a_user_who_has_set_nothing() -> None:
    prepared = environment.prepared({}, "/left", ["torchrun", "train.py"])
    assert prepared.environ["NCCL_DEBUG_FILE"] == "/left/nccl/%h.%p.log"
    assert (prepared.environ["NCCL_DEBUG"], prepared.environ["PET_TEE"]) == ("INFO", "3")
    assert prepared.kept == ()


@pytest.mark.parametrize("words", [["-r", "3"], ["-r3"], ["--redirects=3"], ["--redirects", "3"]])
def test_what_the_user_redirects_does_not_come_to_the_screen(words: list[str]) -> None:
    assert "PET_TEE" not in environment.prepared({}, "/left", ["torchrun", *words, "train.py"]).environ


def test_places_of_the_users_own_are_read_too() -> None:
    command = ["torchrun", "--log-dir", "logs", "train.py"]
    assert environment.elsewhere({"NCCL_DEBUG_FILE": "/n/%h.%p"}, command) == ["logs", "/n/*.*"]


# The hook


def run_hooked(folder: Path, code: str, *paths: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    for name in environment.FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    path = os.pathsep.join([environment.HOOK, *map(str, paths)])
    hooked = {**clean(**env), "PREFLIGHT_DEBUG": str(folder), "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], env=hooked, capture_output=True, text=True, timeout=60)


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "records").iterdir())]


def test_a_rank_notes_who_it_is_and_what_it_raised(tmp_path: Path) -> None:
    done = run_hooked(tmp_path, "def load():\n  raise ValueError('odd')\nload()", RANK="3", WORLD_SIZE="4")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: odd\n")
    (record,) = records(tmp_path)
    about = record["exception"]
    assert isinstance(about, dict)
    assert (record["rank"], record["world_size"], about["type"], about["message"]) == (3, 4, "ValueError", "odd")
    assert about["traceback"].count("in load") == 1
    assert "ended" in record


def test_who_joins_a_process_group_is_a_rank(tmp_path: Path) -> None:
    """Nobody has numbered it: Lightning's own launcher, a script that numbers itself. Before, it is none."""
    code = f"""
import os, torch.distributed as dist
before = os.listdir({str(tmp_path / "records")!r})
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raise ValueError(before)"""
    done = run_hooked(tmp_path, code)
    assert done.returncode == 1
    (record,) = records(tmp_path)
    about = record["exception"]
    assert isinstance(about, dict)
    assert (record["rank"], record["world_size"], about["message"]) == (0, 1, "[]")
    assert "ended" in record


def test_who_was_forked_before_it_joined_is_a_rank(tmp_path: Path) -> None:
    """As a notebook's launcher does it. What it was forked from is none, and has no thread of ours: Python 3.12 warns
    of a fork beside one."""
    code = """
import multiprocessing, sys, torch.distributed as dist
def train():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    raise ValueError("odd")
process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
print(process.exitcode, len(sys._current_frames()))"""
    done = run_hooked(tmp_path, code)
    assert done.stdout == "1 1\n", done.stderr
    (record,) = records(tmp_path)
    about = record["exception"]
    assert isinstance(about, dict)
    assert (record["rank"], about["message"]) == (0, "odd")
    assert "ended" in record


def test_a_rank_whose_script_is_given_a_launchers_name_is_a_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    command = [sys.executable, str(tmp_path / "train.py"), "--strategy", "deepspeed"]
    run_hooked(tmp_path, f"import os, sys; os.environ['RANK'] = '5'; os.execv(sys.executable, {command!r})")
    (record,) = records(tmp_path)
    assert record["rank"] == 5


def test_nobody_else_is_touched(tmp_path: Path) -> None:
    """Neither who has no rank, nor a launcher that srun has numbered, nor what a rank starts."""
    run_hooked(tmp_path, "pass")
    (tmp_path / "torchrun").write_text("pass")
    launcher = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])"
    assert records(tmp_path) == []
    begin = f"import os, sys; os.execv(sys.executable, [sys.executable, {str(tmp_path / 'torchrun')!r}])"
    run_hooked(tmp_path, f"import os; os.environ['SLURM_PROCID'] = '0'; {begin}")
    assert records(tmp_path) == []
    child = launcher.replace("sys.argv[1]", repr(str(tmp_path / "torchrun"))).replace("torchrun'", "child.py'")
    (tmp_path / "child.py").write_text("raise ValueError('of the child')")
    run_hooked(tmp_path, child, RANK="0")
    (record,) = records(tmp_path)
    assert "exception" not in record


def test_the_users_own_sitecustomize_and_excepthook_stay(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(
        "import sys\nprint(__name__)\nsys.excepthook = lambda kind, *_: print('mine', kind.__name__)\n"
    )
    done = run_hooked(tmp_path, "1 / 0", tmp_path / "own", RANK="0")
    assert (done.stdout, done.stderr) == ("sitecustomize\nmine ZeroDivisionError\n", "")
    (record,) = records(tmp_path)
    assert "exception" in record


@pytest.mark.parametrize("rank", [{"RANK": "0"}, {}], ids=["numbered", "joining"])
def test_a_rank_that_is_asked_while_python_ends_ends_as_it_would(rank: dict[str, str], tmp_path: Path) -> None:
    """libc calls what was registered with it when Python has put all signals back."""
    joins = "" if rank else "import torch.distributed; "
    code = f"import ctypes; c = ctypes.CDLL(None); {joins}c.__cxa_atexit(c['raise'], {int(stack_sample.TELL)}, None)"
    done = run_hooked(tmp_path, code, **rank)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_not_there_breaks_nothing(tmp_path: Path) -> None:
    env = {**clean(RANK="0"), "PREFLIGHT_DEBUG": str(tmp_path / "gone"), "PYTHONPATH": environment.HOOK}
    done = subprocess.run([sys.executable, "-c", "print('fine')"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize(("ends", "code"), [(lambda: os._exit(7), 7), (lambda: os.kill(os.getpid(), 9), -9)])
def test_how_a_process_ended_is_known_until_its_parent_asks(ends: Callable[[], None], code: int) -> None:
    pid = os.fork()
    if not pid:
        ends()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert read_status(pid) == code
    os.waitpid(pid, 0)
    assert read_status(pid) is None


@pytest.mark.parametrize(
    ("spent_s", "runs", "works"), [(0.0, 0, False), (0.2, 0, False), (0.4, 0, True), (0.0, 2, False), (0.0, 3, True)]
)
def test_a_process_works_that_uses_its_core_or_is_mostly_seen_at_it(spent_s: float, runs: int, works: bool) -> None:
    """Of 3 s, and of five looks."""
    assert stall._works([(spent_s * look / 4, look < runs) for look in range(5)]) is works


def test_a_rank_that_the_kernel_did_not_tell_of_is_no_missing_one(tmp_path: Path) -> None:
    """Its record is there, and did not come by rename while it was watched for: as on a folder of another machine."""
    (tmp_path / "records").mkdir()
    ranks = Ranks(str(tmp_path))
    record = {"preflight_record": 1, "rank": 3, "pid": os.getpid(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
    (tmp_path / "records" / f"{os.uname().nodename}.1.json").write_text(json.dumps(record))
    silent = SimpleNamespace(code=None, latest_output=time.monotonic(), pid=os.getpid(), wait=lambda *_: [])
    assert StallDetector(3.0, str(tmp_path)).check(cast(RunningJob, silent), ranks) == ("", False)
    assert [rank.rank for rank in ranks.living] == [3]


def test_what_was_asked_of_a_job_that_goes_on_is_no_trace_of_a_later_failure(tmp_path: Path) -> None:
    """A rank that has raised has written its flight recorder itself."""
    for name in environment.FOLDERS:
        (tmp_path / name).mkdir()
    raised: list[dict[str, object]] = [{}, {"exception": {}}]
    ranks, own = Ranks(str(tmp_path)), {"pid": os.getpid(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
    for rank, more in enumerate(raised):
        (tmp_path / "records" / f"{os.uname().nodename}.{rank}.json").write_text(
            json.dumps({"preflight_record": 1, "rank": rank, **own, **more})
        )
    ranks.list_records()
    for watched in ranks.living:
        Path(recorder_path(str(tmp_path), watched)).write_text("{}")
    ranks.forget_recorders()
    assert [path.name.rpartition(".rank-")[2] for path in (tmp_path / "recorded").iterdir()] == ["1.json"]


@pytest.mark.parametrize(
    ("end", "slug"), [("hung and was ended, status 124", "slow_rank_timeout"), ("ended, status 1", "external_signal")]
)
def test_a_launcher_that_preflight_has_ended_was_not_ended_from_outside(end: str, slug: str, tmp_path: Path) -> None:
    told = "api.py:753] Received 15 death signal, shutting down workers\n"
    told += "api.py:1028] Sending process 9 closing signal SIGTERM\nSignalException: Process 7 got signal: 15\n"
    (tmp_path / "job.out").write_text(told)
    (tmp_path / "job.end").write_text(f"preflight debug: job {end}, signals passed on: none\n")
    report = explain_paths([str(tmp_path)])
    assert report.checks[0].findings[0].code == f"explain.{slug}"


def test_both_of_torchs_recorders_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's, which only a build for CUDA has, and gloo's, which is empty beside it."""
    nccl = {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": 6}}, "entries": [{"pg_id": 0}]}
    gloo = {"version": "2.10", "entries": [{"pg_id": 1}]}
    dumps = {
        "_dump_nccl_trace_json": lambda *_: json.dumps(nccl).encode(),
        "_dump_fr_trace_json": lambda *_: json.dumps(gloo).encode(),
    }
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", cast(ModuleType, SimpleNamespace(**dumps)))
    assert preflight_debug_rank._recorded() == {**nccl, "entries": [*nccl["entries"], *gloo["entries"]]}
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", cast(ModuleType, SimpleNamespace()))
    assert preflight_debug_rank._recorded() == {}
