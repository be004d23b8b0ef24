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


TITLES = {"ddp": "DDP", "fsdp2": "FSDP2", "fsdp": "FSDP1", "compile": "torch.compile", "expert": "expert parallel"}

SOME = {"train.fsdp.variants": "full_shard", "train.compile.variants": "fsdp2"}


def _each(name: str, story: str, ddp: str, fsdp: str, code: str, **more: Any) -> tuple[Fault, ...]:
    """The same under each strategy: DDP alone, and all others in one more run, since they share DDP's code for it
    (checks/train/shared). A deed that ends with @ and a number is that rank's alone; a strategy that is given as None
    has no such fault; torch.compile and expert parallel have it where it is given."""
    more = {"of_compile": None, "of_expert": None, **more}
    severity, own = more.pop("severity", "fail"), {strategy: more.pop(f"of_{strategy}", {}) for strategy in TITLES}
    others = ",".join(f"train.{strategy}" for strategy in TITLES if own[strategy] is not None and strategy != "ddp")
    details = {
        "world": 2, "culprit": {}, "noticed_by": "0-1", "environ": sick(",".join(dict.fromkeys((ddp, fsdp)))),
        "settings": SOME, **more,
    }  # fmt: skip
    wrapped = {"shares": f"train_{name}", "more": True}
    if "environ_of" in details:
        details["environ"] = {}
    return tuple(
        in_check(
            f"{strategy}_{name}", f"Under {title}: {story}", f"`sick.{ddp if strategy == 'ddp' else fsdp}`",
            f"{severity} train.{strategy}.{code}", only="train.ddp" if strategy == "ddp" else others,
            **{**details, **({} if strategy == "ddp" else wrapped), **own[strategy]},
        )
        for strategy, title in TITLES.items()
        if own[strategy] is not None
    )  # fmt: skip


def _of_rank_1(name: str, story: str, deed: str, code: str, **more: Any) -> tuple[Fault, ...]:
    """The same, where rank 1 is sick and the others notice."""
    details = {"noticed_by": "0" if more.get("world", 2) == 2 else "0,2", "environ_of": {1: sick(deed)}, **more}
    return _each(name, story, deed, deed, code, **details)


def _scattered(strategy: str, title: str) -> Fault:
    return in_check(
        f"{strategy}_scattered_off", f"Under {title}: what one rank gets out of the reduce-scatter is 2% too much.",
        "`sick.scattered_off@1`", f"fail train.{strategy}.wrong_exchange", only="train.fsdp,train.fsdp2", world=3,
        noticed_by="0,2", culprit={"rank": 1, "step": 0}, environ=sick("scattered_off@1"), shares="scattered_off",
        more=True,
        settings={"train.fsdp.variants": "full_shard"}, says="only rank 1's piece is wrong",
    )  # fmt: skip


