"""What train.model finds in real runs. What one process sees of a user's model, and most that its ranks have unlike, is
in tests/checks/train/test_model.py: there many models share one start of the ranks."""

from typing import Any

from tests.faults.row import Fault, in_check


def _given(name: str, story: str, *finds: str, **more: Any) -> Fault:
    model = f"tests.models.mistaken:{name}"
    settings = {"train.model.model": model}
    return in_check(f"model_{name}", story, f"`--model {model}`", *finds, only="train.model", settings=settings, **more)


ALL: tuple[Fault, ...] = (
    _given("raises_on_one", "A user's function raises on one rank.", "fail train.model.user_error",
           says="mistaken.py:27 in raises(): ValueError: hidden size 65"),
    _given("summed", "A user's loss is a sum over the rows.", "fail train.model.sum_for_mean", world=2, culprit={},
           says="2 x the mean of its halves"),
    _given("raises_late_on_one", "A user's loss raises on one rank, when all train together.",
           "error train.model.raised", exit_code=3, noticed_by="0,2",
           says="LookupError: no such row (under ddp/plain)"),
    in_check("model_refused", "A strategy that the user asks for does not take the model.",
             "`--model tests.models.unlike:scaled --set train.model.strategies=fsdp2/plain`",
             "fail train.model.refused", only="train.model", world=2, culprit={}, says="under fsdp2/plain torch raises",
             settings={"train.model.model": "tests.models.unlike:scaled", "train.model.strategies": "fsdp2/plain"}),
    in_check("model_refused_by_one", "One of the strategies that run unasked does not take the model.",
             "`--model tests.models.unlike:scaled`", "warn train.model.refused", only="train.model", world=2,
             culprit={}, says="under fsdp2/plain torch raises",
             settings={"train.model.model": "tests.models.unlike:scaled"}),
    _given("dies", "A rank is killed in the forward of a user's model.", "fail train.model.crashed", noticed_by="0,2",
           says="SIGKILL"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
