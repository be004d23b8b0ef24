"""What `train.alone` finds: ranks whose arithmetic is sick."""

from typing import Any

from tests.faults.row import Fault, in_check, sick

CHECK = "train.alone"


def _rank(number: int, name: str, story: str, deed: str, finds: str, run: str, world: int, **more: Any) -> Fault:
    """One of several sick ranks of a run; most are sound."""
    return in_check(
        f"alone_{name}", story, f"on rank {number}: `sick.{deed}`", f"fail {CHECK}.{finds}", only=CHECK, world=world,
        culprit={"rank": number, **more.pop("culprit", {})}, environ_of={number: sick(deed)}, shares=run, **more,
    )  # fmt: skip


def _all(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    details = {"world": 2, "culprit": {}, "environ": sick(deed), **more}
    return in_check(f"alone_{name}", story, f"on all ranks: `sick.{deed}`", *finds, only=CHECK, **details)


BITS, VALUES = ("alone_bits", 7), ("alone_values", 6)
"""Runs, and how many ranks they have: more than half of those that repeat themselves must be sound."""

ALL: tuple[Fault, ...] = (
    _rank(1, "low_bit", "The lowest bit of one element flips in every matrix product of a rank.", "matmul_low_bit",
          "wrong_alone", *BITS, culprit={"step": 0}, says="as on 3 of 5 ranks of its kind"),
    _rank(2, "high_bit", "A high bit of one element flips in every matrix product of a rank.", "matmul_high_bit",
          "wrong_alone", *BITS, culprit={"step": 0}, says="as on 3 of 5 ranks of its kind"),
    _rank(3, "low_bit_once", "The lowest bit of one element flips in a rank's products of one forward pass.",
          "matmul_low_bit@30", "differs_from_itself", *BITS, says="trained twice alone"),
    _rank(4, "high_bit_once", "A high bit of one element flips in a rank's products of one forward pass.",
          "matmul_high_bit@30", "differs_from_itself", *BITS, says="trained twice alone"),
    _rank(1, "matmul_off", "A rank's matrix products are wrong in one element.", "matmul_off",
          "wrong_alone", *VALUES, culprit={"step": 0}),
    _rank(2, "other_weights", "A rank starts from other weights.", "other_seed",
          "wrong_alone", *VALUES, culprit={"step": 0, "parameter": "tokens.weight"}, says="before step 0"),
    _rank(3, "matmul_off_once", "One of a rank's many matrix products is wrong.", "matmul_off_once",
          "differs_from_itself", *VALUES, says="trained twice alone"),
    in_check("alone_other_weights_of_two", "One of two ranks starts from other weights.",
             "on rank 1: `sick.other_seed`", f"fail {CHECK}.wrong_alone", only=CHECK, world=2, culprit={"step": 0},
             environ_of={1: sick("other_seed")}, says="on rank 1, expected the same on all"),
    in_check("alone_other_order", "Two of four ranks add up their matrix products in another order.",
             "on ranks 2 and 3: `sick.linear_in_other_order`", f"warn {CHECK}.different_bits", only=CHECK, world=4,
             culprit={"step": 0}, environ_of=dict.fromkeys((2, 3), sick("linear_in_other_order")),
             says="on ranks 2-3, expected the same on all"),
    _all("nan", "All ranks' matrix products hold a NaN.", "matmul_nan", f"fail {CHECK}.not_finite",
         culprit={"step": 0}, says="nan on all ranks"),
    _all("coarse", "All ranks round their matrix products to bfloat16: coarse, and sound.", "matmul_bfloat16"),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
