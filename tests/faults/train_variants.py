"""What only some variant of a strategy finds: docs/parity.md says which and why."""

from typing import Any

from tests.faults.row import Fault, in_check, sick


def _of(strategy: str, name: str, variant: str, deed: str, story: str, find: str, **more: Any) -> Fault:
    details = {
        "world": 2, "culprit": {"step": 0}, "noticed_by": "0-1", "environ": sick(deed), "deadline_s": 120, "more": True,
        "settings": {f"train.{strategy}.variants": variant}, **more,
    }  # fmt: skip
    found = f"fail train.{strategy}.{find}"
    return in_check(f"{strategy}_{name}", story, f"`sick.{deed}`", found, **{"only": f"train.{strategy}", **details})


def _under_both(name: str, variant: str, story: str) -> tuple[Fault, ...]:
    """FSDP1 and FSDP2, in one run."""
    settings = {"train.fsdp.variants": variant, "train.fsdp2.variants": variant}
    more: dict[str, Any] = {
        "only": "train.fsdp,train.fsdp2", "settings": settings, "shares": name, "says": "it adds up two micro-batches",
    }  # fmt: skip
    return tuple(
        _of(strategy, name, variant, name, f"Under {title}: {story}", "wrong_exchange", **more)
        for strategy, title in (("fsdp", "FSDP1"), ("fsdp2", "FSDP2"))
    )


_RANK_1: dict[str, Any] = {"culprit": {"rank": 1, "step": 0}, "noticed_by": "0"}

ALL: tuple[Fault, ...] = (
    *_under_both("loses_unreduced", "no_sync", "what waits for the last micro-batch is lost."),
    *_under_both("replaces_reduced", "accumulate", "a reduced micro-batch takes the place of the one before."),
    _of("hybrid", "loses_partly_reduced", "hsdp", "loses_partly_reduced", "Under HSDP what waits for the last "
        "micro-batch's all-reduce is lost.", "wrong_gradient", says="% off, expected at most"),
    _of("ddp", "sends_nothing", "bucket_view", "ddp_sends_nothing", "DDP does not send the lowest rank's weights to "
        "the others.", "wrong_start", noticed_by="0",
        culprit={"rank": 1, "step": 0, "parameter": "blocks.1.down.weight"}),
    _of("fsdp2", "buffers_off", "plain", "buffers_off@1", "A rank's buffers are others than in the plain model.",
        "wrong_step", **_RANK_1, says="of its own gradient"),
    _of("fsdp2", "norms_anew", "plain", "norms_anew", "Norms are initialized once more when they are sharded.",
        "wrong_start", says="norm", more=False),
    _of("fsdp2", "one_group", "plain", "one_group", "The optimizer takes the first group's weight decay for all "
        "parameters.", "wrong_exchange", culprit={"step": 1}, says="all ranks have taken the same wrong step"),
    _of("tp", "bfloat16_off", "sequence", "terms_in_bfloat16_off", "Under tensor parallel: what is added up in "
        "bfloat16 is too large.", "wrong_gradient", says="times the one expected"),
    _of("hybrid", "bfloat16_off", "fsdp2_tp", "terms_in_bfloat16_off", "Under FSDP2 and tensor parallel: what is added "
        "up in bfloat16 is too large.", "wrong_gradient", says="times the one expected"),
    _of("tp", "bias_on_each", "matrices", "bias_on_each", "Each rank adds a row-parallel layer's whole bias.",
        "wrong_step"),
    _of("tp", "product_off", "matrices", "product_off@1", "A rank's own product is 1% too large in one layer.",
        "wrong_step", **_RANK_1, more=False, says="first rank 1's own part of the product in blocks.0.down is"),
    _of("tp", "third_step", "matrices", "reversed_at@2", "The forward pass is wrong at the third step.",
        "out_of_sync", culprit={"step": 2}, more=False),
    _of("hybrid", "adamw_counts_twice", "ddp_tp", "adamw_counts_twice", "AdamW counts steps twice where parameters are "
        "parts under DDP.", "out_of_sync", culprit={"step": 2}),
    _of("pp", "middle_stage_off", "gpipe", "middle_stage_off", "A stage between two others sends back a wrong "
        "gradient.", "wrong_gradient", world=3, noticed_by="0-2", says="times the one expected"),
    _of("expert", "replicas_left_out", "all_to_all", "expert_replicas_left_out", "Experts' gradients are not exchanged "
        "with the ranks that keep the same ones.", "wrong_exchange", world=4, noticed_by="", says=".experts."),
    _of("expert", "bfloat16_off", "autocast", "tokens_in_bfloat16_off", "What is sent to experts in bfloat16 arrives "
        "too large.", "wrong_exchange", says=".experts."),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
