"""node.storage on made-up facts: different kinds of file systems, on different nodes."""

from typing import Any

import pytest

from preflight.checks.node.storage import mounts, sameness
from preflight.checks.node.storage.path_probe import PathFacts
from tests.checks.node.test_storage_judge import (
    NFS,
    PATH,
    ROOT,
    SCRATCH,
    above_info,
    each_own,
    failing,
    judged,
    path,
    read_only,
    world,
)

LUSTRE: mounts.Mount = {"point": PATH, "type": "lustre", "source": "10.0.0.1@o2ib:/fs", "options": []}
OVERLAY: mounts.Mount = {"point": "/", "type": "overlay", "source": "overlay", "options": []}
DENIED = ("create", "EACCES", "Permission denied")


def of(kind: str, source: str, **changed: Any) -> PathFacts:
    return path(mount={**LUSTRE, "type": kind, "source": source}, **changed)


def said(found: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(f"{finding['severity']} {finding['code'].removeprefix('node.storage.')}", finding["where"].get("node"))
            for finding in found]  # fmt: skip


# A data set of a server, and nodes on which it is not mounted: the job's user writes into the folder below


@pytest.mark.parametrize("data", [read_only(mount=LUSTRE), failing(*DENIED, mount=LUSTRE)], ids=["sealed", "denied"])
@pytest.mark.parametrize("bare", [path(mount=OVERLAY), read_only(mount=OVERLAY)], ids=["written", "sealed below"])
@pytest.mark.parametrize(("nodes", "lack"), [(3, {1, 2}), (4, {3}), (8, {5}), (2, {0}), (1024, set(range(1, 1024)))])
def test_a_mount_of_data_that_nodes_lack(nodes: int, lack: set[int], data: PathFacts, bare: PathFacts) -> None:
    facts = world(*[bare if rank in lack else data for rank in range(nodes)], groups={rank: rank + 1 for rank in lack})
    found = [
        finding
        for finding in judged(facts)
        if finding["code"] != "node.storage.denied" or finding["severity"] != "info"
    ]
    assert said(found) == [("fail different_mount", f"node-{rank}") for rank in sorted(lack)]
    assert found[0]["message"].startswith(
        "/data is on overlay from overlay at /, expected lustre from 10.0.0.1@o2ib:/fs at /data, as on "
    )


def test_whom_the_words_name() -> None:
    two = world(read_only(mount=LUSTRE), *[path(mount=OVERLAY)] * 2, groups={1: 1, 2: 2})
    assert judged(two)[0]["message"].endswith(" at /data, as on node-0, where it is only read")
    lacking = world(*[read_only(mount=LUSTRE)] * 3, path(mount=OVERLAY), groups={3: 1})
    assert judged(lacking)[0]["message"].endswith(" at /data, as on 3 of 4 nodes")


def test_a_node_with_a_disk_at_the_same_place_is_not_named() -> None:
    """It may have a copy of its own."""
    facts = world(read_only(), *[path(mount=SCRATCH)] * 2, groups={1: 1, 2: 2})
    assert said(judged(facts)) == [("warn different_mount", None)]
    mixed = world(read_only(), path(mount=SCRATCH), path(mount=ROOT), groups={1: 1, 2: 2})
    assert said(judged(mixed)) == [("warn different_mount", None)]


def test_the_server_itself_is_one_of_the_nodes() -> None:
    """The others see the file that it has written into its own disk."""
    assert judged(world(*[read_only()] * 3, path(mount=ROOT))) == []


def test_a_data_set_that_must_be_shared_names_who_lacks_it() -> None:
    facts = world(*[read_only(mount=LUSTRE)] * 3, path(mount=OVERLAY), groups={3: 1})
    shared, odd = judged(facts, shared=PATH)
    assert said([shared, odd]) == [("fail not_shared", None), ("fail different_mount", "node-3")]
    assert shared["message"].startswith("none of 4 nodes saw another's file in /data within 5 s (lustre from ")


def test_own_files_are_told_of_only_where_all_have_some() -> None:
    nodes = [path(mount=SCRATCH) for _ in range(3)]
    assert said(judged(world(*nodes, groups=each_own))) == [("info node_local", None)]
    nodes[1] = failing("create", "EDQUOT", "Disk quota exceeded", mount=SCRATCH)
    assert said(judged(world(*nodes, groups=each_own))) == [("fail quota", "node-1")]


# Who may write


def test_a_disk_that_became_read_only_is_held_against_the_other_disks() -> None:
    """Also where it is the root's, below a disk that is not mounted."""
    nodes = [read_only(mount=ROOT) if rank == 3 else path(mount=SCRATCH) for rank in range(8)]
    found = [finding for finding in judged(world(*nodes, groups=each_own)) if finding["severity"] != "info"]
    assert said(found) == [("fail read_only", "node-3"), ("warn different_mount", "node-3")]


def test_each_node_has_a_folder_of_one_server_and_one_is_sealed() -> None:
    mine = [{**NFS, "source": f"server:/scratch/{rank}"} for rank in range(8)]
    nodes = [read_only(mount=mount) if rank == 3 else path(mount=mount) for rank, mount in enumerate(mine)]
    assert above_info(world(*nodes, groups=each_own)) == ["fail node.storage.read_only"]


@pytest.mark.parametrize("error", ["ENOENT", "EACCES"])
def test_procfs_takes_no_files(error: str) -> None:
    nodes = [failing("create", error, "No", mount={**ROOT, "type": "proc", "point": "/proc"})] * 3
    assert said(judged(world(*nodes))) == [("info denied", None)]
    (found,) = judged(world(*nodes), written=PATH)
    assert said([found]) == [("fail denied", None)] and "(proc from" in found["message"]


