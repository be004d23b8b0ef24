"""What the collectives of the family `comm` find. Several share a run: tests/checks/comm/test_sick_ranks.py."""

import os
from typing import Any

from tests.faults.row import Fault, elsewhere, in_check
from tests.running import PLUGINS, ROOT


def sick(*deeds: str) -> dict[str, str]:
    """An environment in which torch.distributed does these deeds (tests/sick_comm/sitecustomize.py)."""
    paths = (ROOT / "tests" / "sick_comm", ROOT, PLUGINS)
    return {"SICK_COMM": ",".join(deeds), "PYTHONPATH": os.pathsep.join(map(str, paths))}


def _one(deed: str, story: str, check: str, noticed_by: str = "", says: str = "", **more: Any) -> Fault:
    """Rank 1 is sick, and of a small world."""
    severity, slug = more.pop("code", "fail wrong_result").split()
    details = {"noticed_by": noticed_by, "says": says, "environ_of": {1: sick(deed)}, **more}
    finds = f"{severity} comm.{check}.{slug}"
    return elsewhere(f"comm_{deed}", story, f"on rank 1: `sick_comm.{deed}`", finds, **details)


ALL: tuple[Fault, ...] = (
    in_check("comm_core_shared", "Six other processes share the core of one rank.",
             "on rank 1: `sick_comm.core_shared`", "warn comm.all_reduce.late_rank", only="comm.all_reduce", world=2,
             noticed_by="0", environ_of={0: sick("core_of_its_own"), 1: sick("core_shared")}, more=True,
             settings={"comm.all_reduce.max_mib": "1"}, says="for a CPU core that other processes use", deadline_s=120),
)  # fmt: skip
TOGETHER: tuple[tuple[Fault, ...], ...] = (
    (
        _one("scatter_of_next", "A rank gets the part of a sum meant for another.", "reduce_scatter",
             environ=sick("scatter_right"), says="it is the part meant for rank 2"),
        _one("sum_lost", "A rank's contribution to an all-reduce is lost.", "all_reduce", "0,2",
             says="rank 1's contribution is missing"),
        _one("gather_sent_rolled", "A rank sends its values one place off.", "all_gather", "0,2",
             says="always in data from rank 1"),
        _one("to_all_swapped", "A rank sends each of two ranks what was for the other.", "all_to_all", "0,2",
             says="it is what rank 1 sent to rank 2"),
        _one("broadcast_flipped", "The lowest bit of one element flips on one receiver.", "broadcast",
             says="1 of 256 elements is wrong"),
    ),
    (
        _one("sum_doubled", "Half of a rank's contribution to an all-reduce is counted twice.", "all_reduce", "0,2-3",
             world=4, says="rank 1's contribution is counted 2 times"),
        _one("scatter_doubled", "A rank's contribution to a reduce-scatter is counted twice.", "reduce_scatter",
             "0,2-3", world=4, says="rank 1's contribution is counted 2 times"),
        _one("gather_swapped", "Two ranks' values change places on one rank.", "all_gather", world=4,
             says="it is what rank 2 sent; 3 other ranks got it right"),
        _one("to_all_got_swapped", "What two ranks sent changes places on one rank.", "all_to_all", world=4,
             says="it is what rank 2 sent to rank 1"),
        _one("ring_rolled", "What one rank sends to the next arrives one place off.", "send_recv", world=4,
             culprit={}, says="rank 2 got it from rank 1: either of them, or their link"),
    ),
    (
        _one("sum_of_next", "Another rank's values are summed in the place of a rank's.", "all_reduce", "0,2-4",
             world=5, says="rank 2's values are in the place of rank 1's"),
        _one("late", "A rank computes 100 ms longer in each step.", "all_reduce", "0,2-4", world=5,
             code="warn late_rank", exit_code=0, says="not for the network"),
        _one("gather_off", "One element is wrong on one rank.", "all_gather", world=5, says="the first at 100"),
        _one("to_all_later", "From its third time on a collective is wrong on one rank.", "all_to_all", world=5,
             says="4 other ranks got it right"),
    ),
    (
        _one("sum_sent_off", "One element is altered before it is summed: only sums of fewer ranks say whose it was.",
             "all_reduce", "0,2", says="with rank 1 and different ranks, and right without rank 1"),
        _one("gather_off_once", "One element is wrong on one rank, once, and right when it is computed again.",
             "all_gather", says="it was wrong once: the fault is intermittent"),
        _one("late_once", "A rank computes 100 ms longer in each step, and no more when all do it again.", "all_reduce",
             culprit={}, code="info late_once", exit_code=0, says=": it is not blamed"),
    ),
    (
        _one("sum_off", "Of two ranks one has a wrong sum: either of them, or their link.", "all_reduce",
             world=2, culprit={}, says="rank 1 got it from rank 0: either of them, or their link"),
    ),
)  # fmt: skip
"""Rows that share a run."""
SWEEPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
SLOW = tuple(
    elsewhere(
        f"comm_slow_link_{name}",
        f"The link between two nodes carries 80 Mbit/s, and more in the run that is the baseline ({name}).",
        f"`tc tbf` at 80 Mbit/s on eth0 of both; `--set comm.{name}.min_gb_per_s=0.015`, `baseline_share=0.5`",
        f"warn comm.{name}.too_slow", f"warn comm.{name}.below_expected", f"warn comm.{name}.slower_than_baseline",
        culprit={}, exit_code=0,
    )
    for name in SWEEPS
)  # fmt: skip
"""Rows that share a run: tests/checks/comm/test_slow_link.py"""
ELSEWHERE: tuple[Fault, ...] = (*(fault for rows in TOGETHER for fault in rows), *SLOW)
