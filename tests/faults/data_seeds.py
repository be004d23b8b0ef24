"""What data.seeds finds in a real run. Most are in tests/checks/data/test_on_ranks.py: there many loaders share one
start of the ranks."""

from preflight.planning import registry
from tests.faults.row import Fault, elsewhere, in_check
from tests.loaders.expected import ODD_SEED, SEEDS

CHECK = registry.load(registry.sources()["data.seeds"])
LOADER = "tests.loaders.seeds:ranks_repeat_in_workers"
GIVEN = {f"data.{check}.data": LOADER for check in ("sampler", "seeds")}

ALL: tuple[Fault, ...] = (
    in_check("data_ranks_repeat", "All ranks' DataLoader workers draw the same random numbers.", f"`--data {LOADER}`",
             "warn data.seeds.ranks_repeat", only="data.seeds", world=2, culprit={}, settings=GIVEN,
             more=True),
)  # fmt: skip
"""Driven by tests/test_faults.py."""


def _on_ranks(name: str, found: tuple[str, ...]) -> Fault:
    meaning = " ".join(CHECK.codes[find.split()[1]].meaning for find in found)
    finds = [find.replace(" ", " data.seeds.") for find in found]
    made = f"`--data tests.loaders.seeds:{name}`, on 3 ranks"
    culprit = {"rank": 1} if name == ODD_SEED else {}
    return elsewhere(f"seeds_{name}", meaning, made, *finds, culprit=culprit, exit_code=0)


ELSEWHERE: tuple[Fault, ...] = tuple(_on_ranks(name, found) for name, found in SEEDS.items())
"""Driven by tests/checks/data/test_on_ranks.py."""
