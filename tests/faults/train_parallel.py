"""What the checks of strategies that cut a model among ranks find."""

from typing import Any

from tests.faults.row import Fault, in_check, sick

TITLES = {
    "tp": "tensor parallel",
    "pp": "a pipeline",
    "hybrid": "HSDP",
    "compile": "torch.compile",
    "expert": "expert parallel",
}


def _each(
    name: str, deeds: str, code: str, variants: dict[str, str], first: str = "", **more: Any
) -> tuple[Fault, ...]:
    """The same under each strategy, in one run. `of_<strategy>`: what differs there. `first`: it has a run of its own,
    for a code that no other strategy of `make test` finds."""
    stories = {strategy: more.pop(f"of_{strategy}") for strategy in variants}
    settings = {f"train.{strategy}.variants": names for strategy, names in variants.items()}
    details = {
        "world": 2, "culprit": {}, "noticed_by": "0-1", "environ": sick(deeds), "settings": settings,
        "shares": f"parallel_{name}", "deadline_s": 120, "more": True, **more,
    }  # fmt: skip
    others = ",".join(f"train.{strategy}" for strategy in variants if strategy != first)
    alone = {"only": f"train.{first}", "shares": "", "more": False}
    return tuple(
        in_check(
            f"{strategy}_{name}", f"Under {TITLES.get(strategy, strategy.upper())}: {own.pop('story')}",
            f"`sick.{own.pop('deed', deeds)}`", f"fail train.{strategy}.{code}",
            **{"only": others, **details, **(alone if strategy == first else {}), **own},
        )
        for strategy, own in stories.items()
    )  # fmt: skip


def _of(strategy: str, name: str, variants: str, deed: str, story: str, code: str, **more: Any) -> Fault:
    """Of one strategy; another row has this code."""
    details = {
        "world": 2, "culprit": {}, "noticed_by": "0-1", "environ": sick(deed), "deadline_s": 120, "more": True,
        "settings": {f"train.{strategy}.variants": variants}, **more,
    }  # fmt: skip
    made = f"`sick.{deed}`"
    return in_check(
        f"{strategy}_{name}", story, made, f"fail train.{strategy}.{code}", only=f"train.{strategy}", **details
    )


PLAIN = {"tp": "matrices", "pp": "gpipe", "hybrid": "hsdp"}
AT_0: dict[str, Any] = {"culprit": {"step": 0}}
_RANK_1: dict[str, Any] = {"noticed_by": "0", "culprit": {"rank": 1, "step": 0, "parameter": "head.weight"}}

