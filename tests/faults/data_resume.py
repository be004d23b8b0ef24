"""What data.resume finds: in real runs, and in tests/checks/data/test_resume.py."""

from typing import Any

from tests.faults.row import Fault, elsewhere, in_check

CHECKS = ("sampler", "seeds", "resume")


def _name(name: str) -> str:
    return f"tests.loaders.resumed:{name}"


def _in_run(name: str, story: str, find: str, says: str) -> Fault:
    settings = {f"data.{check}.data": _name(name) for check in CHECKS}
    return in_check(
        f"resume_{name}", story, f"`--data {_name(name)}`", find, only="data.resume", world=2, culprit={},
        settings=settings, says=says,
    )  # fmt: skip


def _row(name: str, story: str, find: str, says: str, **more: Any) -> Fault:
    exit_code = 1 if find.startswith("fail") else 0
    settings: dict[str, Any] = {"culprit": {}, "exit_code": exit_code, "world": 2, **more}
    return elsewhere(f"resume_{name}", story, f"`--data {_name(name)}`", find, says=says, **settings)


ALL: tuple[Fault, ...] = (
    _in_run("epoch_reset", "A resumed sampler restarts its epoch.", "fail data.resume.epoch_reset",
            "restarts its epoch, expected the samples that come next; 6 samples come again (such as "),
    _in_run("unseeded", "A loader without a state shuffles differently in each process.",
            "warn data.resume.unseeded", "has no state_dict, and yields a different order in a second process"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = (
    _row("order_changed", "A resumed sampler does not restore its permutation.", "fail data.resume.order_changed",
         "continues in a different order, from sample "),
    _row("buffer_lost", "A packing stream does not save what is left over.", "fail data.resume.order_changed",
         "expected the batches that come next"),
    _row("left_out", "A sampler counts what DataLoader workers have asked for, and the loop has not received.",
         "fail data.resume.skipped_batches", "skips the next "),
    _row("repeated", "A batch is counted when the next one is asked for.", "fail data.resume.repeated",
         "yields the last 2 samples again, expected the samples that come next; 2 samples come again (such as "),
    _row("next_epoch", "The epoch after a resumed one begins where the resume did.", "fail data.resume.next_epoch",
         "ends its epoch correctly, but the next epoch differs from sample 0 on"),
    _row("second_resume", "After a resume the state counts from there, and a second resume goes back.",
         "fail data.resume.second_resume", "stopped a second time after 6 batches"),
    _row("refused", "load_state_dict looks for what state_dict does not save.", "fail data.resume.refused",
         "KeyError: 'place' (resumed by load_state_dict of the sampler after 3 batches)"),
    _row("workers_change_order", "A loader's state counts batches, whose order depends on the number of workers.",
         "warn data.resume.workers_change_order", "with 3 DataLoader workers instead of 2, stopped after 3 batches"),
)  # fmt: skip
"""Driven by tests/checks/data/test_resume.py."""
