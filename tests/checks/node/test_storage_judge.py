"""node.storage on made-up facts: many nodes, sound kinds of them, and what cannot be made on one machine."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from preflight import testing
from preflight.check import Context, NotApplicable, Run
from preflight.checks.node import storage
from preflight.checks.node.storage import Facts, mounts, one_file, path_list, sameness
from preflight.checks.node.storage.path_probe import PathFacts, PathProbe
from preflight.engine.process_group import GROUP_TIMEOUT
from preflight.errors import UsageError
from preflight.planning import registry
from tests import made

PATH = "/data"
NFS: mounts.Mount = {"point": PATH, "type": "nfs4", "source": "server:/data", "options": ["hard", "vers=4.2"]}
ROOT: mounts.Mount = {"point": "/", "type": "ext4", "source": "/dev/sda2", "options": []}
SCRATCH: mounts.Mount = {"point": PATH, "type": "xfs", "source": "/dev/nvme0n1p1", "options": []}
WRITERS = 5


def path(**changed: Any) -> PathFacts:
    """One node's, of a file system of a server."""
    sound: dict[str, Any] = {
        "mount": NFS, "opened": True, "size_mib": 65536, "free_mib": 65536, "inodes": 65536, "read_only": False,
        "stat_ms": [0.5, 1.0], "write_ms": [0.01, 0.02], "fsync_ms": [2.0, 5.0], "written": True, "failed": None,
        "hang": None, "seen": {}, "left": "",
    }  # fmt: skip
    return cast("PathFacts", {**sound, **changed})


def read_only(**changed: Any) -> PathFacts:
    return path(**{"read_only": True, "written": False, "fsync_ms": [], "write_ms": [], **changed})


def failing(call: str, error: str, text: str, **changed: Any) -> PathFacts:
    opened = call != "open"
    return path(failed={"call": call, "error": error, "text": text}, written=False, opened=opened, **changed)


def hanging(call: str, seconds: float = 15.0, *, stuck: bool = False) -> PathFacts:
    return path(hang={"call": call, "seconds": seconds, "stuck": stuck}, written=False, opened=call != "open")


