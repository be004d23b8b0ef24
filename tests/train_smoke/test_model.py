"""The weights that every rank begins with."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch

from preflight.train_smoke import model
from tests.running import ROOT


def _digest() -> str:
    found = hashlib.sha256()
    for parameter in model.new(torch.device("cpu")).parameters():
        found.update(bytes(parameter.detach().view(torch.uint8).flatten().tolist()))
    return found.hexdigest()


@pytest.mark.more
def test_cpus_with_other_vector_code_begin_with_the_same_weights() -> None:
    """torch.nn's own would differ in their last bits, and a sound machine be blamed for them."""
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": str(ROOT)}
    program = "from tests.train_smoke import test_model; print(test_model._digest())"
    plain = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environ, cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert plain.stdout.split() == [_digest()]


def test_torchs_own_random_state_stays() -> None:
    before = torch.get_rng_state()
    model.new(torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())


def test_another_seed_gives_other_weights() -> None:
    one, other = (model.new(torch.device("cpu"), seed).head.weight for seed in (1, 2))
    assert not torch.equal(one, other)
