"""What the check `node.storage` finds."""

from typing import Any

from tests.faults.row import Fault, elsewhere

_NODE_1 = {"node": "node-1"}


def _row(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    found = tuple(find.replace(" ", " node.storage.") for find in finds)
    return elsewhere(f"storage_{name}", story, made, *found, **{"culprit": _NODE_1, "exit_code": exit_code, **more})


_TMPFS = "a tmpfs of the second of three nodes' own"
_FUSE = "a file system that the test serves over /dev/fuse, on the second of three nodes:"

ALL: tuple[Fault, ...] = ()
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/node/test_storage.py
    _row("not_mounted", "A shared folder is not mounted on one node, which sees the empty folder below.",
         "a bind mount on two of three nodes", "fail not_shared",
         says="is not what the other nodes have: none of their files was seen within 5 s (it is ext4 from"),
    _row("missing", "A path does not exist on one node.", "a tmpfs with a folder on two of three nodes", "fail missing",
         says=" cannot be opened: No such file or directory; expected a folder"),
    _row("read_only", "A path is read-only on one node.", "a bind mount with the option ro on the second of three",
         "fail read_only", says="expected to write to it, as on 2 of 3 nodes"),
    _row("denied", "The job's user may not write on one node.", "another user, in a folder of root's", "warn denied",
         says=" may not be written to ("),
    _row("data_not_mounted", "A data set that is only read is not mounted on one node.",
         "a read-only bind mount of a FUSE file system on two of three nodes", "fail different_mount",
         says="expected fuse.test from server:/data at "),
    _row("data_on_one_node", "A data set that is only read is mounted on one node alone.",
         "a read-only bind mount of a FUSE file system on the second of three nodes; on the others a read-only tmpfs",
         "fail different_mount", culprit={}, says=" as on node-1, where it is only read"),
    _row("full", "A file system is full.", f"{_TMPFS}, filled", "fail space",
         says="failed with No space left on device (tmpfs from none at "),
    _row("nearly_full", "A file system is nearly full.", f"{_TMPFS}, of 20 MiB", "warn space",
         says=" MiB free of 20, expected 1,024 MiB"),
    _row("no_inodes", "A file system takes no more files.", f"{_TMPFS}, with `nr_inodes` used up", "fail inodes_left",
         says="failed with No space left on device (tmpfs from none at "),
    _row("few_inodes", "A file system has few inodes left.", f"{_TMPFS}, with `nr_inodes=50`", "warn inodes_left",
         says=" more files (inodes), expected 1,000"),
    _row("quota", "The quota of the job's user is used up.", f"{_FUSE} WRITE gives EDQUOT", "fail quota",
         says="failed with Disk quota exceeded (fuse.test from server:/data at "),
    _row("io_error", "A disk returns an error.", f"{_FUSE} FSYNC gives EIO", "fail broken",
         says="fsync in "),
    _row("stale", "A mount is stale.", f"{_FUSE} OPENDIR gives ESTALE", "fail broken",
         says=" cannot be opened: Stale file handle (fuse.test from server:/data at "),
    _row("dead_stat", "The server of a mount is dead.", f"{_FUSE} LOOKUP is never answered", "fail no_answer",
         says="stat in "),
    _row("dead_fsync", "The server of a mount dies while a file is written.",
         f"{_FUSE} FSYNC and UNLINK are never answered", "fail no_answer",
         says=", and the process that asked cannot be killed (state D); expected milliseconds from fuse.test"),
    _row("left", "What this check has made cannot be removed.", f"{_FUSE} FSYNC and UNLINK are never answered",
         "info not_removed"),
    _row("own", "A path is a disk of each node's own.", "a tmpfs on each of three nodes", "info node_local",
         culprit={}),
    _row("soft_nfs", "One node has mounted NFS with the option soft.",
         "bind mounts, which /proc/self/mountinfo calls nfs4 (tests/nfs), with `soft` on the second of three nodes",
         "info soft", "info different_options", culprit={}, says="soft,vers=4.2 on node-1"),
    _row("slow_fsync", "A file system is slow on one node.", f"{_FUSE} FSYNC takes 0.3 s", "warn slow",
         says=" ms as on most nodes"),
)  # fmt: skip
