"""What the checks of the family `node` find."""

import os
from typing import Any

from tests.faults.row import Fault, in_check
from tests.running import PLUGINS, ROOT


def _clock(name: str, story: str, made: str, *finds: str, world: int = 3, **more: Any) -> Fault:
    """A node for each rank: `node-0` and so on."""
    own = more.pop("environ_of")
    nodes = {
        rank: {"NODE_RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}", **own.get(rank, {})} for rank in range(world)
    }
    path = os.pathsep.join(str(folder) for folder in (ROOT / "tests" / "clocks", ROOT, PLUGINS))
    return in_check(
        name,
        story,
        made,
        *finds,
        only="node.clock",
        world=world,
        environ={"PYTHONPATH": path},
        environ_of=nodes,
        **more,
    )


_AHEAD, _SKEWED = {"TEST_CLOCK_AHEAD_S": "3600"}, "warn node.clock.skewed"
CLOCK = (
    _clock("clock_ahead", "A node's clock is an hour ahead.", "`time.time` on rank 1", _SKEWED,
           culprit={"node": "node-1"}, environ_of={1: _AHEAD}, says="the clock is 3,600.0 s ahead of that of most"),
    _clock("clock_behind", "The clock that the others are compared with is an hour behind.", "`time.time` on rank 0",
           _SKEWED, culprit={"node": "node-0"}, environ_of={0: {"TEST_CLOCK_AHEAD_S": "-3600"}}, says="s behind"),
    _clock("clocks_of_two", "Two nodes' clocks are an hour apart.", "`time.time` on rank 1", _SKEWED, world=2,
           culprit={}, environ_of={1: _AHEAD}, says="the clock of node-1 is 3,600.0 s ahead of that of node-0"),
    _clock("clock_asked_and_killed", "A rank is killed while the clocks are compared.", "SIGKILL on rank 1",
           "fail node.clock.crashed", noticed_by="0,2", environ_of={1: {"TEST_CLOCK_DEED": "kill_itself"}}),
    _clock("clock_asked_and_stopped", "A rank is stopped while the clocks are compared.", "SIGSTOP on rank 1",
           "fail node.clock.timed_out", noticed_by="0,2", environ_of={1: {"TEST_CLOCK_DEED": "stop_itself"}}),
    _clock("clock_answer_killed", "The rank that the others ask for its time is killed.", "SIGKILL on rank 0",
           "fail node.clock.crashed", culprit={"rank": 0}, noticed_by="1-2",
           environ_of={0: {"TEST_CLOCK_DEED": "kill_itself"}}),
)  # fmt: skip

ALL: tuple[Fault, ...] = CLOCK
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
