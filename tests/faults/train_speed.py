"""What train.speed finds."""

from typing import Any

from tests.faults.row import Fault, elsewhere, in_check, sick

SETTINGS = {"train.speed.strategies": "ddp/plain"}
WIDE = "tests.models.wide:activations"
LARGE = {"train.speed.model": WIDE, "train.speed.batch": "100000000"}
USERS = {"train.speed.model": "tests.models.late:mlp", "train.speed.loader": "tests.models.late:loader"}


def _slow(name: str, story: str, deed: str, says: str, **more: Any) -> Fault:
    details = {"world": 2, "noticed_by": "0", "environ_of": {1: sick(deed)}, "settings": SETTINGS, **more}
    made = details.pop("made", f"on rank 1: `sick.{deed}`")
    code = "warn train.speed.straggler"
    return in_check(f"speed_{name}", story, made, code, only="train.speed", says=says, **details)


ALL: tuple[Fault, ...] = (
    _slow("slow_backward", "Backward stands still for 400 ms on one rank.", "slow_backward",
          "it is late in backward: "),
    _slow("slow_loader", "A loader stalls for 400 ms on one rank.", "slow_loader",
          "it is late in fetching its batch: ", more=True, world=3, culprit={"rank": 0}, noticed_by="1-2",
          environ_of={0: sick("slow_loader")}, made="on rank 0: `sick.slow_loader`"),
    _slow("core_taken", "Other processes have one rank's core.", "core_taken", "waiting for a CPU core that other",
          more=True, deadline_s=300, environ_of={0: sick("core_of_its_own"), 1: sick("core_taken")}),
    _slow("slow_hook", "DDP's communication hook stands still for 400 ms on one rank.", "slow_hook",
          "it is late in backward: ", more=True),
    in_check("speed_stalls", "A rank stands still for a second in every fifth step.", "on rank 1: `sick.stalls`",
             "warn train.speed.stalls", only="train.speed", world=2, noticed_by="0", settings=SETTINGS,
             environ_of={1: sick("stalls@5")}, says="it stands still in forward every 5 steps ("),
    in_check("speed_data_bound", "The loader takes 200 ms for each batch, on all ranks.",
             "`train.speed.loader=tests.models.late:slow_loader`", "warn train.speed.data_bound", only="train.speed",
             world=2, culprit={}, says="for their next batch (",
             settings={**SETTINGS, **USERS, "train.speed.loader": "tests.models.late:slow_loader"}),
    _slow("slow_model", "Backward of the user's model stands still for 200 ms on one rank.", "", "late in backward: 2",
          more=True, settings={**SETTINGS, "train.speed.model": "tests.models.late:backward"}, environ_of={},
          made="`--model tests.models.late:backward`"),
    _slow("slow_users_loader", "The user's loader stalls for 200 ms on one rank.", "", "late in fetching its batch: 2",
          more=True, settings={**SETTINGS, **USERS}, environ_of={},
          made="`train.speed.loader=tests.models.late:loader`"),
    in_check("speed_wont_fit", "A batch is asked for that needs more memory than there is.",
             "`--model tests.models.wide:activations --set train.speed.batch=100000000`", "fail train.speed.wont_fit",
             only="train.speed", world=2, culprit={}, says="100,000,000 rows a rank need about",
             settings={**SETTINGS, **LARGE}),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (
    # tests/checks/train/test_speed_nodes.py
    elsewhere("speed_wont_fit_cgroup", "A batch is asked for that needs more memory than one node's container has.",
              "a cgroup's memory limit of 1 GiB on the second of two nodes; 5,000 rows of 256 KiB",
              "fail train.speed.wont_fit", world=2,
              says="MiB are there for rank 1, by the limit of its cgroup"),
    elsewhere("speed_throttled", "The cgroup of one rank allows it a quarter of a core.",
              "a cgroup with a CPU quota of 25 ms in 100 ms", "warn train.speed.straggler", culprit={"rank": 1},
              noticed_by="0", exit_code=0, world=2, says="the CPU quota of 0.25 of a core of its cgroup is used up"),
    elsewhere("speed_slow_link", "The link of one of three nodes carries 60 Mbit/s.",
              "`tc tbf` at 60 Mbit/s on its eth0", "warn train.speed.slow_link", culprit={"node": "host-c"},
              noticed_by="0-1", exit_code=0, world=3, says="it sends "),
    elsewhere("speed_slow_path", "What one of three nodes sends to one other node passes at 60 Mbit/s.",
              "`tc htb` at 60 Mbit/s for one address", "warn train.speed.slow_path",
              culprit={"link": "host-b to host-a"}, exit_code=0, world=3, says="MB/s from host-b to host-a"),
    elsewhere("speed_slower_than_one", "Over a slow link two nodes train slower together than one of them.",
              "`tc tbf` at 60 Mbit/s on eth0 of both", "warn train.speed.slower_than_one", culprit={}, exit_code=0,
              world=2, says="under ddp/plain 2 ranks train "),
    elsewhere("speed_half_cores", "A node's two ranks have one core, the other node's two.",
              "`taskset` on the second of two nodes; the first one's ranks are of the real-time class, "
              "as on a machine of their own", "warn train.speed.fewer_cores", culprit={"node": "node-1"},
              noticed_by="0-1", exit_code=0, world=4, says="it has 0.5 of a core for each of its ranks, expected 1",
              also=("warn env.launch.shared_cores",)),
)  # fmt: skip
