"""What data.sampler finds in real runs. Most mistakes are in tests/checks/data/test_on_ranks.py: there many loaders
share one start of the ranks."""

from typing import Any

from preflight.planning import registry
from tests.faults.row import Fault, elsewhere, in_check
from tests.loaders.expected import INFOS, LAST, ODD, ONE, WRAPPED, WRONG, Wrong

SAMPLER = registry.load(registry.sources()["data.sampler"])
PATIENCE = {"data.sampler.patience_s": "10"}


def _given(name: str, story: str, *finds: str, **more: Any) -> Fault:
    loader = f"tests.loaders.{more.pop('module', 'broken')}:{name}"
    settings = {"data.sampler.data": loader, **more.pop("settings", {})}
    return in_check(f"data_{name}", story, f"`--data {loader}`", *finds, only="data.sampler", settings=settings, **more)


ALL: tuple[Fault, ...] = (
    _given("stuck_in_worker", "A DataLoader's worker is stuck in a sample of one rank.", "fail data.sampler.stuck",
           world=2, says="in fail(), in 1 of 2 DataLoader workers", settings=PATIENCE, more=True),
    _given("raises_in_worker", "A sample of one rank cannot be read, in a DataLoader's worker.",
           "fail data.sampler.user_error", world=2, says="in fail(): ValueError: the image is truncated",
           more=True),
    _given("killed", "A rank is killed while it reads its data.", "fail data.sampler.crashed", world=2, says="SIGKILL",
           noticed_by="0", more=True),
    _given("a_batch_more", "One rank has a batch more than the others.", "fail data.sampler.unequal_batches",
           module="mistaken", world=2, culprit={}, says="rank 0 has 13 batches, rank 1 has 12 batches", noticed_by="0",
           more=True),
    _given("raises_before_barrier", "A user's function raises on one rank before a barrier, at which the others wait.",
           "fail data.sampler.user_error", noticed_by="0,2", says="no index", settings=PATIENCE, more=True),
    _given("no_sampler", "All ranks read the whole dataset.", "fail data.sampler.same_samples",
           module="mistaken", culprit={}, says="all 3 ranks see the same 24 samples"),
    _given("overlapping", "Ranks read samples of others.", "fail data.sampler.overlap",
           module="mistaken", culprit={}, says="ranks 0 and 1 share 2 of 10 samples", noticed_by="0-2", more=True),
    _given("worker_killed", "A DataLoader's worker is killed on one rank, as when memory is out.",
           "fail data.sampler.user_error", says="ended by SIGKILL", more=True),
    _given("stuck_function", "The user's function does not return on one rank.", "fail data.sampler.stuck",
           says="in stuck_function()", settings=PATIENCE, more=True),
    _given("stuck_natively", "A rank's loader is stuck in C, where no signal is heard.",
           "error data.sampler.timed_out", says="at broken.py line", exit_code=3, deadline_s=45),
    _given("stuck_while_counting", "A rank is stuck while all count their samples together.",
           "fail data.sampler.desync", says="never entered reduce of 24 int32 #2", noticed_by="0,2",
           deadline_s=40),
    _given("killed_while_counting", "A rank is killed while all count their samples together.",
           "fail data.sampler.crashed", says="SIGKILL", noticed_by="0,2"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""


def _on_ranks(name: str, wrong: Wrong) -> Fault:
    code = SAMPLER.codes[wrong.code]
    culprit = {ODD: {"rank": 1}, ONE: {"rank": 1}, LAST: {"rank": "the last"}}.get(wrong.named, {})
    settings = f" --set data.sampler.{wrong.settings}" if wrong.settings else ""
    made = f"`--data tests.loaders.*:{name}{settings}`, on {'2, ' if wrong.least == 2 else ''}3 and 4 ranks"
    finds = f"{wrong.severity} data.sampler.{wrong.code}"
    exit_code = int(wrong.severity == "fail")
    return elsewhere(f"loader_{name}", code.meaning, made, finds, culprit=culprit, exit_code=exit_code)


def _wrapped(name: str, wrong: Wrong) -> Fault:
    made = f"`--data tests.loaders.*:{name}`, on 2 ranks, with the package it is of"
    meaning = SAMPLER.codes[wrong.code].meaning
    return elsewhere(f"wrapped_{name}", meaning, made, f"fail data.sampler.{wrong.code}", culprit={}, exit_code=1)


def _info(name: str, slug: str) -> Fault:
    made = f"`--data tests.loaders.*:{name}`, on 4 ranks"
    return elsewhere(
        f"loader_{name}", SAMPLER.codes[slug].meaning, made, f"info data.sampler.{slug}", culprit={}, exit_code=0
    )


ELSEWHERE: tuple[Fault, ...] = (
    *(_info(name, slug) for name, (slug, _) in INFOS.items()),
    *(_on_ranks(name, wrong) for name, wrong in WRONG.items()),
    *(_wrapped(name, wrong) for name, wrong in WRAPPED.items()),
)
"""Driven by tests/checks/data/test_on_ranks.py and test_wrappers.py."""
