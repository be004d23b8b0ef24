"""The folder of `--checkpoint` on three nodes, of which the second has other mounts; and what stays there."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import fuse, running
from tests.faults import ELSEWHERE
from tests.faults.row import briefly_alone, sick
from tests.fuse import SILENT, Call, FileSystem
from tests.nodes import as_nodes
from tests.running import Finished

ONLY = ("--only", "train.checkpoint", "--set", "train.checkpoint.gib=0.02", "--set", "train.checkpoint.forms=ddp/full")
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of a rank's own need root and unshare"
)


def run_with(
    top: Path, folder: Path, *words: str, before: Mapping[int, str] | None = None, world: int = 3,
    serving: Sequence[FileSystem] = (), own: Mapping[str, str] | None = None, nodes: bool = True,
    wrap: Mapping[int, Sequence[str]] | None = None,
) -> Finished:  # fmt: skip
    report = top / "report"
    report.mkdir()
    run = running.Run(report, 120)
    arguments = [*ONLY, "--checkpoint", str(folder), "--report", str(report), "--deadline", "120", *words]
    alone = {rank: {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} for rank in range(world)}
    places = as_nodes(world, alone) if nodes else {}
    for rank, env in enumerate(running.plain_ranks(world)):
        first, around = (before or {}).get(rank, ""), (wrap or {}).get(rank, ())
        environ = briefly_alone({**env, **(own or {}), **places.get(rank, {})})
        run.start_rank(rank, arguments, environ, before=first, wrap=around)
    try:
        for process in run.processes:
            process.wait(timeout=running.HUNG_S)
    finally:
        for system in serving:
            system.end()
    return run.finish()


def is_told(name: str, finished: Finished, folder: Path) -> dict[str, Any]:
    """And nothing of ours is left in the folder."""
    row = ELSEWHERE[name]
    found = finished.findings(finds=row.finds)
    mine = [finding for finding in found if f"{finding['severity']} {finding['code']}" in row.finds]
    assert row.is_told_by(found) and len(mine) == 1, finished.told()
    assert row.says in mine[0]["message"] and "{" not in mine[0]["fix"], finished.told()
    assert finished.report["exit_code"] == row.exit_code and finished.left_over == [], finished.told()
    assert list(folder.glob(".preflight-*")) == [], finished.told()
    return dict(mine[0])


def made(top: Path) -> Path:
    folder = top / "checkpoints"
    folder.mkdir()
    (folder / "step-100.pt").write_text("the job's own")
    return folder


def test_three_nodes_with_one_folder_are_sound(tmp_path: Path) -> None:
    folder = made(tmp_path)
    finished = run_with(tmp_path, folder)
    check = finished.check("train.checkpoint")
    assert check["status"] == "pass" and check["findings"] == [] and finished.left_over == [], finished.told()
    assert "ddp/full loaded 3 times: equal to the last bit" in check["summary"], finished.told()
    assert "on 3 ranks; writes " in check["summary"] and " per node, " in check["summary"], finished.told()
    assert [path.name for path in folder.iterdir()] == ["step-100.pt"]


@needs_mounts
@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("checkpoint_full", "mount -t tmpfs -o size=20m none {}"),
        ("checkpoint_read_only", "mount --bind {0} {0}\nmount -o remount,ro,bind {0}"),
        ("checkpoint_not_shared", "mount -t tmpfs -o size=2g none {}"),
    ],
)
def test_what_one_node_has_there(name: str, odd: str, tmp_path: Path) -> None:
    folder = made(tmp_path)
    finished = run_with(tmp_path, folder, before={1: odd.format(folder)})
    assert is_told(name, finished, folder)["where"] == {"node": "node-1", "file": str(folder)}, finished.told()
    assert [path.name for path in folder.iterdir()] == ["step-100.pt"]


@needs_mounts
@pytest.mark.more
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv makes root another user")
def test_another_user(tmp_path: Path) -> None:
    folder = made(tmp_path)
    user = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_read_search"]
    finished = run_with(tmp_path, folder, wrap={1: [*user, "--ambient-caps=+dac_read_search"]})
    is_told("checkpoint_of_another_user", finished, folder)


@needs_mounts
def test_a_dead_server(tmp_path: Path) -> None:
    folder = made(tmp_path)
    try:
        with fuse.mounted(tmp_path / "served", {Call.LOOKUP: SILENT}, {}) as system:
            bind = f"mount --bind {system.folder} {folder}"
            finished = run_with(tmp_path, folder, before={1: bind}, serving=[system])
    except OSError as error:
        pytest.skip(f"no file system can be served here: {error}")
    is_told("checkpoint_no_answer", finished, folder)


@needs_mounts
@pytest.mark.parametrize(
    ("name", "changes", "form"),
    [
        ("checkpoint_flips_on_read", {Call.READ: fuse.flipped("")}, "ddp/full"),
        pytest.param("checkpoint_flips_on_write", {Call.WRITE: fuse.flipped("")}, "ddp/full", marks=pytest.mark.more),
        ("checkpoint_server_flips", {Call.READ: fuse.flipped("")}, "ddp/full"),
        pytest.param(
            "checkpoint_one_file_flips", {Call.WRITE: fuse.flipped("full.")}, "ddp/full", marks=pytest.mark.more
        ),
        pytest.param(
            "checkpoint_one_shard_flips", {Call.READ: fuse.flipped("__1_0")}, "fsdp2/dcp", marks=pytest.mark.more
        ),
    ],
)
def test_a_medium_that_turns_bits_and_no_optimizer(
    name: str, changes: Mapping[Call, fuse.Change], form: str, tmp_path: Path
) -> None:
    """Node 1 has another mount of the same files than the others, unless the row is of all nodes."""
    folder = made(tmp_path)
    of_node = "node" in ELSEWHERE[name].culprit
    words = ("--set", f"train.checkpoint.forms={form}")
    try:
        with contextlib.ExitStack() as mounts:
            sound = mounts.enter_context(fuse.mounted(tmp_path / "sound", changes={} if of_node else changes))
            second = fuse.mounted(tmp_path / "odd", changes=changes, files=sound.files, folders=sound.within)
            odd = mounts.enter_context(second)
            before = {rank: f"mount --bind {(odd if rank == 1 else sound).folder} {folder}" for rank in range(3)}
            finished = run_with(tmp_path, folder, *words, before=before, serving=[sound, odd])
    except OSError as error:
        pytest.skip(f"no file system can be served here: {error}")
    is_told(name, finished, folder)


@pytest.mark.parametrize(
    ("name", "deed", "world"),
    [
        ("checkpoint_no_rename", "no_rename", 2),
        ("checkpoint_slow_node", "slow_fsync@1", 3),
    ],
)
def test_what_a_file_system_does(name: str, deed: str, world: int, tmp_path: Path) -> None:
    folder = made(tmp_path)
    is_told(name, run_with(tmp_path, folder, own=sick(deed), world=world), folder)


@needs_mounts
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """One rank, whose mounts are its own."""
    folder = made(tmp_path)
    before = {0: f"mount -t tmpfs -o size=90m none {folder}"}
    finished = run_with(tmp_path, folder, before=before, own=sick("filled"), world=1, nodes=False)
    is_told("checkpoint_filled", finished, folder)


def test_what_cannot_be_removed_and_what_is_not_installed(tmp_path: Path) -> None:
    folder = made(tmp_path)
    words = ("--set", "train.checkpoint.forms=ddp/full,fsdp2/dcp")
    environ = running.without_numpy(sick("stays"))
    finished = run_with(tmp_path, folder, *words, own=environ, world=2, nodes=False)
    assert [path.name for path in folder.glob(".preflight-*")], finished.told()
    for path in folder.glob(".preflight-*"):
        shutil.rmtree(path)
    found = finished.findings(finds=("info train.checkpoint.not_removed",))
    for name in ("checkpoint_left", "checkpoint_no_dcp"):
        row = ELSEWHERE[name]
        own = [each for each in found if f"{each['severity']} {each['code']}" in row.finds]
        assert row.is_told_by(own) and row.says in own[0]["message"], finished.told()
    assert len(found) == 2, finished.told()


def test_forms_that_cannot_be_made_are_no_pass(tmp_path: Path) -> None:
    """By default, and without NumPy on one rank of two: that fails with --strict, as any skip does."""
    run = running.Run(tmp_path, 120)
    words = ["--only", "train.checkpoint", "--strict", "--report", str(tmp_path), "--deadline", "120"]
    for rank, env in enumerate(running.plain_ranks(2)):
        run.start_rank(rank, words, running.without_numpy(env) if rank else env, wrap=["env"])
    finished = run.finish()
    check = finished.check("train.checkpoint")
    assert (check["status"], finished.report["verdict"]) == ("skip", "pass"), finished.told()
    assert finished.exit_codes == [1, 1], finished.told()
    (found,) = check["findings"]
    assert found["code"] == "train.checkpoint.no_dcp" and found["not_measured"], finished.told()
    names = "fsdp2/dcp, fsdp/full and fsdp2/async not made: torch needs NumPy for it, which rank"
    assert check["skipped"].startswith(f"in part: {names}"), finished.told()


@pytest.mark.parametrize(("who", "world"), [("worker", 1), ("supervisors", 2)])
@pytest.mark.more
def test_what_was_written_goes_after_a_kill(who: str, world: int, tmp_path: Path) -> None:
    """While rank 0's disk is slow, so that there is something in the folder, and removing it takes a moment."""
    folder = made(tmp_path)
    run = running.Run(tmp_path, 60)
    words = [*ONLY, "--checkpoint", str(folder), "--report", str(tmp_path), "--deadline", "60"]
    words += ["--set", "train.checkpoint.gib=1"]
    for rank, env in enumerate(running.plain_ranks(world)):
        run.start_rank(rank, words, {**env, **sick("slow_fsync@0,slow_removal")})
    end = time.monotonic() + running.HUNG_S
    while not (parts := list(folder.glob(".preflight-*/part-*"))) and time.monotonic() < end:
        time.sleep(0.01)  # nobody tells of a file
    assert parts
    if who == "worker":
        os.kill(_writer_of(run, parts[0]), signal.SIGKILL)
    else:
        for process in run.processes:
            process.kill()
    finished = run.finish()
    while (left := list(folder.glob(".preflight-*"))) and time.monotonic() < end:
        time.sleep(0.01)
    assert left == [] and [path.name for path in folder.iterdir()] == ["step-100.pt"], finished.told()


def _writer_of(run: running.Run, part: Path) -> int:
    """The worker: the parent of the process that has the file open."""
    return next(
        process.ppid() for process in run.marked() if any(file.path == str(part) for file in process.open_files())
    )
