"""File systems that are missing, full, read-only, slow or dead on one of three nodes, and made-up facts of many."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import fuse, running
from tests.faults import ELSEWHERE
from tests.fuse import SILENT, Call, FileSystem
from tests.nodes import as_nodes
from tests.running import Finished

ONLY = ("--only", "node.storage")
AS_NFS = os.pathsep.join(map(str, (running.ROOT / "tests" / "nfs", running.ROOT)))
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts of a rank's own need root and unshare"
)
needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="file systems of a test's own need /dev/fuse")


def run_with(
    folder: Path, *paths: Path, before: Mapping[int, str] | None = None, serving: Sequence[FileSystem] = (),
    settings: Mapping[str, object] | None = None, wrap: Mapping[int, Sequence[str]] | None = None,
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> Finished:  # fmt: skip
    """Three nodes, each with mounts of its own (`before`: lines of a shell), some with words before their command
    (`wrap`), and variables of their `own`. What is served ends with the ranks: what hangs in it can end as well."""
    report = folder / "report"
    report.mkdir()
    run = running.Run(report)
    named = ",".join(map(str, paths))
    words = [*ONLY, "--set", f"node.storage.paths={named}", "--report", str(report), "--deadline", "60"]
    for name, value in (settings or {}).items():
        words += ["--set", f"node.storage.{name}={value}"]
    nodes = as_nodes(3, own or {})
    for rank, env in enumerate(running.plain_ranks(3)):
        first, around = (before or {}).get(rank, ""), (wrap or {}).get(rank, ())
        run.start_rank(rank, words, {**env, **nodes[rank]}, before=first, wrap=around)
    try:
        for process in run.processes:
            process.wait(timeout=running.DEADLINE_S)
    finally:
        for system in serving:
            system.end()
    return run.finish()


def is_told(name: str, finished: Finished, path: Path, node: str = "node-1") -> dict[str, Any]:
    """What is said of one path is what the table has, of this node alone."""
    found = [finding for finding in finished.findings() if finding["where"].get("file") == str(path)]
    assert ELSEWHERE[name].is_told_by(found) and len(found) == 1, finished.told()
    assert ELSEWHERE[name].says in found[0]["message"], finished.told()
    assert found[0]["where"] == {"node": node, "file": str(path)} and "{" not in found[0]["fix"], finished.told()
    return dict(found[0])


def folders(top: Path, *names: str) -> list[Path]:
    made = [top / name for name in names]
    for folder in made:
        folder.mkdir()
    return made


def ours(*places: Path) -> list[Path]:
    return [path for place in places for path in place.glob(".preflight-*")]


@needs_mounts
def test_sound_nodes(tmp_path: Path) -> None:
    """A shared folder, one that is read-only everywhere, a disk of each node's own, and one below a link."""
    shared, data, scratch, below = folders(tmp_path, "shared", "data", "scratch", "below")
    link = tmp_path / "link"
    link.symlink_to(below)
    (data / "dataset").write_text("kept")
    mine = f"mount --bind {data} {data}\nmount -o remount,ro,bind {data}\nmount -t tmpfs none {scratch}"
    paths = (shared, data, scratch, link)
    must = {"shared": shared, "written": link}
    finished = run_with(tmp_path, *paths, before=dict.fromkeys(range(3), mine), settings=must)
    check = finished.check("node.storage")
    assert check["status"] == "pass" and finished.left_over == [], finished.told()
    assert check["seconds"]["max"] < 30, "nobody has waited for the bound of a phase"
    assert ELSEWHERE["storage_own"].is_told_by(check["findings"]), finished.told()
    assert [finding["where"] for finding in check["findings"]] == [{"file": str(scratch)}], finished.told()
    assert ours(shared, below) == [] and [path.name for path in data.iterdir()] == ["dataset"]


@needs_mounts
def test_what_one_node_does_not_have(tmp_path: Path) -> None:
    """And what it has mounted with another option."""
    data, top, sealed, source, nfs = folders(tmp_path, "data", "top", "sealed", "source", "nfs")
    own = f"mount --bind {nfs} {nfs}"
    there = f"{own}\nmount --bind {source} {data}\nmount --bind {source} {top}\nmkdir -p {top}/inside"
    odd = f"{own}\nmount --bind {sealed} {sealed}\nmount -o remount,ro,bind {sealed}"
    as_nfs = {
        rank: {
            "PYTHONPATH": AS_NFS,
            "TEST_NFS": json.dumps({str(nfs): "vers=4.2,soft" if rank == 1 else "vers=4.2,hard"}),
        }
        for rank in range(3)
    }
    before = {0: there, 1: odd, 2: there}
    finished = run_with(tmp_path, data, top / "inside", sealed, nfs, before=before, own=as_nfs)
    is_told("storage_not_mounted", finished, data)
    is_told("storage_missing", finished, top / "inside")
    is_told("storage_read_only", finished, sealed)
    row = ELSEWHERE["storage_soft_nfs"]
    found = [finding for finding in finished.findings(finds=row.finds) if finding["where"] == {"file": str(nfs)}]
    assert row.is_told_by(found) and row.says in found[0]["message"], finished.told()
    assert ours(data, sealed, source) == []


