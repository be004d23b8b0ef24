"""What train.compile finds."""

from typing import Any

from tests.faults.row import Fault, in_check, sick


def _of(name: str, story: str, made: str, *finds: str, **more: Any) -> Fault:
    return in_check(
        f"compile_{name}",
        f"Under torch.compile: {story}",
        made,
        *finds,
        **{"only": "train.compile", "world": 2, **more},
    )


def _on_rank_1(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    details = {"noticed_by": "0", "environ_of": {1: sick(deed)}, **more}
    return _of(name, story, f"on rank 1: `sick.{deed}`", *finds, **details)


ALL: tuple[Fault, ...] = (
    _of("not_exchanged", "a compiled step passes DDP by, so no gradients are exchanged.", "`sick.compiles_inside`",
        "fail train.compile.not_exchanged", environ=sick("compiles_inside"), culprit={"step": 0}, noticed_by="0-1",
        says="under torch.compile (ddp) the gradient norm at step 0 is", more=True),
    _on_rank_1("wrong_value", "a graph of one rank computes a number that is 0.1% too large.", "compiles_wrong",
               "fail train.compile.wrong_step", world=3, culprit={"rank": 1, "step": 0}, noticed_by="0,2", more=True,
               says="under torch.compile (ddp) the norm of its own gradient at step 0"),
    _of("off", "one rank compiles nothing, and trains rightly.", "on rank 1: TORCHDYNAMO_DISABLE=1",
        "warn train.compile.not_compiled", world=3, environ_of={1: {"TORCHDYNAMO_DISABLE": "1"}},
        says="no graph of ddp and fsdp2, expected at least one: TORCHDYNAMO_DISABLE=1 is set"),
    _on_rank_1("hangs", "a compiler never ends.", "compiles_never", "error train.compile.timed_out", world=3,
               noticed_by="0,2", says="last doing: compile/ddp, step 0: forward", deadline_s=30, exit_code=3),
    _of("unsteady", "all products are rounded to 8 bits, alone as well.", "`sick.in_8_bits`",
        "warn train.compile.unsteady", environ=sick("in_8_bits"), culprit={},
        settings={"train.compile.variants": "fsdp2"}, says="batch splits move", more=True),
    _of("cannot", "a Python for which there is no compiler on one rank: all skip.", "on rank 1: `sick.cannot_compile`",
        environ=sick("cannot_compile@1"), world=3, more=True),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
