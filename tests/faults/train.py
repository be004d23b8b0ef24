"""What the checks of the strategies find."""

from typing import Any

from tests.faults.row import Fault, in_check, sick


def _one(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    """Rank 1 is sick, and the others notice."""
    world = more.get("world", 2)
    details = {"world": world, "noticed_by": "0" if world == 2 else "0,2", "environ_of": {1: sick(deed)}, **more}
    return in_check(f"ddp_{name}", story, f"on rank 1: `sick.{deed}`", *finds, only="train.ddp", **details)


def _all(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    details = {"world": 2, "culprit": {}, "noticed_by": "0-1" if finds else "", "environ": sick(deed), **more}
    return in_check(f"ddp_{name}", story, f"on all ranks: `sick.{deed}`", *finds, **{"only": "train.ddp", **details})


def _both(name: str, story: str, ddp: str, fsdp2: str, code: str, **more: Any) -> tuple[Fault, ...]:
    """The same under DDP and under FSDP2, in one run. A deed that ends with @ and a number is that rank's alone."""
    of_ddp, of_fsdp2 = more.pop("of_ddp", {}), more.pop("of_fsdp2", {})
    deeds = sick(",".join(dict.fromkeys((ddp, fsdp2))))
    details = {"world": 2, "culprit": {}, "noticed_by": "0-1", "environ": deeds, "shares": f"train_{name}", **more}
    return tuple(
        in_check(
            f"{strategy}_{name}",
            f"Under {title}: {story}",
            f"`sick.{deed}`",
            f"fail train.{strategy}.{code}",
            only="train.ddp,train.fsdp2",
            **{**details, **own},
        )
        for strategy, title, deed, own in (("ddp", "DDP", ddp, of_ddp), ("fsdp2", "FSDP2", fsdp2, of_fsdp2))
    )


def _scattered(strategy: str, title: str) -> Fault:
    return in_check(
        f"{strategy}_scattered_off", f"Under {title}: what one rank gets out of the reduce-scatter is 2% too much.",
        "`sick.scattered_off@1`", f"fail train.{strategy}.wrong_exchange", only="train.fsdp,train.fsdp2", world=3,
        noticed_by="0,2", culprit={"rank": 1, "step": 0}, environ=sick("scattered_off@1"), shares="scattered_off",
        settings={"train.fsdp.variants": "full_shard"}, says="only the piece that rank 1 keeps is wrong",
    )  # fmt: skip


ALL: tuple[Fault, ...] = (
    *_both("not_exchanged", "no gradients are exchanged.", "not_exchanged", "not_scattered", "not_exchanged",
           culprit={"step": 0}, says="norm of its own gradient"),
    *_both("summed", "gradients are summed and not averaged.", "summed", "scattered_sum", "not_averaged",
           culprit={"step": 0}, says="2 times as much"),
    *_both("scaled", "one rank's gradient is 0.1% too large in the mean.", "scaled@1", "scatters_scaled@1",
           "wrong_exchange", world=4, culprit={"rank": 1, "step": 0}, noticed_by="0,2-3",
           says="rank 1's own gradient went into the mean 1.001 times, expected 1"),
    *_both("parameter_left_out", "one parameter's gradient is not exchanged.", "forgets_head", "head_not_scattered",
           "wrong_exchange", culprit={"parameter": "head.weight"}, says="only head.weight's"),
    *_both("other_start", "a rank starts from other weights.", "starts_off@1", "starts_off@1", "wrong_start",
           culprit={"rank": 1, "step": 0, "parameter": "head.weight"}, world=3, of_ddp={"noticed_by": "0,2"},
           of_fsdp2={"noticed_by": "0,2", "says": "in the piece that rank 1 keeps"}),
    *_both("same_data", "all ranks train on the same data.", "data_of_rank@0", "data_of_rank@0", "other_data",
           culprit={"step": 0}, world=3, noticed_by="0-2",
           says="rank 0's part, and all ranks have trained on the same data"),
    *_both("clipped_first", "the gradient is clipped before the ranks exchange it.", "clips_first@1", "clips_pieces",
           "wrong_clip", settings={"train.fsdp2.variants": "clip"}, of_ddp={"says": "clipped to 1 before"},
           of_fsdp2={"says": "not clipped by its norm over all ranks"}),
    _scattered("fsdp", "FSDP1"),
    _scattered("fsdp2", "FSDP2"),
    _all("coarse", "All ranks round their matrix products to bfloat16: coarse, and sound.", "matmul_bfloat16",
         only="train.ddp,train.fsdp2"),
    _one("other_data", "A rank trains on another rank's part of the batch.", "rank_1_has_data_of@2",
         "fail train.ddp.other_data", world=3, culprit={"rank": 1, "step": 0}, says="the loss of rank 2's part"),
    _one("wrong_in_bfloat16", "A rank computes wrongly in bfloat16 only, alone as among others.", "bfloat16_off",
         "fail train.ddp.wrong_step", world=3, culprit={"rank": 1, "step": 0}, noticed_by="",
         settings={"train.ddp.variants": "autocast"}, says="in training alone, in the same arithmetic"),
    _one("forward_off", "A rank's forward pass is wrong at one step.", "forward_off@4", "fail train.ddp.wrong_step",
         culprit={"rank": 1, "step": 4}, says="the loss on its own part"),
    _one("gradient_off", "A rank's gradient is 0.1% too large at one step.", "gradient_off@3",
         "fail train.ddp.wrong_step", culprit={"rank": 1, "step": 3}, says="the norm of its own gradient"),
    _one("gradient_nan", "A rank's gradient holds a NaN at one step.", "gradient_nan@5", "fail train.ddp.not_finite",
         culprit={"rank": 1, "step": 5}),
    _one("flip", "A bit of one weight flips on one rank.", "flip@3", "fail train.ddp.out_of_sync", world=3,
         culprit={"rank": 1, "step": 4, "parameter": "blocks.1.up.weight"}),
    _one("flip_at_the_end", "A bit of one weight flips on one rank after the last step.", "flip@7",
         "fail train.ddp.out_of_sync", culprit={"rank": 1, "step": 7, "parameter": "blocks.1.up.weight"},
         noticed_by=""),
    _one("sends_wrong", "What one rank sends to the all-reduce arrives altered.", "sends_wrong",
         "fail train.ddp.wrong_exchange", environ=sick("averages"), culprit={"rank": 1, "step": 0},
         says="rank 1's own gradient went into the mean 1.5 times"),
    _one("receives_wrong", "One rank gets one wrong sum out of the all-reduce.", "receives_wrong",
         "fail train.ddp.wrong_exchange", environ=sick("averages"), culprit={"rank": 1, "step": 0}),
    _one("raises", "A rank raises in its backward pass.", "raise@4", "error train.ddp.raised", exit_code=3,
         says="ZeroDivisionError"),
    _one("killed", "A rank dies in its backward pass.", "kill@4", "fail train.ddp.crashed", world=3,
         says="SIGKILL, expected it to live; last doing: ddp/plain, step 4: backward"),
    _one("stopped", "A rank is stopped in its backward pass.", "stop@4", "fail train.ddp.timed_out", world=3,
         says="the process is stopped"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