ALL: tuple[Fault, ...] = (
    *_each("nan", "parallel_gradient_nan", "not_finite", PLAIN, "tp", **AT_0, says="the gradient norm at step 0 is nan",
           of_tp={"story": "a gradient holds a NaN."}, of_pp={"story": "a gradient holds a NaN."},
           of_hybrid={"story": "a gradient holds a NaN.", "says": "the norm of its own gradient at step 0 is nan"}),
    *_each("other_start", "parallel_starts_off@1", "wrong_start", PLAIN, **_RANK_1,
           of_tp={"story": "a rank's part of a matrix is another one.", "says": "in rank 1's piece"},
           of_pp={"story": "a stage starts from other weights.", "says": "in rank 1's piece"},
           of_hybrid={"story": "a replica starts from other weights.", "says": "in rank 1's piece"}),
    *_each("logits_reversed", "logits_reversed", "wrong_step", PLAIN, **AT_0, says="the forward pass, the data or",
           of_tp={"story": "logits come out in the wrong order."},
           of_pp={"story": "logits come out in the wrong order."},
           of_hybrid={"story": "logits come out in the wrong order.", "says": "the forward pass"}),
    *_each("multiple", "reduced_once_more,never_scaled,sums_over_replicas", "wrong_gradient", PLAIN, "tp",
           culprit={"step": 0, "parameter": "tokens.weight"},
           of_tp={"story": "what each rank has whole is added up.", "deed": "reduced_once_more",
                  "culprit": {"step": 0, "parameter": "blocks.0.attention_norm.weight"},
                  "says": "2.00 times the one expected, and so are 10 of 36"},
           of_pp={"story": "microbatches' gradients are not divided by their number.", "deed": "never_scaled",
                  "says": "the number of microbatches (4)"},
           of_hybrid={"story": "replicas add up, and do not average.", "deed": "sums_over_replicas",
                      "says": "the number of ranks (2) or of replicas (2), so"}),
    *_each("not_reduced", "rowwise_not_reduced,skips_second_pass,replicas_not_reduced", "missing_collective",
           {**PLAIN, "pp": "accumulate"}, "tp", **AT_0,
           of_tp={"story": "a row-parallel layer lacks its all-reduce.", "deed": "rowwise_not_reduced",
                  "noticed_by": "",
                  "says": "7 all-reduces or reduce-scatters over its 2 tensor-parallel ranks, expected at least 11"},
           of_pp={"story": "only the first accumulation step is made.", "deed": "skips_second_pass",
                  "says": "2 sends over its 2 stages, expected at least 4"},
           of_hybrid={"story": "replicas are never reduced.", "deed": "replicas_not_reduced", "noticed_by": "",
                      "says": "0 all-reduces over its 2 replicas, expected at least 3"}),
    *_each("own_norm", "clips_pieces,clips_stage", "wrong_clip", {"tp": "tied", "pp": "clip", "hybrid": "fsdp2_tp"},
           "tp",           **AT_0, says="not clipped by its norm over all ranks",
           of_tp={"story": "each rank clips by the norm of its own parts.", "deed": "clips_pieces", "noticed_by": ""},
           of_pp={"story": "each rank clips by the norm of its own stages.", "deed": "clips_stage"},
           of_hybrid={"story": "each rank clips by the norm of its own parts.", "deed": "clips_pieces",
                      "noticed_by": ""}),
    *_each("flip", "norm_flips@1", "out_of_sync", {**PLAIN, "hybrid": "ddp_tp"}, noticed_by="0",
           culprit={"rank": 1, "step": 2, "parameter": "norm.weight"}, says="in rank 1's piece",
           of_tp={"story": "a bit of what all ranks keep flips on one.", "noticed_by": ""},
           of_pp={"story": "a bit of a stage flips."},
           of_hybrid={"story": "a bit of what all ranks keep flips on one.", "noticed_by": ""}),
    *_each("changed", "head_frozen,leaves_untied,deals_twice", "model_changed",
           {"ddp": "plain", "fsdp": "full_shard", "fsdp2": "plain", "tp": "tied", "pp": "gpipe", "hybrid": "hsdp",
            "compile": "fsdp2", "expert": "all_to_all"}, "ddp",
           culprit={"parameter": "head.weight"}, says="head.weight is float32, frozen once wrapped, expected",
           of_ddp={"story": "a parameter is trained no longer.", "deed": "head_frozen"},
           of_fsdp={"story": "a parameter is trained no longer.", "deed": "head_frozen"},
           of_fsdp2={"story": "a parameter is trained no longer.", "deed": "head_frozen"},
           of_tp={"story": "the embedding is no longer tied to the output layer.", "deed": "leaves_untied",
                  "culprit": {"parameter": "tokens.weight"},
                  "says": "tokens.weight and head.weight were one parameter, but are 2"},
           of_pp={"story": "two stages have the same layer.", "deed": "deals_twice",
                  "culprit": {"parameter": "blocks.1.attention_norm.weight"}, "says": "it is kept 2 times"},
           of_hybrid={"story": "a parameter is trained no longer.", "deed": "head_frozen"},
           of_compile={"story": "a parameter is trained no longer.", "deed": "head_frozen"},
           of_expert={"story": "a parameter is trained no longer.", "deed": "head_frozen"}),
    _of("tp", "norms_left_out", "sequence", "norms_left_out", "Under sequence parallel norms' gradients are not "
        "reduced.", "wrong_gradient", culprit={"step": 0, "parameter": "norm.weight"},
        noticed_by="", says="the bits of"),
    _of("tp", "replicas_counted", "tied", "replicas_counted", "Clipping counts what all ranks keep once for each.",
        "wrong_clip", **AT_0, says="clipping finds a gradient norm of"),
    _of("tp", "lowest_bit", "matrices", "norm_flips_lowest@1", "The lowest bit of what all ranks keep flips on one.",
        "out_of_sync", world=4, noticed_by="0,2-3", says="on rank 1 differ from those on ranks 0,2-3",
        culprit={"rank": 1, "step": 2, "parameter": "norm.weight"}),
    _of("pp", "keeps_last", "accumulate", "keeps_last_pass", "Accumulation keeps the last step's gradients only.",
        "wrong_gradient", culprit={"step": 0, "parameter": "blocks.0.attention.value.weight"},
        says="% off, expected at most 2e-05; its norm is 0."),
    _of("pp", "scaled_twice", "accumulate", "scaled_each_time", "Each accumulation step divides all gradients so far.",
        "wrong_gradient", culprit={"step": 0, "parameter": "blocks.0.attention.out.weight"},
        says="its norm is 0."),
    _of("pp", "order", "gpipe", "inputs_reversed", "Microbatches and their targets come in opposite orders.",
        "wrong_step", **AT_0, says="the order of the microbatches"),
    _of("pp", "detached", "gpipe", "stage_detaches", "A stage detaches its input.", "wrong_gradient",
        culprit={"step": 0, "parameter": "blocks.1.attention_norm.weight"},
        says="and so it is with 32 of 36 parameters: they are cut off from the loss"),
    _of("hybrid", "never_zeroed", "hsdp", "never_zeroed", "Gradients of one step stay for the next.", "wrong_gradient",
        culprit={"step": 1}, says="look for what is kept from one step to the next", more=False),
    _of("hybrid", "doubled", "ddp_tp", "doubled_where_alone", "DDP over one rank adds up the gradients twice.",
        "wrong_gradient", culprit={"step": 0, "parameter": "tokens.weight"},
        says="2.00 times the one expected, and so are 36 of 36"),
    _of("tp", "rounded", "matrices", "rowwise_in_bfloat16", "What row-parallel layers add up is rounded to bfloat16.",
        "wrong_step", **AT_0, says="the loss at step 0 is"),
    _of("fsdp", "one_piece_each", "hybrid_shard", "one_piece_each", "FSDP1 cuts among one rank, and replicas are never "
        "reduced.", "not_exchanged", **AT_0, noticed_by="",
        says="0 all-reduces over its 2 replicas, expected at least 1"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
