"""The bits of tensors."""

import hashlib

import pytest
import torch

from preflight.sdk.tensor_bits import digest, raw


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_a_tensor_is_its_elements_in_their_order(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 1], [0, 0]]).to(dtype)
    assert len(raw(tensor)) == 4 * tensor.element_size()
    assert raw(tensor) == raw(tensor.clone()) != raw(tensor.flip(0))
    assert raw(tensor.t()) == raw(tensor.t().contiguous()), "not those of the memory that it is a view of"


def test_a_digest_tells_the_last_bit_and_the_order() -> None:
    first, second = torch.zeros(3), torch.ones(2, requires_grad=True)
    assert digest([first, second]) == digest([first.clone(), second]) != digest([second, first])
    assert digest([first]) != digest([-first]), "0 and -0"
    assert digest([first]) == hashlib.sha256(bytes(12)).hexdigest()[:16]


def test_a_tensor_without_elements_has_no_bits() -> None:
    assert raw(torch.zeros(0, 4)) == b""
    assert digest([torch.zeros(0)]) == digest([])


def test_words_are_told_apart() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