def test_a_file_system_without_creation() -> None:
    """As FUSE without CREATE: it is read, unless the job must write."""
    nodes = [failing("create", "ENOSYS", "Function not implemented")] * 3
    assert above_info(world(*nodes)) == [] and above_info(world(*nodes), written=PATH) == ["fail node.storage.denied"]
    for call, error in (("create", "ENOENT"), ("write", "ENOSYS")):
        assert above_info(world(*[failing(call, error, "No")] * 3)) == ["fail node.storage.broken"]


# No room


@pytest.mark.parametrize(("error", "code"), [("ENOSPC", "space"), ("EDQUOT", "quota")])
def test_no_room_where_nobody_is_known_to_write(error: str, code: str) -> None:
    full = failing("write", error, "Full")
    assert above_info(world(*[full] * 4)) == [f"warn node.storage.{code}"]
    assert above_info(world(*[full] * 4), written=PATH) == [f"fail node.storage.{code}"]
    assert above_info(world(full, path(), full, full)) == [f"fail node.storage.{code}"] * 3
    below = world(full, full, full, path(mount=ROOT), groups={3: 1})
    assert [find for find, _ in said(judged(below))] == [f"warn {code}"] * 3 + ["fail different_mount"]


# Types


@pytest.mark.parametrize(
    ("kind", "source"),
    [("fuse.fuse-overlayfs", "fuse-overlayfs"), ("fuse.mergerfs", "disk1:disk2"), ("virtiofs", "kataShared"),
     ("9p", "none"), ("fuseblk", "/dev/sdb1"), ("aufs", "none"), ("reiserfs", "/dev/sdb1"),
     ("fuse.rclone", "s3:bucket"), ("fuse", "mountpoint-s3")],
)  # fmt: skip
def test_what_need_not_be_shared(kind: str, source: str) -> None:
    assert said(judged(world(*[of(kind, source)] * 4, groups=each_own))) == [("info node_local", None)]
    sizes = [of(kind, source, size_mib=size, written=False, read_only=True) for size in (65536, 1024, 65536)]
    assert judged(world(*sizes)) == []


@pytest.mark.parametrize(("kind", "source"), [("nfs4", "server:/x"), ("lustre", "mgs:/fs"), ("gpfs", "fs1"),
                                              ("wekafs", "backend/fs"), ("fuse.juicefs", "JuiceFS:fs")])  # fmt: skip
def test_what_all_clients_share(kind: str, source: str) -> None:
    assert said(judged(world(*[of(kind, source)] * 4, groups=each_own))) == [("warn not_shared", None)]


@pytest.mark.parametrize(
    ("kind", "sources"),
    [("cifs", ["//nas0/data", "//nas1/data"]), ("smb3", ["//10.0.0.1/data", "//10.0.0.2/data"]),
     ("wekafs", ["backend-0/fs", "backend-1,backend-2/fs"]), ("pvfs2", ["tcp://a:3334/fs", "tcp://b:3334/fs"]),
     ("lustre", ["10.0.0.1@o2ib:10.0.0.2@o2ib:/fs", "10.0.0.2@o2ib:/fs"]), ("nfs4", ["[fd00::1]:/d", "filer:/d"])],
)  # fmt: skip
def test_one_export_of_several_servers(kind: str, sources: list[str]) -> None:
    data = {"read_only": True, "written": False}
    nodes = [of(kind, sources[rank % 2], **data) for rank in range(5)]
    assert judged(world(*nodes)) == []
    other = of(kind, f"{sources[0]}-old", **data)
    assert said(judged(world(*nodes, other))) == [("warn different_mount", "node-5")]


# Another server with the same name of its export


def sized(*sizes: int | None, **changed: Any) -> list[tuple[str, str | None]]:
    return said(judged(world(*[read_only(size_mib=size, **changed) for size in sizes])))


def test_another_server() -> None:
    old = read_only(mount={**NFS, "source": "oldserver:/data"}, size_mib=1024)
    (found,) = judged(world(*[read_only()] * 3, old))
    assert said([found]) == [("warn different_mount", "node-3")]
    assert found["message"] == (
        "/data has 1,024 MiB in all (nfs4 from oldserver:/data at /data), expected about 65,536 MiB, as on 3 of 4 nodes"
    )
    assert sized(65536, 1 << 20, 65536) == [("warn different_mount", "node-1")]
    assert sized(65536, 1024) == sized(1024, 65536, 1024, 65536) == [("warn different_mount", None)]


def test_sizes_that_may_be_those_of_one_server() -> None:
    assert sized(65536, 32768, 65536, 131072) == sized(10_000, 10_001, 16384) == sized(None, 65536, None) == []
    assert sized(65536, 1024, 65536, mount=ROOT) == [], "disks of the nodes' own"
    assert above_info(world(path(), path(size_mib=1024), path())) == [], "they see one file"


def test_sizes_far_apart_are_told_together() -> None:
    (found,) = judged(world(*[read_only(size_mib=size) for size in (1024, 65536, 131072, 2048)]))
    assert found["message"] == (
        "/data has in all 1,024 MiB on node-0 and node-3, 65,536 MiB on node-1 and node-2, "
        "expected the same on all nodes"
    )
    assert sameness.vote_of_sizes({0: read_only(size_mib=0), 1: read_only(size_mib=None)}).voters == 0
