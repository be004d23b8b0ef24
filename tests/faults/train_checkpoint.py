"""What the check `train.checkpoint` finds."""

from typing import Any

from tests.faults.row import Fault, elsewhere, in_check, sick


def _row(name: str, story: str, deed: str, *finds: str, form: str = "ddp/full", **more: Any) -> Fault:
    """What torch does otherwise, or what happens to a file, with one form of checkpoint on two ranks."""
    environ = sick(deed)
    found = tuple(find.replace(" ", " train.checkpoint.") for find in finds)
    settings = {"train.checkpoint.forms": form}
    details = {"world": 2, "culprit": {}, "environ": environ, "settings": settings, **more}
    return in_check(f"checkpoint_{name}", story, f"`sick.{deed}`", *found, only="train.checkpoint", **details)


_MOMENTS = "fail wrong_optimizer"

ALL: tuple[Fault, ...] = (
    _row("half_moment", "On fewer ranks half of a moment of Adam's is 0 after loading.", "half_moment", _MOMENTS,
         form="fsdp2/dcp", culprit={"parameter": "blocks.0.up.weight"}, noticed_by="0",
         says="fsdp2/dcp into FSDP2 on half of the ranks: blocks.0.up.weight exp_avg is"),
    _row("not_reloaded", "Where the number of ranks changes the optimizer starts over.", "not_reloaded", _MOMENTS,
         culprit={}, noticed_by="0", says="ddp/full into FSDP2 on half of the ranks: ", more=True),
    _row("moments_dropped", "Adam's moments are 0 after loading.", "moments_dropped", _MOMENTS, noticed_by="0-1",
         says=" is 0 after loading, expected ", more=True),
    _row("steps_lost", "Adam's step counts are lost.", "steps_lost", _MOMENTS, noticed_by="0-1",
         says="Adam's step count of scale (and 23 others) is 0 after loading, expected 2"),
    _row("weight_off", "A weight on one rank is not what was saved.", "weight_off@1", "fail wrong_weights",
         form="fsdp2/full", world=3, culprit={"rank": 1, "parameter": "blocks.1.up.weight"}, noticed_by="0,2",
         says="of this rank's piece"),
    _row("schedule_anew", "The learning-rate schedule starts over.", "schedule_anew", "fail lost_progress",
         noticed_by="0-1", says="the schedule's step is 0 after loading, expected 2"),
    _row("random_stays", "A rank's random state is not restored.", "random_stays@1", "fail lost_random", world=3,
         culprit={"rank": 1}, says="torch's random state is a different one after loading"),
    _row("untied", "The second name of a tied parameter is saved with other values.", "untied", "fail untied",
         culprit={"parameter": "head.weight"}, noticed_by="0-1",
         says="head.weight is a tensor with different values after loading, expected equal to tokens.weight"),
    _row("drifts", "The model is not the same in what no checkpoint holds.", "drifts", "fail drift",
         culprit={"step": 0}, noticed_by="0-1", says="the loss of step 0 after loading is "),
    _row("refuses", "Loading raises on one rank.", "refuses@1", "fail refused", world=3, culprit={"rank": 1},
         says="RuntimeError: size mismatch for narrow.weight"),
    _row("shard_missing", "A shard is gone.", "shard_missing@1", "fail damaged", form="fsdp2/dcp",
         culprit={"file": "__1_0.distcp"}, noticed_by="0-1", says="__1_0.distcp, written by rank 1, is missing",
         more=True),
    _row("cut", "A file is cut to half.", "cut", "fail damaged", culprit={"file": "full.pt"}, noticed_by="0-1",
         says=" that were written; loading it raised "),
    _row("of_another_run", "A file is another run's.", "of_another_run", "fail damaged", culprit={"file": "full.pt"},
         says="expected those that were written", more=True),
    _row("pickled", "A file holds a pickle that would run code.", "pickled", "fail damaged",
         culprit={"file": "full.pt"}, noticed_by="0-1", says="UnpicklingError", more=True),
    _row("killed", "A rank is killed while it saves.", "killed@0", "fail crashed", world=3,
         culprit={"rank": 0}, noticed_by="1-2", says="SIGKILL, expected it to live; last doing: ddp/full: saving"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""


def _there(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    """In the folder of `--checkpoint`: tests/checks/train/test_checkpoint_folder.py."""
    exit_code = 1 if any(find.startswith("fail") for find in finds) else 0
    found = tuple(find.replace(" ", " train.checkpoint.") for find in finds)
    details = {"culprit": {"node": "node-1"}, "exit_code": exit_code, **more}
    return elsewhere(f"checkpoint_{name}", story, made, *found, **details)


_NODE_1 = "on the second of three nodes"
ELSEWHERE: tuple[Fault, ...] = (
    _there("full", "The folder's file system is full on a node.", f"a tmpfs of 20 MiB {_NODE_1}", "fail no_room",
           also=("fail train.checkpoint.not_shared",), says=" free, expected "),
    _there("read_only", "The folder is read-only on a node.", f"a bind mount with the option ro {_NODE_1}",
           "fail unusable", says="failed with Read-only file system, expected to write checkpoints there"),
    _there("of_another_user", "The folder is another user's.", f"root's folder, and another user {_NODE_1}",
           "fail unusable", says="failed with Permission denied, expected to write checkpoints there (it is user 0's",
           more=True),
    _there("not_shared", "A node does not see the others' folder.", f"a tmpfs {_NODE_1}", "fail not_shared",
           says="was not seen within 5 s, expected it as on 1 of 2 other nodes"),
    _there("no_answer", "The folder's server is dead.",
           f"a file system that the test serves over /dev/fuse {_NODE_1}: LOOKUP is never answered", "fail no_answer",
           says=" does not answer: "),
    _there("flips_on_read", "A node reads other bits than were written.",
           f"a file system that the test serves over /dev/fuse {_NODE_1}: a bit of each 4096 bytes is turned on READ",
           "fail corrupts", says=" when it is read back, expected "),
    _there("flips_on_write", "A node writes other bits than it was given.",
           f"a file system that the test serves over /dev/fuse {_NODE_1}: a bit of each 4096 bytes is turned on WRITE",
           "fail corrupts", more=True, says=" (1 bit flipped) on rank 1"),
    _there("server_flips", "The folder's server gives all nodes other bits than were written.",
           "the same on READ, on all three nodes", "fail corrupts", culprit={}, says=", and so on all 3 nodes"),
    _there("one_file_flips", "A bit of one checkpoint is turned while it is written.", "the same on WRITE of one file",
           "fail damaged", more=True, culprit={"file": "full.pt"},
           says="full.pt, written by rank 0, has other contents in its "),
    _there("one_shard_flips", "A bit of one rank's shard is turned when it is read.", "the same on READ of one file",
           "fail damaged", culprit={"file": "__1_0.distcp"},
           says="__1_0.distcp, written by rank 1, has other contents in its ", more=True),
    _there("no_rename", "The folder's file system has no rename.", "`sick.no_rename`", "fail unsafe", culprit={},
           says="has no rename (Function not implemented), expected both"),
    _there("slow_node", "A node writes far slower than the others.", f"`sick.slow_fsync@1` {_NODE_1}: 1 s more",
           "warn slow_node", says="as the median of 3 nodes"),
    _there("filled", "The disk fills up while a checkpoint is written.", "`sick.filled` on a tmpfs of 80 MiB",
           "fail no_room", culprit={}, says="No space left"),
    _there("left", "What was written cannot be removed.", "`sick.stays`", "info not_removed", culprit={},
           says="could not be removed"),
    _there("no_dcp", "NumPy is not installed.", "an environment without NumPy", "warn no_dcp", culprit={},
           says="torch needs NumPy for it, which is not installed"),
)  # fmt: skip