def world(*nodes: PathFacts, groups: Mapping[int, int] | None = None) -> dict[int, Facts]:
    """A rank a node. `groups`: which of them see the same files, by a number; all do if it is not given."""
    writers = list(range(0, len(nodes), max(1, len(nodes) // WRITERS)))
    facts: dict[int, Facts] = {}
    for rank, view in enumerate(nodes):
        seen = {
            str(writer): "yes" if (groups or {}).get(rank, 0) == (groups or {}).get(writer, 0) else "no"
            for writer in writers
            if writer != rank and nodes[writer]["written"] and view["opened"]
        }
        facts[rank] = {"paths": {PATH: {**view, "seen": view["seen"] or seen}}, "writers": writers}
    return facts


def judged(facts: Mapping[int, Facts], **settings: object) -> list[dict[str, Any]]:
    nodes = {f"node-{rank}": [rank] for rank in facts}
    return testing.judge(storage, facts, nodes=nodes, settings={"paths": PATH, **settings})


def above_info(facts: Mapping[int, Facts], **settings: object) -> list[str]:
    return [
        f"{finding['severity']} {finding['code']}"
        for finding in judged(facts, **settings)
        if finding["severity"] != "info"
    ]


each_own = {rank: rank for rank in range(8)}


@pytest.mark.parametrize(
    "facts",
    [
        world(*[path()] * 1024),
        world(path()),
        world(*[path()] * 2),
        world(*[read_only()] * 8),
        world(*[failing("create", "EACCES", "Permission denied")] * 8),
        world(*[path(mount=SCRATCH)] * 8, groups=each_own),
        world(*[path(mount={**SCRATCH, "source": f"/dev/nvme{n}n1p1"}) for n in range(8)], groups=each_own),
        world(*[read_only(mount={**NFS, "source": f"10.0.0.{n}:/data", "type": f"nfs{'4' * (n % 2)}"})
                for n in range(8)]),
        world(*[path(mount={**NFS, "source": f"server:/scratch/{n}"}) for n in range(2)], groups=each_own),
        world(*[path(mount={**NFS, "source": f"server:/scratch/{n}"}) for n in range(8)], groups=each_own),
        world(*[path(size_mib=None, free_mib=None, inodes=None, mount=None, fsync_ms=[])] * 3),
        world(*[path(fsync_ms=[1.0 + n * n / 4, 50.0]) for n in range(16)]),
        world(path(), path(), path(fsync_ms=[90.0, 99.0], stat_ms=[19.0, 19.0])),
        world(*[path(fsync_ms=[700.0, 900.0])] * 8),
        world(*[read_only(free_mib=0, inodes=0)] * 4),
        world(*[path(inodes=0)] * 4),
        world(*[path(free_mib=1024, inodes=1000)] * 4),
        world(path(), path(mount={**NFS, "point": "/mnt/nfs"}), path()),
    ],
    ids=["1024", "one node", "two", "data set", "data set of root's", "scratch", "unlike disks", "several addresses",
         "two folders of a server",
         "eight folders of a server", "nothing counted", "unlike speeds", "near the floor",
         "slow for all", "full data", "inodes made when needed",
         "just enough", "another mount point"],
)  # fmt: skip
def test_sound_nodes_give_no_finding(facts: dict[int, Facts]) -> None:
    assert above_info(facts) == []


SICK = [
    ("fail missing", failing("open", "ENOENT", "No such file or directory", mount=ROOT),
     "/data cannot be opened: No such file or directory; expected a folder"),
    ("fail missing", failing("open", "ENOTDIR", "Not a directory"), "Not a directory; expected a folder"),
    ("fail denied", failing("open", "EACCES", "Permission denied"), "/data cannot be opened: Permission denied"),
    ("fail broken", failing("open", "EIO", "Input/output error"),
     "/data cannot be opened: Input/output error (nfs4 from server:/data at /data); expected a folder"),
    ("fail broken", failing("fsync", "EIO", "Input/output error"), "fsync in /data failed with Input/output error ("),
    ("fail no_answer", hanging("open"),
     "open in /data did not return within 15 s; expected milliseconds from nfs4 from server:/data at /data"),
    ("fail no_answer", hanging("fsync", stuck=True), "the process that asked cannot be killed (state D)"),
    ("fail space", failing("write", "ENOSPC", "No space left on device"), "write in /data failed with No space left"),
    ("fail inodes_left", failing("create", "ENOSPC", "No space left on device", inodes=0), "expected to write 4 KiB"),
    ("fail quota", failing("write", "EDQUOT", "Disk quota exceeded"), "write in /data failed with Disk quota exceeded"),
    ("warn space", path(free_mib=1023, size_mib=2000),
     "/data has 1,023 MiB free of 2,000, expected 1,024 MiB"),
    ("warn inodes_left", path(inodes=999), "/data has room for 999 more files (inodes), expected 1,000"),
    ("fail read_only", read_only(),
     "/data is read-only (nfs4 from server:/data at /data), expected to write to it, as on 7 of 8 nodes"),
    ("fail read_only", failing("create", "EROFS", "Read-only file system"), "expected to write to it, as on 7 of 8"),
    ("warn denied", failing("create", "EACCES", "Permission denied"), "/data may not be written to ("),
    ("warn slow", path(fsync_ms=[101.0, 300.0]),
     "fsync in /data takes 101 ms at best (nfs4 from server:/data at /data), expected about 2 ms as on most nodes"),
    ("warn slow", path(stat_ms=[21.0, 300.0]), "stat in /data takes 21 ms at best"),
]  # fmt: skip


@pytest.mark.parametrize(("finds", "odd", "says"), SICK, ids=[f"{finds}: {says[:30]}" for finds, _, says in SICK])
@pytest.mark.parametrize("place", [0, 3])
def test_the_node_is_named(finds: str, odd: PathFacts, says: str, place: int) -> None:
    (found,) = judged(world(*[odd if rank == place else path() for rank in range(8)]))
    assert f"{found['severity']} {found['code']}" == finds.replace(" ", " node.storage.")
    assert found["where"] == {"node": f"node-{place}", "file": PATH} and "{" not in found["fix"]
    assert says in found["message"]


@pytest.mark.parametrize(("finds", "odd", "says"), SICK[:12], ids=[f"{case[0]}: {case[2][:30]}" for case in SICK[:12]])
def test_what_all_nodes_have_is_said_once(finds: str, odd: PathFacts, says: str) -> None:
    """It is the path, or its server. No room is no failure where nobody is known to write."""
    (found,) = judged(world(*[odd] * 8))
    if finds in ("fail space", "fail inodes_left", "fail quota"):
        assert found["severity"] == "warn" and found["message"].endswith("4 KiB, unless the job only reads there")
        (found,) = judged(world(*[odd] * 8), written=PATH)
    assert f"{found['severity']} {found['code']}" == finds.replace(" ", " node.storage.")
    assert found["where"] == {"file": PATH} and found["message"].startswith("on all 8 nodes ")
    assert says in found["message"]


@pytest.mark.parametrize("place", [0, 1, 1000])
def test_one_of_many_nodes_lacks_the_mount(place: int) -> None:
    """Also where it is one of those that wrote a file."""
    nodes = [path(mount=ROOT) if rank == place else path() for rank in range(1024)]
    (found,) = judged(world(*nodes, groups={place: 1}))
    assert (found["severity"], found["code"]) == ("fail", "node.storage.not_shared")
    assert found["where"] == {"node": f"node-{place}", "file": PATH}
    assert found["message"] == (
        "/data is not what the other nodes have: none of their files was seen within 5 s (it is ext4 from /dev/sda2 "
        "at /), expected nfs4 from server:/data at /data as on 1,023 of 1,024 nodes"
    )


def test_two_halves_name_nobody() -> None:
    halves = {rank: rank % 2 for rank in range(6)}
    (found,) = judged(world(*[path()] * 6, groups=halves))
    assert (found["severity"], found["where"]) == ("warn", {"file": PATH})
    assert "node-0 and 2 more, node-1 and 2 more each see their own files" in found["message"]
    assert above_info(world(*[path()] * 6, groups=halves), shared=PATH) == ["fail node.storage.not_shared"]


def test_one_against_one_names_nobody() -> None:
    (own, found) = judged(world(path(), path(mount=ROOT), groups={1: 1}))
    assert own["severity"] == "info"
    assert (found["severity"], found["code"], found["where"]) == (
        "warn",
        "node.storage.different_mount",
        {"file": PATH},
    )
    assert "nfs4 from server:/data at /data on node-0, ext4 from /dev/sda2 at / on node-1" in found["message"]


def test_most_nodes_lack_the_mount() -> None:
    """Nobody can tell from the numbers: the node that has it is not blamed."""
    nodes = [path(mount=NFS if rank == 0 else ROOT) for rank in range(4)]
    (found,) = [finding for finding in judged(world(*nodes, groups=each_own)) if finding["severity"] != "info"]
    assert (found["severity"], found["code"], found["where"]) == (
        "warn",
        "node.storage.different_mount",
        {"file": PATH},
    )
    assert (
        "ext4 from /dev/sda2 at / on node-1 and 2 more, nfs4 from server:/data at /data on node-0" in (found["message"])
    )


def test_a_server_that_does_not_share() -> None:
    """All have mounted the same, and see only their own: a cache, or a server's fault. Nobody is odd."""
    (found,) = judged(world(*[path()] * 4, groups=each_own))
    assert (found["severity"], found["code"], found["where"]) == ("warn", "node.storage.not_shared", {"file": PATH})


def test_own_disks_are_a_failure_where_one_was_expected() -> None:
    facts = world(*[path(mount=SCRATCH)] * 4, groups=each_own)
    (info,) = judged(facts)
    assert (info["severity"], info["code"]) == ("info", "node.storage.node_local")
    (found,) = judged(facts, shared=PATH)
    assert (found["severity"], found["code"], found["where"]) == ("fail", "node.storage.not_shared", {"file": PATH})


def test_a_local_disk_that_is_not_mounted() -> None:
    nodes = [path(mount=ROOT if rank == 2 else SCRATCH) for rank in range(8)]
    found = [finding for finding in judged(world(*nodes, groups=each_own)) if finding["severity"] != "info"]
    assert [(finding["severity"], finding["code"], finding["where"].get("node")) for finding in found] == [
        ("warn", "node.storage.different_mount", "node-2")
    ]


def test_a_data_set_that_is_not_mounted() -> None:
    (found,) = judged(world(*[read_only(mount=ROOT if rank == 2 else NFS) for rank in range(8)]))
    assert (found["severity"], found["code"]) == ("fail", "node.storage.different_mount")
    assert found["where"] == {"node": "node-2", "file": PATH}
    assert found["message"] == (
        "/data is on ext4 from /dev/sda2 at /, expected nfs4 from server:/data at /data, as on 7 of 8 nodes"
    )


@pytest.mark.parametrize("nobody", [read_only(), failing("create", "EACCES", "Permission denied")])
def test_a_path_that_the_job_writes_to(nobody: PathFacts) -> None:
    (found,) = judged(world(*[nobody] * 4), written=PATH)
    assert found["severity"] == "fail" and found["where"] == {"file": PATH}
    (odd,) = judged(world(path(), nobody, path(), path()), written=PATH)
    assert odd["severity"] == "fail" and odd["where"] == {"node": "node-1", "file": PATH}
    assert odd["message"].endswith(", expected the job's user to have write access")


def test_read_only_on_half_of_the_nodes() -> None:
    (found,) = judged(world(path(), read_only(), path(), read_only()))
    assert (found["severity"], found["code"], found["where"]) == ("warn", "node.storage.read_only", {"file": PATH})
    assert "cannot be written to on node-1 and node-3, and can be on node-0 and node-2" in found["message"]


def test_soft_mounts_and_unlike_options() -> None:
    soft: mounts.Mount = {**NFS, "options": ["soft", "vers=4.2"]}
    options, warned = judged(world(path(), path(mount=soft), path()))
    assert (options["severity"], options["code"]) == ("info", "node.storage.different_options")
    assert "hard,vers=4.2 on node-0 and node-2, soft,vers=4.2 on node-1" in options["message"]
    assert (warned["severity"], warned["code"]) == ("info", "node.storage.soft")


def test_a_node_that_could_not_look_is_not_blamed() -> None:
    """It was told of no file in time, came too late, or its look gave an error. Nodes 0, 3, 6, ... are writers."""
    facts = world(*[path()] * 16)
    for rank in (7, 9):
        facts[rank]["paths"][PATH]["seen"] = {}
    facts[5]["paths"][PATH]["seen"] = {"0": "Stale file handle"}
    assert above_info(facts) == []
    for measured in facts.values():
        measured["paths"][PATH]["seen"].pop("9", None)  # nobody was told of its file
    assert above_info(facts) == []
    only = {
        rank: path(written=rank == 0, read_only=rank > 0, seen={} if rank == 0 else {"0": "yes"}) for rank in (0, 1)
    }
    assert sameness.groups(only, [0, 1]) == [(0, 1)], "a single writer looks for nobody's"


def test_no_writer_is_among_most_nodes() -> None:
    """Nodes that see no file share with no writer; that is not said of them as if most did."""
    facts = world(*[path()] * 8, groups={0: 1, **dict.fromkeys(range(1, 8), 2)})
    for rank in range(1, 8):
        facts[rank]["paths"][PATH]["seen"] = {"0": "no"}
    facts = {rank: {**measured, "writers": [0]} for rank, measured in facts.items()}
    assert [finding["where"].get("node") for finding in judged(facts) if finding["severity"] != "info"] == [None]


def test_writers_that_few_see_both_of_are_one() -> None:
    here = {0: path(seen={"3": "yes"}), 1: path(seen={"0": "yes"}), 2: path(seen={"3": "yes"}), 3: path(seen={})}
    assert sameness.groups(here, [0, 3]) == [(0, 1, 2, 3)]


def test_a_hang_that_was_cut_short_is_no_finding() -> None:
    assert above_info(world(path(), hanging("open", 1.0), path())) == []
    assert above_info(world(path(), hanging("open", 1.0), path()), patience_s=1) == ["fail node.storage.no_answer"]


@pytest.mark.parametrize(
    ("seconds", "patience_s", "why"),
    [(4.9, 15.0, "/data did not answer open within 4.9 s"), (5.0, 15.0, ""), (1.0, 1.0, ""), (0.9, 1.0, "/data")],
)
def test_a_hang_that_was_cut_short_is_a_skip(seconds: float, patience_s: float, why: str) -> None:
    probe = cast("PathProbe", SimpleNamespace(path=PATH, disturbed="", facts=hanging("open", seconds)))
    assert storage._unsure(
        [cast("PathProbe", SimpleNamespace(disturbed="", facts=path())), probe], patience_s
    ).startswith(why)
    assert bool(why) == bool(storage._unsure([probe], patience_s))


def test_slow_for_all_is_only_said() -> None:
    (found,) = judged(world(*[path(fsync_ms=[2000.0, 3000.0])] * 4))
    assert (found["severity"], found["code"], found["where"]) == ("info", "node.storage.slow", {"file": PATH})


def test_every_code_is_tested() -> None:
    codes = {finds.split()[1] for finds, _, _ in SICK}
    codes |= {"not_shared", "node_local", "different_mount", "different_options", "soft", "not_removed"}
    assert codes == set(registry.load(registry.sources()["node.storage"]).codes)


def test_the_summary_has_every_path() -> None:
    facts = {**world(path(), path(fsync_ms=[3.0, 9.0])), 2: cast("Facts", {"paths": {}, "writers": []})}
    assert storage.summarize(facts, Run(made.job(1, 3), (0, 1, 2), {})) == "2 nodes: /data (nfs4) fsync 2-3 ms"


def test_writers_are_spread_over_the_job() -> None:
    assert one_file.writers_of([0, 8, 16]) == [0, 8, 16]
    assert one_file.writers_of(range(0, 8192, 8)) == [0, 1632, 3272, 4912, 6552]


def test_the_bounds_end_before_the_store_gives_up() -> None:
    for deadline_s, patience_s in ((60.0, 15.0), (60.0, 100.0), (4.0, 15.0)):
        bounds = one_file.Bounds.within(deadline_s, patience_s)
        assert bounds.look_s + 2 * bounds.late_s + bounds.see_s + bounds.remove_s < GROUP_TIMEOUT * deadline_s


# Options


def test_without_a_path_it_does_not_apply() -> None:
    with pytest.raises(NotApplicable, match="no path was named"):
        storage.measure(cast("Context", {storage.PATHS: (), storage.SHARED: (), storage.WRITTEN: ()}))


def test_a_list_of_paths() -> None:
    assert path_list("/data, /checkpoints/,/data//x/.") == ("/data", "/checkpoints", "/data/x")
    assert path_list("") == () and path_list("//data,/data") == ("/data",)


@pytest.mark.parametrize("text", ["data", "/data,checkpoints", "/data,", "~/data"])
def test_what_is_no_path_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an absolute path; expected paths such as /data,/checkpoints$"):
        registry.parse_option("node.storage.paths", storage.PATHS, text)


# mountinfo


LINES = r"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
30 22 0:50 / /data rw,relatime shared:9 - nfs4 server:/data rw,vers=4.2,rsize=1048576,hard,proto=tcp,clientaddr=10.0.0.1,addr=10.0.0.9
31 22 0:51 / /my\040data ro - fuse.sshfs user@host:/x rw,user_id=0
32 22 0:52 / /ftp rw - fuse curlftpfs#ftp rw
33 22 0:53 / /pw rw - fuse joe:hunter2@ftp.example.com:/x rw
34 22 0:54 / /lustre rw master:3 - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/fs rw,flock,lazystatfs
35 22 0:55 / /blob rw - fuse.blobfuse2 https://x.blob.example.com/c?sig=abc rw
36 30 0:56 / /data rw - tmpfs none rw,size=1k
broken line
"""  # noqa: E501 -- as the kernel writes it


def test_lines_of_mountinfo() -> None:
    table = dict(mounts.table(LINES))
    assert table[30] == {
        "point": "/data", "type": "nfs4", "source": "server:/data",
        "options": ["hard", "proto=tcp", "rsize=1048576", "vers=4.2"],
    }  # fmt: skip
    assert table[31]["point"] == "/my data" and table[31]["options"] == ["ro"]
    assert [table[number]["source"] for number in (31, 33, 34, 35)] == [
        "user@host:/x", "[removed]@ftp.example.com:/x", "10.0.0.1@o2ib:10.0.0.2@o2ib:/fs", "https://x.blob.example.com/c"
    ]  # fmt: skip
    assert len(table) == 8


def test_the_mount_of_a_path_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "read", lambda _: LINES)
    paths = ("/data/x", "/database", "/my data", "/")
    found = {path: mount["type"] for path in paths if (mount := mounts.of_path(path))}
    assert found == {"/data/x": "tmpfs", "/database": "ext4", "/my data": "fuse.sshfs", "/": "ext4"}


def test_the_mount_of_an_open_file_is_that_of_its_path(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        assert mounts.of_descriptor(file.fileno()) == mounts.of_path(str(tmp_path))
    assert mounts.of_descriptor(2**20) is None
