"""What train.expert finds."""

from typing import Any

from tests.faults.row import Fault, in_check, sick


def _of(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    details = {"world": 3, "environ": sick(deed), "culprit": {"step": 0}, "noticed_by": "0-2", **more}
    title = f"Under expert parallel: {story}"
    return in_check(f"expert_{name}", title, f"`sick.{deed}`", *finds, only="train.expert", **details)


ALL: tuple[Fault, ...] = (
    _of("times_ranks", "experts' gradients are summed over the ranks, not averaged.", "experts_summed",
        "fail train.expert.wrong_exchange", says=".experts.", more=True),
    _of("router_detached", "the router's weights are sent without their gradient.", "router_detached",
        "fail train.expert.wrong_exchange", says="router.weight"),
    _of("tokens_swapped", "what one rank sends to the all-to-all arrives in another order.", "tokens_swapped@1",
        "fail train.expert.wrong_step"),
    _of("unsteady", "all products are rounded to 8 bits, alone as well.", "in_8_bits",
        "warn train.expert.unsteady", culprit={}, noticed_by="", says="batch splits move", more=True),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