ALL: tuple[Fault, ...] = (
    *_each("not_exchanged", "no gradients are exchanged.", "not_exchanged", "not_scattered", "not_exchanged",
           culprit={"step": 0}, says="norm of its own gradient", of_ddp={"noticed_by": ""}),
    *_each("summed", "gradients are summed, not averaged.", "summed", "scattered_sum,experts_summed", "not_averaged",
           culprit={"step": 0}, says="2 times as much", of_compile={}, of_expert={}),
    *_each("scaled", "one rank's gradient is 0.1% too large in the mean.", "scaled@1", "scatters_scaled@1",
           "wrong_exchange", world=4, culprit={"rank": 1, "step": 0}, noticed_by="0,2-3",
           says="rank 1's own gradient went into the mean 1.001 times, expected 1", of_compile={},
           of_ddp={"more": True}),
    *_each("parameter_left_out", "one parameter's gradient is not exchanged.", "forgets_head", "head_not_scattered",
           "wrong_exchange", culprit={"parameter": "head.weight"}, says="only head.weight's", of_fsdp=None,
           of_ddp={"noticed_by": ""}),
    *_each("other_start", "a rank starts from other weights.", "starts_off@1", "starts_off@1", "wrong_start",
           culprit={"rank": 1, "step": 0, "parameter": "head.weight"}, world=3, of_ddp={"noticed_by": "0,2"},
           of_fsdp2={"noticed_by": "0,2", "says": "in rank 1's piece"},
           of_fsdp={"noticed_by": "0,2", "says": "in rank 1's piece"},
           of_compile={"noticed_by": "0,2", "says": "in rank 1's piece"}, of_expert={"noticed_by": "0,2"}),
    *_each("same_data", "all ranks train on the same data.", "data_of_rank@0", "data_of_rank@0", "wrong_data",
           culprit={"step": 0}, world=3, noticed_by="0-2",
           says="rank 0's part, and all ranks have trained on the same data", of_compile={}, of_expert={}),
    *_each("clipped_first", "the gradient is clipped before the ranks exchange it.", "clips_first@1", "clips_pieces",
           "wrong_clip", of_ddp={"says": "clipped to 1 before", "more": True},
           of_compile={"says": "clipped to 1 before"},
           settings={"train.fsdp.variants": "clip", "train.fsdp2.variants": "clip", "train.compile.variants": "ddp"},
           of_fsdp2={"says": "not clipped by its norm over all ranks"},
           of_fsdp={"says": "not clipped by its norm over all ranks"}),
    *_each("reduced_in_bfloat16", "gradients are rounded to bfloat16 for the exchange.", "reduces_in_bfloat16",
           "reduces_in_bfloat16", "drift", culprit={"step": 0}, says="as after rounding to bfloat16", of_compile={},
           of_expert={}),
    *_each("products_in_8_bits", "products in bfloat16 are rounded to 8 bits.", "bfloat16_in_8_bits",
           "bfloat16_in_8_bits", "unsteady", severity="warn", noticed_by="",
           settings={"train.ddp.variants": "autocast", "train.fsdp.variants": "mixed", "train.fsdp2.variants": "mixed"},
           says="batch splits move", of_ddp={"more": True}),
    *_of_rank_1("forward_off", "a rank's forward pass is wrong at one step.", "forward_off@4", "wrong_step",
                culprit={"rank": 1, "step": 4}, says="the loss on its own part",
                of_expert={"says": "the loss at step 4 is"}),
    *_of_rank_1("gradient_nan", "a rank's gradient holds a NaN at one step.", "gradient_nan@5", "not_finite",
                culprit={"rank": 1, "step": 5}, of_compile={}, of_expert={"culprit": {"step": 5}, "noticed_by": "0-1"}),
    *_of_rank_1("flip", "a bit of one weight flips on one rank.", "flip@3", "out_of_sync", world=3,
                culprit={"rank": 1, "step": 4, "parameter": "blocks.1.up.weight"}, of_compile={},
                of_expert={"culprit": {"rank": 1, "step": 4, "parameter": "positions.weight"}}),
    _scattered("fsdp", "FSDP1"),
    _scattered("fsdp2", "FSDP2"),
    _all("coarse", "All ranks round their matrix products to bfloat16: coarse, and sound.", "matmul_bfloat16",
         only="train.ddp,train.fsdp2"),
    _one("other_data", "A rank trains on another rank's part of the batch.", "rank_1_has_data_of@2",
         "fail train.ddp.wrong_data", world=3, culprit={"rank": 1, "step": 0}, says="the loss of rank 2's part"),
    _one("wrong_in_bfloat16", "A rank computes wrongly in bfloat16 only, alone as among others.", "bfloat16_off",
         "fail train.ddp.wrong_step", world=3, culprit={"rank": 1, "step": 0}, noticed_by="",
         settings={"train.ddp.variants": "autocast"}, says="in training alone, in the same arithmetic", more=True),
    _one("gradient_off", "A rank's gradient is 0.1% too large at one step.", "gradient_off@3",
         "fail train.ddp.wrong_step", culprit={"rank": 1, "step": 3}, says="the norm of its own gradient", more=True),
    _one("flip_at_the_end", "A bit of one weight flips on one rank after the last step.", "flip@7",
         "fail train.ddp.out_of_sync", culprit={"rank": 1, "step": 7, "parameter": "blocks.1.up.weight"},
         noticed_by="", more=True),
    _one("sends_wrong", "What one rank sends to the all-reduce arrives altered.", "sends_wrong",
         "fail train.ddp.wrong_exchange", environ=sick("averages"), culprit={"rank": 1, "step": 0},
         says="rank 1's own gradient went into the mean 1.5 times"),
    _one("receives_wrong", "One rank gets one wrong sum out of the all-reduce.", "receives_wrong",
         "fail train.ddp.wrong_exchange", environ=sick("averages"), culprit={"rank": 1, "step": 0}, more=True),
    _one("raises", "A rank raises in its backward pass.", "raise@4", "error train.ddp.raised", exit_code=3,
         says="ZeroDivisionError"),
    _one("killed", "A rank dies in its backward pass.", "kill@4", "fail train.ddp.crashed", world=3,
         says="SIGKILL, expected it to live; last doing: ddp/plain, step 4: backward"),
    in_check("fsdp_unfit", "A variant that was asked for cannot run here.",
             "`train.fsdp.variants=full_shard,offload` on CPUs", "info train.fsdp.not_run", only="train.fsdp", world=2,
             culprit={}, exit_code=0, settings={"train.fsdp.variants": "full_shard,offload"},
             says="not run, though asked for: offload (FSDP1 offloads from a GPU only)"),
    _one("stopped", "A rank is stopped in its backward pass.", "stop@4", "fail train.ddp.timed_out", world=3,
         says="the process is stopped"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
