"""What data.seeds finds in a real run. The others are in tests/checks/data/test_on_ranks.py."""

from tests.faults.row import Fault, in_check

LOADER = "tests.loaders.seeds:ranks_repeat_in_workers"
GIVEN = {f"data.{check}.data": LOADER for check in ("sampler", "seeds")}

ALL: tuple[Fault, ...] = (
    in_check("data_ranks_repeat", "All ranks' DataLoader workers draw the same random numbers.", f"`--data {LOADER}`",
             "warn data.seeds.ranks_repeat", only="data.seeds", world=2, culprit={}, settings=GIVEN),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
