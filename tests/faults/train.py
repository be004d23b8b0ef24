"""What the checks of the family `train` find."""

import os
from typing import Any

from tests.faults.row import Fault, in_check
from tests.running import PLUGINS, ROOT


def _sick(deed: str) -> dict[str, str]:
    """An environment in which torch does this deed (tests/sick/sitecustomize.py)."""
    return {"SICK": deed, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "sick", ROOT, PLUGINS)))}


def _one(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    """Rank 1 is sick, and the others notice."""
    world = more.get("world", 2)
    details = {"world": world, "noticed_by": "0" if world == 2 else "0,2", "environ_of": {1: _sick(deed)}, **more}
    return in_check(f"ddp_{name}", story, f"on rank 1: `sick.{deed}`", *finds, only="train.ddp", **details)


def _all(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    details = {"world": 2, "culprit": {}, "noticed_by": "0-1" if finds else "", "environ": _sick(deed), **more}
    return in_check(f"ddp_{name}", story, f"on all ranks: `sick.{deed}`", *finds, only="train.ddp", **details)


ALL: tuple[Fault, ...] = (
    _one("matmul_off", "A rank's matrix products are wrong in one element.", "matmul_off",
         "fail train.ddp.wrong_alone", noticed_by=""),
    _one("matmul_off_once", "One of a rank's many matrix products is wrong.", "matmul_off_once",
         "fail train.ddp.wrong_alone", noticed_by="", says="alone again"),
    _one("other_weights", "A rank starts from other weights.", "other_seed", "fail train.ddp.wrong_alone", world=3,
         noticed_by="", says="as on 2 of 3 ranks", culprit={"rank": 1, "step": 0}),
    _one("other_weights_of_two", "One of two ranks starts from other weights.", "other_seed",
         "fail train.ddp.wrong_alone", noticed_by="", says="on rank 1, expected the same", culprit={"step": 0}),
    _all("nan_alone", "All ranks' matrix products hold a NaN.", "matmul_nan", "fail train.ddp.not_finite",
         noticed_by="", says="nan on all ranks", culprit={"step": 0}),
    _all("coarse", "All ranks round their matrix products to bfloat16: coarse, and sound.", "matmul_bfloat16"),
    _one("other_data", "A rank trains on other data at one step.", "forward_off@4", "fail train.ddp.wrong_step",
         culprit={"rank": 1, "step": 4}, says="the loss on its own part"),
    _one("gradient_off", "A rank's gradient is 0.1% too large at one step.", "gradient_off@3",
         "fail train.ddp.wrong_step", culprit={"rank": 1, "step": 3}, says="the norm of its own gradient"),
    _one("gradient_nan", "A rank's gradient holds a NaN at one step.", "gradient_nan@5", "fail train.ddp.not_finite",
         culprit={"rank": 1, "step": 5}),
    _one("flip", "A bit of one weight flips on one rank.", "flip@3", "fail train.ddp.out_of_sync", world=3,
         culprit={"rank": 1, "step": 4, "parameter": "blocks.1.up.weight"}),
    _one("flip_at_the_end", "A bit of one weight flips on one rank after the last step.", "flip@9",
         "fail train.ddp.out_of_sync", culprit={"rank": 1, "step": 9, "parameter": "blocks.1.up.weight"},
         noticed_by=""),
    _all("summed", "Gradients are summed and not averaged.", "summed", "fail train.ddp.not_averaged",
         culprit={"step": 0}, says="2 times as much"),
    _all("not_exchanged", "No gradients are exchanged.", "not_exchanged", "fail train.ddp.not_exchanged",
         culprit={"step": 0}),
    _all("parameter_left_out", "DDP leaves one parameter out.", "forgets_head", "fail train.ddp.wrong_exchange",
         culprit={"parameter": "head.weight"}),
    _one("sends_wrong", "What one rank sends to the all-reduce arrives altered.", "sends_wrong",
         "fail train.ddp.wrong_exchange", environ=_sick("averages"), culprit={"step": 0}, noticed_by="0-1",
         says="every rank's own gradient is right"),
    _one("receives_wrong", "One rank gets one wrong sum out of the all-reduce.", "receives_wrong",
         "fail train.ddp.wrong_exchange", environ=_sick("averages"), culprit={"rank": 1, "step": 0}),
    _one("raises", "A rank raises in its backward pass.", "raise@4", "error train.ddp.raised", exit_code=3,
         says="ZeroDivisionError"),
    _one("killed", "A rank dies in its backward pass.", "kill@4", "fail train.ddp.crashed", world=3, says="SIGKILL"),
    _one("stopped", "A rank is stopped in its backward pass.", "stop@4", "fail train.ddp.timed_out", world=3,
         says="the process is stopped"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