@needs_mounts
def test_too_little_room(tmp_path: Path) -> None:
    full, nearly, none, few = folders(tmp_path, "full", "nearly", "none", "few")
    big = "\n".join(f"mount -t tmpfs -o size=2g none {folder}" for folder in (full, nearly, none, few))
    odd = f"""mount -t tmpfs -o size=1m none {full}
head -c 9999999 /dev/zero >{full}/full 2>/dev/null || [ -s {full}/full ]
mount -t tmpfs -o size=20m none {nearly}
mount -t tmpfs -o size=2g,nr_inodes=3 none {none}
touch {none}/one {none}/two
mount -t tmpfs -o size=2g,nr_inodes=50 none {few}"""
    finished = run_with(tmp_path, full, nearly, none, few, before={0: big, 1: odd, 2: big})
    is_told("storage_full", finished, full)
    is_told("storage_nearly_full", finished, nearly)
    is_told("storage_no_inodes", finished, none)
    is_told("storage_few_inodes", finished, few)


@contextlib.contextmanager
def served(top: Path, **sick: tuple[dict[Call, int], dict[Call, float]]) -> Iterator[dict[str, FileSystem]]:
    """Mounts of one file system: "sound", and others by their names, with what their calls do and how late they are."""
    with contextlib.ExitStack() as stack:
        try:
            made = {"sound": stack.enter_context(fuse.mounted(top / "served-sound"))}
            for name, (does, late) in sick.items():
                mounted = fuse.mounted(top / f"served-{name}", does, late, made["sound"].files)
                made[name] = stack.enter_context(mounted)
        except OSError as error:
            pytest.skip(f"no file system can be served here: {error}")
        yield made


def on_nodes(top: Path, systems: Mapping[str, FileSystem]) -> dict[int, str]:
    """Binds the sick ones on node 1, where the others have the sound one."""
    sound = systems["sound"].folder
    binds = {name: system.folder for name, system in systems.items() if name != "sound"}
    well = "\n".join(f"mount --bind {sound} {top / name}" for name in binds)
    return {0: well, 1: "\n".join(f"mount --bind {source} {top / name}" for name, source in binds.items()), 2: well}


@needs_mounts
@needs_fuse
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv makes root another user")
def test_errors_and_a_slow_disk(tmp_path: Path) -> None:
    """The user of node 1 is not root, and may read our files."""
    user = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=+dac_read_search"]
    may_read = [*user, "--ambient-caps=+dac_read_search"]
    quota, broken, stale, slow, denied = paths = folders(tmp_path, "quota", "broken", "stale", "slow", "denied")
    with served(
        tmp_path,
        quota=({Call.WRITE: 122}, {}),
        broken=({Call.FSYNC: 5}, {}),
        stale=({Call.OPENDIR: 116}, {}),
        slow=({}, {Call.FSYNC: 0.3}),
    ) as systems:
        finished = run_with(tmp_path, *paths, before=on_nodes(tmp_path, systems), wrap={1: may_read})
        assert systems["sound"].names == []
    is_told("storage_quota", finished, quota)
    is_told("storage_io_error", finished, broken)
    is_told("storage_stale", finished, stale)
    is_told("storage_denied", finished, denied)
    is_told("storage_slow_fsync", finished, slow)


@needs_mounts
@needs_fuse
def test_dead_mounts(tmp_path: Path) -> None:
    """Two die in the hand of one node: the run takes as long as one of them, and the other paths are judged."""
    stat, fsync, other = folders(tmp_path, "stat", "fsync", "other")
    at_unlink = {Call.FSYNC: SILENT, Call.UNLINK: SILENT}
    with served(tmp_path, stat=({Call.LOOKUP: SILENT}, {}), fsync=(at_unlink, {})) as systems:
        finished = run_with(
            tmp_path, stat, fsync, other, before=on_nodes(tmp_path, systems), serving=list(systems.values()),
            settings={"patience_s": 1},
        )  # fmt: skip
    is_told("storage_dead_stat", finished, stat)
    is_told("storage_dead_fsync", finished, fsync)
    assert len(finished.findings()) == 2 and finished.left_over == [], finished.told()
    check = finished.check("node.storage")
    (left,) = [finding for finding in check["findings"] if finding["severity"] == "info"]
    assert ELSEWHERE["storage_left"].is_told_by([left]), finished.told()
    assert left["where"]["file"].startswith(f"{fsync}/.preflight-"), finished.told()
    assert check["outcomes"] == [] and check["seconds"]["max"] < 30
    assert ours(other) == []


@needs_mounts
@needs_fuse
def test_data_that_one_node_does_not_have(tmp_path: Path) -> None:
    """Nobody may write to it: what is mounted there decides, also where most nodes have an empty folder instead."""
    data, top = folders(tmp_path, "data", "top")
    (few,) = folders(top, "few")
    with served(tmp_path) as systems:
        there = {path: f"mount --bind {systems['sound'].folder} {path}\n{sealed(path)}" for path in (data, few)}
        most = f"{there[data]}\nmount -t tmpfs -o size=2g none {top}\nmkdir {few}\n{sealed(top)}"
        before = {0: most, 1: f"mount --bind {data} {data}\n{sealed(data)}\n{there[few]}", 2: most}
        finished = run_with(tmp_path, data, few, before=before)
    is_told("storage_data_not_mounted", finished, data)
    found = [finding for finding in finished.findings() if finding["where"]["file"] == str(few)]
    assert ELSEWHERE["storage_data_on_one_node"].is_told_by(found), finished.told()
    assert [finding["where"]["node"] for finding in found] == ["node-0", "node-2"], finished.told()
    assert all(ELSEWHERE["storage_data_on_one_node"].says in finding["message"] for finding in found), finished.told()


def sealed(path: Path) -> str:
    return f"mount -o remount,ro,bind {path}"
