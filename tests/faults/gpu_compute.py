"""What `gpu.compute` finds, on the CPU."""

from typing import Any

from tests.faults.row import Fault, in_check, sick


def _one(name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    """Rank 1 is sick."""
    return _sick_rank(1, name, story, deed, *finds, **more)


def _of_six(rank: int, name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    """One of five ranks that are sick, each otherwise; rank 0 is not."""
    return _sick_rank(rank, name, story, deed, *finds, world=6, culprit={"rank": rank}, shares="sick", **more)


def _sick_rank(rank: int, name: str, story: str, deed: str, *finds: str, **more: Any) -> Fault:
    found, made = [f"fail gpu.compute.{slug}" for slug in finds], f"on rank {rank}: `sick.{deed}`"
    return in_check(f"compute_{name}", story, made, *found, only="gpu.compute", environ_of={rank: sick(deed)}, **more)


_BOTH_WRONG = ("wrong_product", "wrong_product")
"""In bf16 and in fp32."""
ALL: tuple[Fault, ...] = (
    _of_six(1, "product", "A bit of a rank's matrix products is wrong.", "mm_off", *_BOTH_WRONG,
             says="1 of 65,536 elements are wrong, the first at 100: "),
    _of_six(2, "product_nan", "A rank's matrix products hold a NaN.", "mm_nan", *_BOTH_WRONG,
             says="at 100: nan, expected "),
    _of_six(3, "product_once", "One of a rank's many matrix products is wrong in a bit.", "mm_off_once@5", "unstable",
             says="bf16 GEMM: 1 of 10 repeats differ from the first in up to 1 element"),
    _one("other_bits", "A rank's matrix products round otherwise, always.", "mm_in_other_order", "corrupt", "corrupt",
         says="' as on 2 of 3 ranks of this kind"),
    _one("other_bits_of_two", "One of two ranks' matrix products round otherwise.", "mm_in_other_order",
         "corrupt", "corrupt", world=2, culprit={}, says="' on rank 1, expected the same"),
    _of_six(4, "copy", "A bit of what a rank copies is altered.", "copy_off", "wrong_copy", "wrong_copy", "wrong_copy",
             says=" copy: 1 of "),
    _of_six(5, "error", "A rank's GPU reports an error of its memory.", "mm_error", "device_error",
             says="bf16 GEMM: CUDA error: uncorrectable ECC error encountered; expected"),
    in_check("compute_other_bits_of_half", "Half of the ranks run different code for matrix products.",
             "on ranks 2 and 3: `sick.mm_in_other_order`", *["warn gpu.compute.different_bits"] * 2,
             only="gpu.compute", world=4, culprit={}, environ_of={rank: sick("mm_in_other_order") for rank in (2, 3)},
             says="' on ranks 2-3, expected the same on devices of one kind"),
    in_check("compute_products_of_all", "A bit of all ranks' matrix products is wrong.", "on all ranks: `sick.mm_off`",
             *[f"fail gpu.compute.{slug}" for slug in _BOTH_WRONG], only="gpu.compute", world=2, culprit={},
             environ=sick("mm_off"), noticed_by="0-1", says="on 2 of 2 ranks: look at the library"),
    in_check("compute_slow", "A GPU multiplies more slowly than its siblings.",
             "CPUs that call themselves GPUs, whose products take 20 ms, on rank 1 200: `sick.works_as_gpu`",
             "warn gpu.compute.slow", "warn gpu.compute.slow", only="gpu.compute", world=5,
             environ=sick("works_as_gpu@20"), environ_of={1: sick("works_as_gpu@200")},
             settings={"gpu.compute.repeats": "2", "gpu.compute.min_share": "0.5"}, says=" GEMM runs at "),
)  # fmt: skip
"""Driven by tests/test_faults.py."""
ELSEWHERE: tuple[Fault, ...] = ()
